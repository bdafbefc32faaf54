"""A probe asks the process alone, and reads nothing but endpoints of the configuration."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.probing import ask_readiness
from gateway.config.endpoints import Endpoint
from gateway.config.source import Source, endpoints_alone
from gateway.net.tls import TlsOptions, server_context
from tests.command_line import pairgate
from tests.harness.certificates import Authority

SERVING = b'{"reason": "serving"}'


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@contextmanager
def answering(
    text: bytes, path: Path | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server that answers one request; yields its address."""
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        address = f"unix:{path}"

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                stream = tls.wrap_socket(connection, server_side=True) if tls else connection
            except OSError:  # the client doesn't trust it
                return
            with stream:
                assert stream.recv(65536).startswith(b"GET /readyz HTTP/1.1\r\n")
                stream.sendall(text)

    thread = Thread(target=serve)
    thread.start()
    with listener:
        try:
            yield address
        finally:
            thread.join()


def admin(address: str, tls: TlsOptions | None = None) -> Endpoint:
    return Endpoint(protocol="admin", bind=address, tls=tls)


def test_the_first_endpoint_that_listens_is_asked() -> None:
    with answering(answer(SERVING)) as address:
        rest = Endpoint(protocol="service-bus-http", bind=address)
        asked, found = ask_readiness([rest, admin("127.0.0.1:1"), admin(address)], AdminChoice())

    assert (asked, found.is_ready) == (address, True)


def test_a_process_that_starts_is_not_ready() -> None:
    with answering(answer(b'{"reason": "starting"}')) as address:
        _, found = ask_readiness([], AdminChoice(url=f"http://{address}"))

    assert (found.is_ready, found.reason) == (False, "starting")


def test_a_unix_socket_is_asked_too(tmp_path: Path) -> None:
    with answering(answer(SERVING), tmp_path / "admin") as address:
        asked, found = ask_readiness([admin(address)], AdminChoice())

    assert (asked, found.is_ready) == (address, True)


def test_the_certificate_of_the_endpoint_is_trusted_and_no_other(tmp_path: Path) -> None:
    issued = [Authority(tmp_path / name).issue("localhost") for name in ("one", "other")]
    own, other = (TlsOptions(certificate=each.certificate, key=each.key) for each in issued)
    with answering(answer(SERVING), tls=server_context(own)) as address:
        _, found = ask_readiness([admin(address, own)], AdminChoice())
    with (
        answering(answer(SERVING), tls=server_context(other)) as address,
        pytest.raises(Failure, match="TLS: certificate verify failed") as caught,
    ):
        ask_readiness([admin(address, own)], AdminChoice())

    assert found.is_ready
    assert caught.value.code is ExitCode.FAILED


def test_no_process_is_a_temporary_failure() -> None:
    for endpoints, choice in (
        ([admin("127.0.0.1:1")], AdminChoice()),
        ([], AdminChoice(url="http://127.0.0.1:1")),
    ):
        with pytest.raises(Failure, match=r"127\.0\.0\.1:1") as caught:
            ask_readiness(endpoints, choice)

        assert caught.value.code is ExitCode.TEMPORARY


@pytest.mark.parametrize("text", [answer(b"[]"), answer(b"hello"), answer(b"[" * 60_000)])
def test_another_server_is_no_endpoint_admin(text: bytes) -> None:
    with answering(text) as address, pytest.raises(Failure, match="this isn't an endpoint"):
        ask_readiness([admin(address)], AdminChoice())


def test_an_answer_that_is_not_http_is_a_temporary_failure() -> None:
    with answering(b"AMQP\0\1\0\0") as address, pytest.raises(Failure) as caught:
        ask_readiness([admin(address)], AdminChoice())

    assert caught.value.code is ExitCode.TEMPORARY


def test_a_probe_of_another_process_asks_that_ones_endpoint() -> None:
    with answering(answer(SERVING)) as address:
        syphon = Endpoint(protocol="admin", bind=address, process="syphon")
        of_clients = Endpoint(protocol="service-bus", bind="127.0.0.1:0")
        with pytest.raises(Failure, match="no `admin` endpoint"):
            ask_readiness([of_clients, syphon], AdminChoice())
        asked, _ = ask_readiness([syphon], AdminChoice(process="syphon"))

    assert asked == address


def test_a_mistake_elsewhere_in_the_file_fails_no_probe(tmp_path: Path) -> None:
    """The process has read the file before that: it must not be restarted for an edit."""
    file = tmp_path / "pairgate.toml"
    with answering(answer(SERVING), tmp_path / "admin"):
        file.write_text('bogus = 1\n[[endpoints]]\nprotocol = "admin"\nbind = "unix:admin"\n')
        result = pairgate("status", "--ready", "--json", "--config", file)

    assert result.exit_code == 0, result.output
    assert f'"gateway": "unix:{tmp_path}/admin"' in result.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("endpoints = 1", "endpoints: a list expected"),
        ('[[endpoints]]\nprotocol = "admin"', "endpoints[0].bind: is missing"),
        ('[[endpoints]]\nprotocol = "adm"\nbind = "127.0.0.1:1"', "did you mean"),
        ("[[endpoints", "Expected"),
    ],
)
def test_a_mistake_among_the_endpoints_is_named(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text(text)

    result = pairgate("status", "--ready", "--config", file)

    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_addresses_of_the_environment_count_for_a_probe() -> None:
    source = Source('[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:1"', "x", Path("/"))

    found = endpoints_alone(source, {"PAIRGATE_BIND": "admin=127.0.0.1:2"})

    assert [each.bind for each in found or ()] == ["127.0.0.1:2"]
