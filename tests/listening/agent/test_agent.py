"""
`pairgate agent`: the configurations that it refuses at the start, and the arguments of its
processes.
"""

from pathlib import Path

import pytest
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.runtime import Runtime, Silence
from gateway.config.file import Loaded, parse
from gateway.listening.agent.agent import AgentOptions, run_agent
from gateway.listening.agent.worker_process import start_listener
from tests.harness.patience import PATIENCE

HERE = '[namespaces.here]\nurl = "memory:"\n'
ADMIN = '[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:9640"\n'
ORDERS = '[[agent.listeners]]\nqueues = "orders"\nto = "http://127.0.0.1:8080/"\n'
SENDER = '[[access]]\nname = "sender"\nkey = { env = "KEY" }\nrights = ["Send"]\n'


def read(text: str) -> Loaded:
    environ = {"KEY": "a key of sixteen"}
    return parse(HERE + text, source="x.toml", folder=Path("/nowhere"), environ=environ)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ADMIN, "x.toml: add [[agent.listeners]]"),
        (ADMIN + ORDERS + 'rule = "nowhere:rule"', "agent.listeners[0].rule nowhere:rule: No mod"),
        (ADMIN + ORDERS + 'rule = "rule"', "agent.listeners[0].rule: MODULE:FUNCTION expected"),
        (ADMIN + SENDER + ORDERS, "no [[access]] with a key has the right Listen"),
        ('[agent]\ngateway = "elsewhere:9640"\n' + ORDERS, "agent.gateway: http(s)://HOST[:PORT]"),
    ],
)
async def test_a_configuration_that_can_never_work_is_refused_at_once(
    text: str, reason: str
) -> None:
    with pytest.raises(Failure) as caught:
        await run_agent(read(text), Runtime(), AgentOptions())

    assert str(caught.value).startswith(reason)
    assert caught.value.code is ExitCode.WRONG


async def test_a_process_that_can_not_work_tells_its_exit_code() -> None:
    process = await start_listener(["--no-such-option"], Silence())

    with trio.fail_after(PATIENCE):
        assert await process.wait() == ExitCode.WRONG


async def test_without_a_gateway_a_process_never_goes_straight_in(tmp_path: Path) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    config = tmp_path / "pairgate.toml"
    config.write_text(
        f'[namespaces.here]\nurl = "embedded:store.db"\n'
        f'[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:{port}"\n'
    )
    arguments = [f"--config={config}", "--through-gateway", "--exec=true", "--", "orders"]
    process = await start_listener(arguments, Silence())

    with trio.fail_after(PATIENCE):
        assert await process.wait() == ExitCode.TEMPORARY
    assert not (tmp_path / "store.db").exists()
