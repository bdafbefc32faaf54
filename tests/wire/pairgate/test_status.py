"""The status of a process as JSON."""

import json

import attrs
import pytest

from gateway.app.status.sections import SECTIONS
from gateway.domain.errors import MessageError
from gateway.domain.status.pair import (
    Cause,
    Waiting,
)
from gateway.domain.status.process import (
    Status,
)
from gateway.wire.pairgate.status import build_status, parse_status
from tests.wire.pairgate.status import OUTAGE, WELL


@pytest.mark.parametrize("status", [WELL, OUTAGE])
def test_a_built_status_is_read(status: Status) -> None:
    assert parse_status(build_status(status), SECTIONS) == status


def test_conclusions_from_the_figures_are_told() -> None:
    value = json.loads(build_status(OUTAGE))

    assert value["good"] is False
    assert value["problems"] == [
        "a drill is under way: namespace east, hang, by ann until 12:00:30 UTC: game day;"
        " `pairgate drill --end`",
        "namespace east hasn't been reached for 0:00:00: refused; check whether the namespace runs,"
        " and check its address, DNS and firewalls",
        "entities that are secondary: 1; check the primary: the table below and `namespaces` show"
        " its answers",
        "busy for longer than their failover interval: 1 entities, Orders for 0:01:30 (slow down);"
        " sends wait or fail: raise the limits of the primary, or set throttle_failover_after",
        "dead letters of the backlog: 2 EnvelopeMalformed, the oldest is 0:01:00 old;"
        " fix the cause, then run `pairgate redrive`",
        "dead letters of the spool: 1 EntityNotFound, the oldest is 0:00:30 old;"
        " fix the cause, then run `pairgate redrive --spool`",
        "syphon_stalled, 0:00:00 ago: pending 5; check the primary, and the events"
        " `syphon_backed_off` and `syphon_failed` in the log",
        "changed certificate files can't be used, and the previous ones stay in use: server.key:"
        " no key; correct the files",
        "endpoints[0].tls.certificate (CN=localhost, serial 1f, server.pem) expires at"
        " 2026-01-01T12:00:00Z; replace the file",
    ]
    assert [each["kind"] for each in value["problem_details"]][:2] == ["drill", "namespace-reach"]
    lines = ["; ".join((each["text"], each["remedy"])) for each in value["problem_details"]]
    assert lines == value["problems"]
    usage = value["namespaces"][0]["usage"]
    assert (usage["total"], usage["per_message"], usage["per_idle_day"]) == (63, 1.0, 1440.0)


def test_without_trouble_all_is_well() -> None:
    assert json.loads(build_status(WELL))["good"] is True


def test_keys_of_another_version_are_left_out() -> None:
    value = {**json.loads(build_status(WELL)), "new": {"er": 1}}

    assert parse_status(json.dumps(value).encode()) == WELL


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"at": 1}', b"\xff"])
def test_an_invalid_status_is_refused(text: bytes) -> None:
    with pytest.raises(MessageError):
        parse_status(text)


def test_the_cause_of_a_wait_is_read_as_it_was_written() -> None:
    assert OUTAGE.pair is not None
    waiting = Waiting(cause=Cause.GONE, name="misspelt", seconds=60.0, left=3540.0)
    syphon = attrs.evolve(OUTAGE.pair.syphon, waiting=(waiting,))
    troubled = attrs.evolve(OUTAGE, pair=attrs.evolve(OUTAGE.pair, syphon=syphon))

    assert parse_status(build_status(troubled), SECTIONS) == troubled
