"""Certificates that the configuration names: when they expire, and files that change."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio

from gateway.app.certificates import LOOK_EVERY, CertificateWatch
from gateway.config.endpoints import LISTEN, SERVE
from gateway.config.file import parse
from gateway.config.options import Config
from gateway.domain.events.access import (
    CertificateExpires,
    CertificatesLoaded,
    CertificatesRefused,
)
from gateway.domain.events.gateway import Event
from gateway.domain.health.expiry import Urgency
from gateway.net.certificates import name_in
from gateway.net.certs import write_certificates
from gateway.wire.pairgate.advice import expiry_problems
from tests.harness.certificates import DAY, Authority

NOW = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


def configured(folder: Path, crl: str = "") -> Config:
    tls = f'certificate = "{folder}/server.pem", key = "{folder}/server.key"'
    text = f"""
[namespaces.here]
url = "amqps://root@localhost"
password = {{ env = "SECRET" }}
tls = {{ ca = "{folder}/ca.pem" }}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
tls = {{ {tls}, client_ca = "{folder}/ca.pem"{crl} }}
"""
    return parse(text, source="test", folder=folder, environ={"SECRET": "x"}).config


@attrs.define(eq=False)
class Seen:
    """The events that a watch reports, and the clock of the watch."""

    now: datetime = NOW
    events: list[Event] = attrs.field(factory=list)

    def report(self, event: Event) -> None:
        self.events.append(event)

    def taken(self) -> Sequence[Event]:
        events, self.events = self.events, []
        return events


def watch_of(folder: Path, seen: Seen, process: str = SERVE, crl: str = "") -> CertificateWatch:
    return CertificateWatch.of(configured(folder, crl), process, lambda: seen.now, seen)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_certificates(tmp_path, now=NOW)
    # So that later files have other dates, even if they are written at once.
    for file in tmp_path.iterdir():
        os.utime(file, (0, 0))
    return tmp_path


def test_each_file_is_told_by_the_setting_that_names_it(folder: Path) -> None:
    found = {each.setting: (each.file, each.at) for each in watch_of(folder, Seen()).expiries()}

    assert found == {
        "endpoints[0].tls.certificate": (f"{folder}/server.pem", NOW + YEAR),
        "endpoints[0].tls.client_ca": (f"{folder}/ca.pem", NOW + YEAR),
        "namespaces.here.tls.ca": (f"{folder}/ca.pem", NOW + YEAR),
    }


def test_a_listener_has_none_of_the_endpoints(folder: Path) -> None:
    found = watch_of(folder, Seen(), LISTEN).expiries()

    assert [each.setting for each in found] == ["namespaces.here.tls.ca"]


def test_of_a_chain_the_first_end_counts_and_of_authorities_the_last(tmp_path: Path) -> None:
    several = b""
    for days in (0, 30):
        write_certificates(tmp_path, now=NOW + timedelta(days=days))
        several += (tmp_path / "ca.pem").read_bytes()
    file = tmp_path / "several.pem"
    file.write_bytes(several)

    names = [name_in(file, setting) for setting in ("certificate", "ca")]

    assert [name and name.expires for name in names] == [
        NOW + YEAR,
        NOW + timedelta(days=30) + YEAR,
    ]


def test_a_file_without_a_certificate_has_no_end(tmp_path: Path) -> None:
    file = tmp_path / "empty.pem"
    file.write_text("nothing")

    assert name_in(file, "certificate") is None


async def test_changed_files_are_reported_with_the_new_certificate(
    folder: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    seen = Seen()
    watch = watch_of(folder, seen)
    await nursery.start(watch.run)

    write_certificates(folder, now=NOW + DAY)
    await trio.sleep(LOOK_EVERY + 1)

    (endpoint, namespace) = seen.taken()
    assert isinstance(endpoint, CertificatesLoaded)
    assert endpoint.setting == "endpoints[0].tls"
    assert endpoint.certificate == str(name_in(folder / "server.pem", "certificate"))
    assert isinstance(namespace, CertificatesLoaded)
    assert {each.at for each in watch.expiries()} == {NOW + DAY + YEAR}


async def test_files_that_can_not_be_used_are_reported_when_they_stay_so(
    folder: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A process may be writing the files at the first look."""
    seen = Seen()
    watch = watch_of(folder, seen)
    await nursery.start(watch.run)
    good = (folder / "server.key").read_text()
    (folder / "server.key").write_text("half")

    await trio.sleep(LOOK_EVERY + 1)
    first = seen.taken()
    await trio.sleep(LOOK_EVERY)
    (refused,) = seen.taken()
    await trio.sleep(10 * LOOK_EVERY)

    assert first == seen.taken() == []
    assert isinstance(refused, CertificatesRefused)
    assert refused.setting == "endpoints[0].tls.key"
    assert str(folder / "server.key") in refused.reason
    told = [each for each in watch.expiries() if each.refused]
    assert {each.at for each in told} == {NOW + YEAR}  # of the previous certificate
    assert len({problem.key for each in told for problem in expiry_problems(each)}) == 1

    (folder / "server.key").write_text(good)
    await trio.sleep(LOOK_EVERY + 1)
    assert [type(each) for each in seen.taken()] == [CertificatesLoaded]
    assert not any(each.refused for each in watch.expiries())


