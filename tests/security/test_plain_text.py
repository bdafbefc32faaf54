"""Plain text gets an answer and nothing else where TLS is required; TLS is served."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from gateway.net.certs import write_certificates
from gateway.net.tls import ClientTlsOptions, client_context
from tests.e2e.processes import Gateways
from tests.harness.patience import PATIENCE
from tests.security.gateway import PROTOCOLS, ask, every_port, head, port_of, status, token

AMQP = b"AMQP\x00\x01\x00\x00"
SASL = b"AMQP\x03\x01\x00\x00"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder, now=datetime.now(UTC))
    return folder


def tls(folder: Path, more: str = "") -> str:
    return f'tls = {{ certificate = "{folder}/server.pem", key = "{folder}/server.key"{more} }}'


def request_for(protocol: str, port: int) -> tuple[bytes, int]:
    """A request that a port over HTTP answers, and its status."""
    if protocol == "storage-queue":
        return head("GET", "/devstoreaccount1?comp=list", ("Host", "localhost")), 403
    target = "/livez" if protocol == "admin" else "/$Resources/queues"
    fields = [("Host", "localhost"), ("Authorization", token(port))]
    return head("GET", target, *fields), 200


async def asked_in_tls(port: int, data: bytes, context: ssl.SSLContext) -> bytes:
    with trio.fail_after(PATIENCE):
        stream = await trio.open_ssl_over_tcp_stream(
            "localhost", port, ssl_context=context, https_compatible=True
        )
        await stream.send_all(data)
        answer = bytes(await stream.receive_some())
        await trio.aclose_forcefully(stream)
    return answer


async def test_where_tls_is_required_nothing_else_is_served(
    gateways: Gateways, certificates: Path
) -> None:
    gateway = await gateways.start(every_port(tls(certificates, ", required = true")))
    context = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))

    for protocol in PROTOCOLS:
        port = port_of(gateway, protocol)
        request, expected = request_for(protocol, port)
        plain = await ask(port, request)
        assert status(plain) == 400
        assert b"use https" in plain
        for header in (AMQP, SASL):
            assert await ask(port, header, enough=8) == b"AMQP\x02\x01\x00\x00"
        if protocol == "amqp":
            assert (await asked_in_tls(port, SASL, context)).startswith(SASL)
        else:
            assert status(await asked_in_tls(port, request, context)) == expected


async def test_where_tls_is_not_required_both_are_served(
    gateways: Gateways, certificates: Path
) -> None:
    gateway = await gateways.start(every_port(tls(certificates, ", required = false")))
    context = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))

    for protocol in PROTOCOLS:
        port = port_of(gateway, protocol)
        request, expected = request_for(protocol, port)
        if protocol == "amqp":
            assert (await ask(port, SASL, enough=8)).startswith(SASL)
            assert (await asked_in_tls(port, SASL, context)).startswith(SASL)
        else:
            assert status(await ask(port, request)) == expected
            assert status(await asked_in_tls(port, request, context)) == expected
