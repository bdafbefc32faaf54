"""Files: certificates that are untrusted, expire or are replaced; stores of other versions."""

import json
import signal
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.net.certs import write_certificates
from gateway.net.tls import ClientTlsOptions, client_context
from gateway.store.embedded.tables import VERSION
from tests.e2e.commands import ADMIN, pairgate, with_fixed_port
from tests.e2e.installation import LABEL, client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import request, send, take
from tests.harness.certificates import DAY, Authority, Issued, now
from tests.harness.patience import PATIENCE
from tests.harness.wall_clock import WallClock
from tests.store.embedded.crashes import content
from tests.store.embedded.migration import make_store_1
from tests.store.embedded.stores import opened

pytestmark = pytest.mark.slow

TWO_YEARS = 2 * 365 * 86400.0  # seconds; certificates of ours are good for one
TLS = '\ntls = { certificate = "tls/server.pem", key = "tls/server.key" }\n'


def served_with_tls(gateways: Gateways) -> GatewayProcess:
    """The primary, not started yet, with TLS beside plain connections; its files are missing."""
    config = broker_config("orders").replace('"service-bus-http"', '"service-bus"') + TLS
    return gateways.prepare(config, name="primary")


def pair_over_tls(primary: GatewayProcess, secondary: GatewayProcess, tls: str) -> str:
    """The configuration of a gateway that reaches its primary over TLS with these settings."""
    where = f"localhost:{primary.port}", secondary.address
    config = pair_config(*where, backlog_queues=1)
    config = config.replace("servicebus+http:", "servicebus+https:", 1)
    return config.replace("[namespaces.secondary]", f"tls = {{ {tls} }}\n\n[namespaces.secondary]")


@attrs.define
class Authorities:
    """The gateway trusts certificates of `known` alone."""

    known: Authority
    unknown: Authority

    def for_another_host(self) -> Issued:
        return self.known.issue("server", hosts=["a.example.net"])

    def of_the_unknown_authority(self) -> Issued:
        return self.unknown.issue("server")

    def expired(self) -> Issued:
        return self.known.issue("server", begins=now() - 20 * DAY, life=10 * DAY)

    def revoked(self) -> Issued:
        issued = self.known.issue("server")
        self.known.revoke(issued)
        return issued


@pytest.mark.parametrize(
    ("issue", "reason"),
    [
        (Authorities.for_another_host, "not valid for 'localhost'; it is for a.example.net"),
        (Authorities.of_the_unknown_authority, "unable to get local issuer certificate (ca: "),
        (Authorities.expired, "certificate has expired"),
        (Authorities.revoked, "certificate revoked (crl: "),
    ],
    ids=["another-host", "unknown-authority", "expired", "revoked"],
)
async def test_an_untrusted_certificate_of_the_primary_is_named_wherever_its_error_shows(
    gateways: Gateways, issue: Callable[[Authorities], Issued], reason: str
) -> None:
    """Sends fail as not sent, without a failover, until the certificate is replaced."""
    primary = served_with_tls(gateways)
    folder = primary.folder / "tls"
    authorities = Authorities(Authority(folder), Authority(folder, "unknown"))
    lists = authorities.known.revoke()
    shown = issue(authorities)
    await primary.start()
    secondary = await gateways.start(broker_config(), name="secondary")
    tls = f'ca = "{authorities.known.file}", crl = "{lists}"'
    gateway = await gateways.start(pair_over_tls(primary, secondary, tls) + ADMIN, name="gateway")
    await with_fixed_port(gateway)

    status, headers, error = await request(gateway.address, "POST", "/orders/messages", b"one")
    assert (status, headers.get("x-pairgate-outcome")) == (502, "not-sent")
    lost = await gateway.seen("namespace_lost", namespace="primary")
    failed = await gateway.seen("send_failed", entity="orders", outcome="not-sent")
    _, told, _ = await pairgate(gateway, "status", "--json")
    problems = json.loads(told)["problems"]
    _, checked, _ = await pairgate(gateway, "check")
    authorities.known.issue("server")
    mended = await send(gateway.address, "orders", b"two")

    about_primary = [line for line in problems if "namespace primary" in line]
    bad = [line for line in checked.splitlines() if line.startswith("bad ")]
    assert [line.split(":")[0] for line in bad] == ["bad     namespace primary"]
    named = f"localhost:{primary.port}: TLS: the server's certificate (CN=server, serial "
    named += f"{shown.hexadecimal}, valid until "
    for text in (error.decode(), lost["reason"], failed["reason"], *about_primary, *bad):
        assert named in text
        assert reason in text
    assert len(about_primary) == 1
    assert mended == (201, "primary")
    assert await take(primary.address, "orders") == b"two"
    assert gateway.count("entity_state_changed") == 0


