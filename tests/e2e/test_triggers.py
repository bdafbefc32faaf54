"""Listeners in other processes get triggers: over a topic, and from several gateways."""

import random
from itertools import takewhile
from typing import Final

import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.backlog import queue_name
from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message
from gateway.domain.topics.topology import TopicProperties
from gateway.ports import Broker
from tests.e2e.commands import ADMIN, pairgate
from tests.e2e.installation import client
from tests.e2e.listen import NOTE, ORDERS, noted, until_noted
from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, Gateways, broker_config, pair_config
from tests.harness.chaos_proxy import ChaosProxy, Refuse
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

TOPIC: Final = '\n[triggers]\ntopic = "pairgate-triggers"\n'
BACKLOG: Final = tuple(queue_name("east", index).name for index in range(2))
# The listener polls for a second, finds nothing, and stops: then only a trigger wakes it.
SOON_IDLE: Final = '\n[listener]\nidle_max = "1s"\n'

UNSWEPT: Final = f'{SOON_IDLE}sweep = "off"\n'


def before(store: GatewayProcess, *parts: str) -> str:
    """The configuration of a process whose namespace is in another process."""
    return f"""
logging = {{ level = "debug" }}

[namespaces.here]
url = "servicebus+http://RootManageSharedAccessKey@{store.address}"
key = {{ env = "{KEY_VARIABLE}" }}
receive_poll = "1s"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
{"".join(parts)}"""


async def until_idle(listener: GatewayProcess) -> None:
    """Return when no task is left that polls for messages."""
    await listener.seen("tasks_ended", tasks=0)


def is_idle_since(listener: GatewayProcess, event: str) -> bool:
    """True if the listener has told that it polls no more after it has last told of that event."""
    since = takewhile(lambda line: line["event"] != event, reversed(listener.log))
    return any(line["event"] == "tasks_ended" and line["tasks"] == 0 for line in since)


async def idle_listener(gateways: Gateways, config: str, *options: str) -> GatewayProcess:
    """
    Start a listener of `orders` in the namespace `here`, and wait until it has found nothing there.
    """
    command = ("listen", "orders", "--namespace", "here", *options, *NOTE)
    listener = await gateways.start(config, name="listener", command=command)
    await until_idle(listener)
    return listener


async def wake(broker: Broker, listener: GatewayProcess, text: str) -> None:
    """Send to the idle queue; return when the handler has the message."""
    before = len(noted(listener))
    await broker.send(ORDERS, [Message(message_id=text, body=text.encode())])
    await until_noted(before + 1, listener)


async def test_a_message_through_a_gateway_wakes_a_listener_over_a_topic(
    gateways: Gateways,
) -> None:
    store = await gateways.start(broker_config("orders") + TOPIC, name="store")
    listener = await idle_listener(gateways, before(store, TOPIC, SOON_IDLE))
    await listener.seen("triggers_regained", gateway="topic pairgate-triggers")
    async with client(store) as broker:
        await wake(broker, listener, "one")
        subscriptions = await broker.list_subscriptions(EntityPath("pairgate-triggers"))
        code = await listener.stop()
        left = await broker.list_subscriptions(EntityPath("pairgate-triggers"))

    assert (code, noted(listener)) == (0, ["one"])
    assert (len(subscriptions), len(left)) == (1, 0)
    assert listener.count("triggers_lost") == 0


async def test_a_listener_through_a_gateway_reads_the_topic_through_it_too(
    gateways: Gateways,
) -> None:
    store = await gateways.start(broker_config("orders") + TOPIC, name="store")
    listener = await gateways.start(
        store.config, name="listener", command=("listen", "orders", *NOTE)
    )
    await listener.seen("triggers_regained", gateway="topic pairgate-triggers")
    async with client(store) as broker:
        await wake(broker, listener, "one")
        subscriptions = await broker.list_subscriptions(EntityPath("pairgate-triggers"))
    code = await listener.stop()

    assert (code, noted(listener)) == (0, ["one"])
    assert len(subscriptions) == 1
    assert listener.count("triggers_lost") == 0


async def test_a_message_by_one_gateway_wakes_the_listeners_of_another_over_the_topic(
    gateways: Gateways,
) -> None:
    store = await gateways.start(broker_config("orders", "pairgate") + TOPIC, name="store")
    first = await gateways.start(before(store, TOPIC), name="first")
    second = await gateways.start(before(store, TOPIC), name="second")
    command = ("listen", "orders", "--namespace", "there", *NOTE)
    there = before(second, TOPIC, SOON_IDLE).replace("namespaces.here", "namespaces.there")
    listener = await gateways.start(there, name="listener", command=command)
    await listener.seen("triggers_regained")
    await until_idle(listener)
    async with client(first) as broker:
        await wake(broker, listener, "one")
        code = await listener.stop()

    assert (code, noted(listener)) == (0, ["one"])


async def test_a_listener_over_a_topic_polls_while_its_keeper_is_down_and_hears_of_it_again(
    gateways: Gateways,
) -> None:
    store = await gateways.start(broker_config("orders") + TOPIC, name="store")
    listener = await idle_listener(gateways, before(store, TOPIC, SOON_IDLE))
    await store.kill()
    await listener.seen("triggers_lost")
    await store.start()
    await listener.until(lambda: listener.count("triggers_regained") == 2)
    await listener.until(lambda: is_idle_since(listener, "triggers_regained"))
    async with client(store) as broker:
        await wake(broker, listener, "one")
        code = await listener.stop()

    assert (code, noted(listener)) == (0, ["one"])


