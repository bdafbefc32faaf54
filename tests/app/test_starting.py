"""The files that `check` looks at before a start."""

from pathlib import Path

import pytest
import trio

from gateway.app.operations.findings import Findings, Grade
from gateway.app.starting import check_endpoints, check_files, check_issuers
from gateway.config.file import parse
from gateway.config.options import Config
from tests.harness.openid import OpenIdProvider, SigningKey

CONFIG = """
take_over = "var/take-over.sock"

[namespaces.here]
url = "memory:"
"""
ISSUER = """
[[issuers]]
name = "tests"
issuer = "https://login.example.net"
audiences = ["pairgate"]
"""


def found(folder: Path) -> list[tuple[str, Grade]]:
    findings = Findings()
    check_files(parse(CONFIG, source="test", folder=folder, environ={}).config, findings)
    return [(each.subject, each.grade) for each in findings.items]


def test_a_folder_for_the_take_over_socket_that_can_not_be_is_found(tmp_path: Path) -> None:
    assert found(tmp_path) == []

    (tmp_path / "var").write_text("a file")

    assert found(tmp_path) == [("take_over", Grade.BAD)]


def config_at(port: int, process: str = "serve") -> Config:
    text = (
        '[namespaces.here]\nurl = "memory:"\n'
        f'[[endpoints]]\nprotocol = "admin"\nprocess = "{process}"\nbind = "127.0.0.1:{port}"\n'
    )
    return parse(text, source="test", folder=Path(), environ={}).config


@pytest.mark.parametrize(
    ("process", "kind"), [("serve", "gateway"), ("syphon", "`pairgate syphon`")]
)
async def test_a_port_in_use_is_said_to_be_of_the_process_that_opens_the_endpoint(
    process: str, kind: str
) -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    config, findings = config_at(port, process), Findings()

    await check_endpoints(config, findings, port_offset=0, is_served=True)
    await listener.aclose()

    assert findings.items[-1].text == f"127.0.0.1:{port} is served by a running {kind}"


@pytest.mark.usefixtures("autojump_clock")
async def test_a_gateway_that_is_slow_to_answer_has_its_own_port(nursery: trio.Nursery) -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    config, findings = config_at(port), Findings()
    name = config.limits.http.server_name

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await trio.sleep(5.0)
        await stream.send_all(f"HTTP/1.1 200 OK\r\nServer: {name}\r\n\r\n".encode())
        await stream.aclose()

    nursery.start_soon(trio.serve_listeners, answer, [listener])

    await check_endpoints(config, findings, port_offset=0, is_served=False)

    assert findings.items[-1].text == f"127.0.0.1:{port} is served by a running gateway"
    nursery.cancel_scope.cancel()


async def test_a_faulty_identity_provider_is_found(tmp_path: Path) -> None:
    provider = OpenIdProvider("https://login.example.net", [SigningKey.make("one", "ES384")])
    (tmp_path / "keys.json").write_bytes(provider.jwks())

    async def found(*options: str) -> list[tuple[Grade, str]]:
        findings, text = Findings(), "\n".join((CONFIG, ISSUER, *options))
        await check_issuers(
            parse(text, source="test", folder=tmp_path, environ={}).config, findings
        )
        assert {each.subject for each in findings.items} == {"issuer tests"}
        return [(each.grade, each.text) for each in findings.items]

    good = (Grade.GOOD, "1 of its keys can verify tokens")
    assert await found('keys_file = "keys.json"') == [good]
    [(grade, text)] = await found('keys_file = "missing.json"')
    assert grade is Grade.BAD
    assert text.endswith("missing.json: No such file or directory")
    assert await found('keys_file = "keys.json"', 'algorithms = ["RS256"]') == [
        good,
        (Grade.BAD, "none of its keys is for one of the algorithms RS256, but for ES384"),
    ]
