"""`pairgate send` through a gateway keeps what a message has besides its body."""

import json

import pytest

from tests.e2e.commands import run
from tests.e2e.processes import Gateways


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["service-bus-http", "amqp"])
async def test_a_gateway_keeps_types_and_sessions(protocol: str, gateways: Gateways) -> None:
    gateway = await gateways.start(
        '[namespaces.here]\nurl = "embedded:here.db"\nqueues = ["orders"]\n'
        f'[[endpoints]]\nprotocol = "{protocol}"\nbind = "127.0.0.1:0"\n'
    )
    gateway.config_file.write_text(gateway.config)
    options = ("--type", "json", "--property", "n:=5", "--session", "s1", "--schedule", "1h")

    code, output, errors = await run(gateway.folder, "send", "orders", "[1]", *options, "--json")
    await gateway.stop()
    _, seen, _ = await run(gateway.folder, "peek", "orders", "--json")

    assert (code, errors) == (0, "")
    assert json.loads(output)["through_gateway"]
    message = json.loads(seen)
    assert message["properties"] == {"n": 5}
    assert message["content_type"] == "application/json"
    assert message["session_id"] == "s1"
    assert message["scheduled"] is not None