async def test_a_certificate_that_expires_is_a_mistake_and_no_outage(
    gateways: Gateways, tmp_path: Path
) -> None:
    """Years have passed by the gateway's clock, and none by the primary's."""
    clock = WallClock(tmp_path / "clock")
    gateways.environments["gateway"] = clock.environment
    primary = served_with_tls(gateways)
    write_certificates(primary.folder / "tls", now=datetime.now(UTC))
    await primary.start()
    secondary = await gateways.start(broker_config(), name="secondary")
    async with client(secondary) as broker:
        await broker.create_queue(backlog.queue_name(LABEL, 0), backlog.QUEUE_PROPERTIES)
    config = pair_over_tls(primary, secondary, f'ca = "{primary.folder}/tls/ca.pem"')
    gateway = await gateways.start(config, name="gateway")

    told = [await send(gateway.address, "orders", b"in time")]
    await clock.step(TWO_YEARS)
    await primary.kill()  # so that the next connection shows the certificate
    await primary.start()
    told.append(await send(gateway.address, "orders", b"expired"))
    await clock.step(0.0)
    told.append(await send(gateway.address, "orders", b"good again"))

    assert told[0] == told[2] == (201, "primary")
    assert told[1][0] >= 400
    assert gateway.count("entity_state_changed", after="secondary") == 0
    arrived = [await take(primary.address, "orders") for _ in range(2)]
    assert arrived == [b"in time", b"good again"]


async def test_a_certificate_that_changes_on_the_disk_is_shown_to_the_next_client(
    gateways: Gateways,
) -> None:
    """Both ends show certificates, in a folder that is exchanged by a link as in Kubernetes."""
    broker = gateways.prepare(
        broker_config("orders")
        + '\ntls = { certificate = "tls/server.pem", key = "tls/server.key",'
        + ' client_ca = "tls/tests-ca.pem", crl = "tls/tests-crl.pem" }\n',
        name="broker",
    )
    old, new = Authority(broker.folder / "old"), Authority(broker.folder / "new")
    shown = [(each.issue("server"), each.issue("client"), each.revoke()) for each in (old, new)]
    (broker.folder / "tls").symlink_to("old")
    contexts = [
        client_context(
            ClientTlsOptions(ca=each.file, certificate=client.certificate, key=client.key)
        )
        for each, (_, client, _) in zip((old, new), shown, strict=True)
    ]
    await broker.start()
    async with await connected(broker, contexts[0]) as kept:
        assert await answers(kept)
        broken = broker.folder / "broken"
        broken.mkdir()
        await exchange(broker, "broken")
        refused = await broker.seen("certificates_refused")
        assert await trusts(contexts[0], broker)
        await exchange(broker, "new")
        loaded = await broker.seen("certificates_loaded")
        meanwhile = [await trusts(each, broker) for each in contexts]
        assert await answers(kept)
    assert refused["setting"] == "endpoints[0].tls.certificate"
    assert "broken" not in refused["reason"]
    assert "tls/server.pem: No such file" in refused["reason"]
    assert shown[1][0].hexadecimal in loaded["certificate"]
    assert meanwhile == [False, True]

    new.revoke(shown[1][1])
    assert not await trusts(contexts[1], broker)
    told = await broker.seen("credentials_refused", reason="revoked")
    assert told["name"] == "CN=client"


async def exchange(process: GatewayProcess, target: str) -> None:
    """
    Let the link `tls` lead to another folder, in one step, and let the process check it at once.
    """
    link = process.folder / "link"
    link.symlink_to(target)
    link.rename(process.folder / "tls")
    process.signal(signal.SIGHUP)
    await trio.lowlevel.checkpoint()


async def connected(process: GatewayProcess, context: ssl.SSLContext) -> trio.SSLStream:
    return await trio.open_ssl_over_tcp_stream(
        "localhost", process.port, ssl_context=context, https_compatible=True
    )


async def answers(stream: trio.SSLStream) -> bool:
    """True if the server answers a request; its answer is an error, as the request has no key."""
    with trio.fail_after(PATIENCE):
        await stream.send_all(b"POST /orders/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return (await stream.receive_some()).startswith(b"HTTP/1.1 40")
        except trio.BrokenResourceError:
            return False


async def trusts(context: ssl.SSLContext, process: GatewayProcess) -> bool:
    """True if the TLS client and the server accept each other's certificates."""
    stream = await connected(process, context)
    try:
        return await answers(stream)
    except trio.BrokenResourceError:
        return False
    finally:
        await trio.aclose_forcefully(stream)


async def test_a_store_of_an_earlier_version_is_served(gateways: Gateways) -> None:
    broker = gateways.prepare(broker_config("orders"))
    broker.folder.mkdir()
    make_store_1(broker.folder / "broker.db")

    await broker.start()

    assert await take(broker.address, "orders") == b""
    assert await send(broker.address, "orders", b"new") == (201, "primary")


async def test_a_store_of_a_later_version_is_refused_and_left_as_it_is(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"))
    await send(broker.address, "orders", b"kept")
    await broker.stop()
    with opened(broker.folder / "broker.db") as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = store_of(broker)

    await broker.start(wait=False)

    assert await broker.wait() == 1
    assert "version" in " ".join(broker.garbage)
    assert store_of(broker) == before


async def test_a_folder_that_is_none_is_named_at_the_start(gateways: Gateways) -> None:
    broker = gateways.prepare(broker_config(url="embedded:file/broker.db"))
    broker.folder.mkdir(parents=True, exist_ok=True)
    (broker.folder / "file").write_text("")

    await broker.start(wait=False)

    assert await broker.wait() == 1
    assert "/file: " in " ".join(broker.garbage)


def store_of(broker: GatewayProcess) -> dict[str, bytes]:
    files = content(broker.folder)
    return {name: data for name, data in files.items() if name.startswith("broker.db")}