async def test_a_renewed_key_that_every_user_can_read_is_refused_and_the_previous_one_stays(
    folder: Path, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    seen = Seen()
    watch = watch_of(folder, seen)
    await nursery.start(watch.run)
    (folder / "server.key").chmod(0o644)

    await trio.sleep(2 * LOOK_EVERY + 1)
    (refused,) = seen.taken()

    assert isinstance(refused, CertificatesRefused)
    assert refused.setting == "endpoints[0].tls.key"
    assert "mode 0644" in refused.reason


def test_a_reload_reports_unusable_files_at_once(folder: Path) -> None:
    seen = Seen()
    watch = watch_of(folder, seen)
    (folder / "ca.pem").write_text("nothing")

    watch.check(is_final=True)

    assert {event.setting for event in seen.taken() if isinstance(event, CertificatesRefused)} == {
        "endpoints[0].tls.client_ca",
        "namespaces.here.tls.ca",
    }


@pytest.mark.parametrize(
    ("life", "warned"), [(365, [335, 358, 365]), (90, [68, 83, 90]), (4, [3, 4])]
)
def test_an_expiry_is_reported_30_and_7_days_before_and_when_it_has_passed(
    tmp_path: Path, life: int, warned: list[int]
) -> None:
    authority = Authority(tmp_path, "ca")
    authority.file.rename(tmp_path / "ca.pem")
    issued = authority.issue("server", begins=NOW, life=life * DAY)
    seen = Seen()
    watch = watch_of(tmp_path, seen)

    days = []
    for day in range(life + 3):
        seen.now = NOW + day * DAY
        watch.check()
        for event in seen.taken():
            assert isinstance(event, CertificateExpires)
            assert event.setting == "endpoints[0].tls.certificate"
            assert issued.hexadecimal in event.certificate
            days.append(day)

    assert days == warned
    [expiry] = [each for each in watch.expiries() if each.file == str(issued.certificate)]
    assert expiry.urgency == Urgency.EXPIRED
    assert "has expired" in next(expiry_problems(expiry)).text


def test_a_revocation_list_that_is_soon_out_of_date_is_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    authority.issue("server")
    listed = authority.revoke(life=8 * DAY)
    authority.file.rename(tmp_path / "ca.pem")
    seen = Seen(now=datetime.now(UTC))
    watch = watch_of(tmp_path, seen, crl=f', crl = "{listed}"')

    watch.check()
    early = seen.taken()
    seen.now += 5.5 * DAY
    watch.check()

    assert early == []
    [event] = seen.taken()
    assert isinstance(event, CertificateExpires)
    assert (event.setting, event.file) == ("endpoints[0].tls.crl", str(listed))
