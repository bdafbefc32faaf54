"""`pairgate listen` finds a gateway on the same machine, and uses it sparingly."""

from pathlib import Path

import attrs
import pytest
import trio

from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.servicebus.broker import ServiceBusRestOptions
from gateway.config.file import parse
from gateway.listening.options import ListenerOptions
from gateway.listening.process.handlers import HandlerChoice
from gateway.listening.process.process import MOST_POLLS, ProcessOptions, find_gateway

WANTED = ProcessOptions(
    queues="orders", handler=HandlerChoice(command="true"), options=ListenerOptions()
)


async def test_a_process_with_many_queues_leaves_connections_of_its_gateway_to_others() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        text = f"""
[namespaces.here]
url = "memory:"
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:{port}"
"""
        config = parse(text, source="x.toml", folder=Path("/nowhere"), environ={}).config
        gateway = await find_gateway(config, WANTED)

    assert gateway is not None
    assert isinstance(gateway.options, ServiceBusRestOptions)
    assert gateway.options.max_polls == MOST_POLLS


@pytest.mark.parametrize(
    ("queues", "kind"),
    [(MOST_POLLS, ServiceBusRestOptions), (MOST_POLLS + 1, ServiceBusOptions)],
)
async def test_more_queues_than_receives_may_wait_over_rest_are_received_from_over_amqp(
    queues: int, kind: type
) -> None:
    [rest] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    [amqp] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with rest, amqp:
        text = f"""
[namespaces.here]
url = "memory:"
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:{rest.socket.getsockname()[1]}"
[[endpoints]]
protocol = "amqp"
bind = "127.0.0.1:{amqp.socket.getsockname()[1]}"
"""
        config = parse(text, source="x.toml", folder=Path("/nowhere"), environ={}).config
        names = " ".join(f"orders-{number}" for number in range(queues))
        gateway = await find_gateway(config, attrs.evolve(WANTED, queues=names))

    assert gateway is not None
    assert isinstance(gateway.options, kind)
