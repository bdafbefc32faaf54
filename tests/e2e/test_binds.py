"""A gateway listens where the command line or the environment says."""

import pytest

from gateway.demo.ports import free_port
from tests.e2e.processes import Gateways, broker_config
from tests.e2e.test_remote_admin import run

pytestmark = pytest.mark.slow


async def test_a_gateway_listens_where_the_command_line_says(gateways: Gateways) -> None:
    rest, admin = free_port(), free_port()
    binds = (f"--bind=service-bus-http=127.0.0.1:{rest}", f"--bind=admin=127.0.0.1:{admin}")

    gateway = await gateways.start(broker_config("orders"), command=("serve", *binds))
    sent = await run(gateway.folder, "status", "--url", f"http://127.0.0.1:{admin}")

    assert gateway.ports == [rest, admin]
    assert sent[0] == 0, sent


async def test_commands_find_the_gateway_that_the_environment_has_moved(
    gateways: Gateways,
) -> None:
    variables = {"PAIRGATE_BIND": f"service-bus-http=127.0.0.1:{free_port()}"}
    gateways.environments["moved"] = variables

    gateway = await gateways.start(broker_config("orders"), name="moved")
    sent = await run(gateway.folder, "send", "orders", "hello", **variables)
    lost = await run(gateway.folder, "send", "orders", "hello")

    assert sent[0] == 0, sent
    assert f"accepted by the gateway at {gateway.address}" in sent[1]
    assert lost[0] == 75
