"""A gateway listens where the command line or the environment says."""

import pytest

from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from tests.e2e.commands import run
from tests.e2e.installation import client
from tests.e2e.processes import KEY_VARIABLE, Gateways, broker_config

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


async def test_workers_listen_there_too(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config("orders"), name="broker")
    config = f"""
workers = 2
[namespaces.there]
url = "servicebus+http://RootManageSharedAccessKey@{broker.address}"
key = {{ env = "{KEY_VARIABLE}" }}
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""
    binds = [f"--bind=service-bus-http=127.0.0.1:{free_port()}" for _ in range(2)]

    gateway = await gateways.start(config, name="gateway", command=("serve", *binds))
    for port in gateway.ports:
        async with client(gateway, port) as sender:
            await sender.send(EntityPath("orders"), [Message(body=b"hello")])

    assert [f"--bind=service-bus-http=127.0.0.1:{port}" for port in gateway.ports] == binds
    async with client(broker) as namespace:
        assert (await namespace.inspect(EntityPath("orders"))).active == 2