async def test_people_tell_the_listeners_over_a_topic_what_went_past_the_gateway(
    gateways: Gateways,
) -> None:
    store = await gateways.start(broker_config("orders"), name="store")  # it announces nothing
    async with client(store) as broker:
        await broker.create_topic(EntityPath("pairgate-triggers"), TopicProperties())
    gateway = await gateways.start(before(store, TOPIC, ADMIN), name="gateway")
    listener = await idle_listener(gateways, before(store, TOPIC, SOON_IDLE))
    await listener.seen("triggers_regained", gateway="topic pairgate-triggers")
    async with client(store) as broker:
        await broker.send(ORDERS, [Message(message_id="past", body=b"past")])
    unheard = noted(listener)
    gateway.config_file.write_text(gateway.config)  # with the port that it got
    code, output, errors = await pairgate(gateway, "trigger", "orders")
    await until_noted(1, listener)
    ended = await listener.stop()

    assert (code, errors) == (0, "")
    assert "orders" in output
    assert unheard == []
    assert (ended, noted(listener)) == (0, ["past"])


async def test_a_message_that_a_syphon_of_its_own_brings_back_wakes_listeners_over_the_topic(
    gateways: Gateways,
) -> None:
    primary = await gateways.start(broker_config("orders") + TOPIC, name="primary")
    secondary = await gateways.start(broker_config(*BACKLOG), name="secondary")
    pair = pair_config(
        primary.address, secondary.address, enable_syphon=False, backlog_queues=len(BACKLOG)
    )
    gateway = await gateways.start(pair, name="gateway")
    await primary.kill()
    async with client(gateway) as broker:
        assert (
            await send_accepted_by(broker, ORDERS, [Message(message_id="one", body=b"one")])
            is AcceptedBy.BACKLOG
        )
    await primary.start()
    listener = await idle_listener(gateways, before(primary, TOPIC, SOON_IDLE))
    syphon = await gateways.start(pair + TOPIC, name="syphon", command=("syphon",))
    await until_noted(1, listener)
    codes = [await process.stop() for process in (syphon, listener)]

    assert codes == [0, 0]
    assert noted(listener) == ["one"]


@pytest.mark.parametrize("command", ["serve", "syphon"])
async def test_a_syphon_announces_what_it_moves_to_a_namespace_that_announces_nothing(
    gateways: Gateways, command: str, nursery: trio.Nursery
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(*BACKLOG), name="secondary")
    async with client(primary) as broker:
        await broker.create_topic(EntityPath("pairgate-triggers"), TopicProperties())
    proxy = ChaosProxy("127.0.0.1", primary.port, rng=random.Random(1))
    await nursery.start(proxy.serve)
    blocked = pair_config(
        f"127.0.0.1:{proxy.port}",
        secondary.address,
        enable_syphon=False,
        backlog_queues=len(BACKLOG),
    )
    moving = pair_config(primary.address, secondary.address, backlog_queues=len(BACKLOG)) + TOPIC
    producer = await gateways.start(blocked, name="producer")
    listener = await idle_listener(gateways, before(primary, TOPIC, UNSWEPT))
    await listener.seen("triggers_regained", gateway="topic pairgate-triggers")
    ended = listener.count("tasks_ended", tasks=0)
    # The gateway wakes all listeners at its start.
    await gateways.start(moving, name="mover", command=(command,))
    await listener.until(lambda: listener.count("tasks_ended", tasks=0) > ended)
    proxy.fault = Refuse()  # after the producer has asked its primary for its identity
    proxy.reset_all()
    async with client(producer) as broker:
        assert (
            await send_accepted_by(broker, ORDERS, [Message(message_id="one", body=b"one")])
            is AcceptedBy.BACKLOG
        )
    await until_noted(1, listener)
    nursery.cancel_scope.cancel()

    assert noted(listener) == ["one"]


async def test_an_idle_listener_finds_what_nobody_announces_by_its_sweep_and_check_says_so(
    gateways: Gateways,
) -> None:
    store = await gateways.start(broker_config("orders"), name="store")  # it announces nothing
    async with client(store) as broker:
        await broker.create_topic(EntityPath("pairgate-triggers"), TopicProperties())
    swept = SOON_IDLE + 'sweep = "2s"\n'
    listener = await idle_listener(gateways, before(store, TOPIC, swept))
    await listener.seen("triggers_regained", gateway="topic pairgate-triggers")
    async with client(store) as broker:
        await wake(broker, listener, "past")
    _, checked, _ = await pairgate(listener, "check")

    assert noted(listener) == ["past"]
    assert "not every sender is known to send triggers" in checked
    assert "an idle listener polls every 2 s" in checked


async def test_a_listener_may_follow_several_gateways(gateways: Gateways) -> None:
    store = await gateways.start(broker_config("orders"), name="store")
    several = [await gateways.start(before(store, ADMIN), name=name) for name in ("a", "b")]
    urls = [f"http://127.0.0.1:{gateway.ports[1]}" for gateway in several]
    options = [part for url in urls for part in ("--triggers", url)]
    listener = await idle_listener(gateways, before(store, SOON_IDLE), *options)
    for gateway, text in zip(several, ("one", "two"), strict=True):
        ended = listener.count("tasks_ended", tasks=0)
        async with client(gateway) as broker:
            await wake(broker, listener, text)
        with trio.fail_after(PATIENCE):
            await listener.until(lambda: listener.count("tasks_ended", tasks=0) > ended)  # noqa: B023
    await several[0].kill()
    await listener.seen("triggers_lost", gateway=urls[0].removeprefix("http://"))
    async with client(several[1]) as broker:
        await wake(broker, listener, "three")
    code = await listener.stop()

    assert (code, noted(listener)) == (0, ["one", "two", "three"])
