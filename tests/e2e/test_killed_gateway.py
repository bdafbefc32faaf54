"""
The gateway of consumers that receive in an outage is killed and started again: their messages come
again after their locks, and none is completed twice but for unknown outcomes.

    sender ──▶ gateway ──────────┬─▶ primary, which is away
    consumers ─▶ gateway, killed ┴─▶ secondary
"""

import re
import signal
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Final

import attrs
import pytest
import trio

from gateway.domain.backlog import QUEUE_PROPERTIES, own_queue
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Complete, Delivery
from gateway.ports import Broker, Receiver
from tests.e2e.installation import client
from tests.e2e.processes import IMPATIENT, GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

ORDERS: Final = EntityPath("orders")
OWN: Final = own_queue("east", ORDERS)
LOCK: Final = timedelta(seconds=5)  # the shortest
RECEIVERS: Final = 3
PAGE: Final = 5  # messages in the hands of each
WORK: Final = 0.05  # seconds for a message: the sender is faster
SOME: Final = 60  # messages
REST_URL: Final = re.compile(r"servicebus\+http://(\w+)@([0-9.:]+)")
AMQP_URL: Final = r"servicebus:Endpoint=sb://\2/;SharedAccessKeyName=\1;UseDevelopmentEmulator=true"


@attrs.define(eq=False)
class Sender:
    """Sends numbers until it is cancelled; `accepted` are those on the backlog."""

    gateway: GatewayProcess
    accepted: set[str] = attrs.field(factory=set)

    async def run(self) -> None:
        for number in count():
            assert await send(self.gateway.address, "orders", b"%d" % number) == (201, "backlog")
            self.accepted.add(str(number))


@attrs.define(eq=False)
class Consumers:
    """Receive from the process, and complete each message after some work."""

    process: GatewayProcess
    given: Counter[str] = attrs.field(factory=Counter)
    done: Counter[str] = attrs.field(factory=Counter)
    perhaps: set[str] = attrs.field(factory=set)  # completed, or not: without an answer

    @property
    def in_hand(self) -> set[str]:
        """Messages whose consumers haven't settled them: they come again after their locks."""
        return self.given.keys() - self.done.keys() - self.perhaps

    async def run(self) -> None:
        async with client(self.process) as broker, trio.open_nursery() as nursery:
            for _ in range(RECEIVERS):
                nursery.start_soon(self._consume, broker)

    async def _consume(self, broker: Broker) -> None:
        while True:
            try:
                async with broker.open_receiver(ORDERS) as receiver:
                    while True:
                        page = await receiver.receive(PAGE)
                        self.given.update(map(name_of, page))
                        for delivery in page:
                            await self._complete(receiver, delivery)
            except BrokerError:
                await trio.sleep(0.1)

    async def _complete(self, receiver: Receiver, delivery: Delivery) -> None:
        name = name_of(delivery)
        await trio.sleep(WORK)
        is_known = False
        try:
            await receiver.settle(delivery, Complete())
            is_known = True
        except BrokerError as error:
            is_known = error.outcome is Outcome.NOT_SENT
            raise
        finally:
            if not is_known:  # cancelled, or without an answer
                self.perhaps.add(name)
        self.done[name] += 1


@pytest.mark.parametrize("is_amqp", [False, True], ids=["rest", "amqp"])
@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_a_killed_gateways_messages_come_again_and_none_is_completed_twice(
    gateways: Gateways, fault: str, is_amqp: bool
) -> None:
    config = broker_config().replace('"service-bus-http"', '"service-bus"')
    primary = await gateways.start(config, name="primary")
    secondary = await gateways.start(config, name="secondary")
    async with client(primary) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
    async with client(secondary) as broker:
        await broker.create_queue(OWN, attrs.evolve(QUEUE_PROPERTIES, lock_duration=LOCK))
    patience = IMPATIENT if fault == "frozen" else {}
    pair = pair_config(
        primary.address,
        secondary.address,
        backlog_queues=1,
        receive_in_outage=["orders"],
        **patience,
    )
    pair = REST_URL.sub(AMQP_URL, pair) if is_amqp else pair
    sender = Sender(await gateways.start(pair, name="senders"))
    consumers = Consumers(await gateways.start(pair, name="consumers"))

    if fault == "killed":
        await primary.kill()
    else:
        primary.signal(signal.SIGSTOP)
    await fail_over(sender.gateway)
    early = copies_told(sender.gateway)
    async with trio.open_nursery() as sending:
        sending.start_soon(sender.run)
        async with trio.open_nursery() as consuming:
            consuming.start_soon(consumers.run)
            await until(lambda: len(consumers.done) >= SOME, "consumers work in the outage")
            # Each receiver has one settlement on its way, at most.
            await until(lambda: len(consumers.in_hand) > RECEIVERS, "they are amid their work")
            await consumers.process.kill()
            in_hand = consumers.in_hand
            done = len(consumers.done)
            await consumers.process.start()
            await until(lambda: len(consumers.done) >= done + SOME, "consumers work again")
            await until(lambda: not in_hand & consumers.in_hand, "what was in hand comes again")
            consuming.cancel_scope.cancel()
        left = len(sender.accepted) + SOME
        await until(lambda: len(sender.accepted) >= left, "the other gateway goes on")
        sending.cancel_scope.cancel()

    if fault == "killed":
        await primary.start()
    else:
        primary.signal(signal.SIGCONT)
    await emptied(secondary)
    found = await bodies(primary)
    known = sender.accepted - consumers.perhaps
    again = in_hand - consumers.perhaps
    print(  # noqa: T201 for `-s`
        f"{len(sender.accepted)} accepted, {consumers.done.total()} completed at the backlog,"
        f" {found.total()} came home, {len(again)} in hand, {len(consumers.perhaps)} unknown"
    )
    assert known - consumers.done.keys() - found.keys() == set(), "lost"
    # None, unless the machine stalled for so long that an attempt on the backlog had no answer.
    twice = {name for name in known if consumers.done[name] + found[name] > 1}
    copies = copies_told(sender.gateway) - early + copies_told(consumers.process)
    assert len(twice) <= copies, twice
    assert len(consumers.perhaps) <= 2 * RECEIVERS, "the killed gateway's, and the last ones"
    assert again
    assert all(consumers.given[name] > 1 for name in again)
    assert len(found.keys() & sender.accepted) >= SOME, "some came home"


async def fail_over(gateway: GatewayProcess) -> None:
    """Send until the entity has failed over: an earlier message may be at the primary as well."""
    with trio.fail_after(PATIENCE):
        while not gateway.count("entity_state_changed", entity="orders", after="secondary"):
            assert (await send(gateway.address, "orders", b"early"))[0] == 201


def copies_told(gateway: GatewayProcess) -> int:
    """The copies that the gateway and its syphon say there may be."""
    diverted = [each for each in gateway.log if each["event"] == "diverted" and each["in_doubt"]]
    moved = [each for each in gateway.log if each["event"] == "syphon_backed_off"]
    return sum(each["messages"] for each in diverted) + sum(each["in_doubt"] for each in moved)


async def until(happened: Callable[[], bool], wanted: str) -> None:
    """Return when it has happened by the count of this test's tasks."""
    with trio.move_on_after(PATIENCE) as scope:
        while not happened():  # noqa: ASYNC110 several tasks count
            await trio.sleep(0.05)
    assert not scope.cancelled_caught, f"didn't happen: {wanted}"


async def emptied(secondary: GatewayProcess) -> None:
    """Return when receivers and syphons have left nothing in the queue."""
    async with client(secondary) as broker:
        with trio.fail_after(PATIENCE):
            while (await broker.inspect(OWN)).active:  # noqa: ASYNC110 another process's
                await trio.sleep(0.05)


async def bodies(primary: GatewayProcess) -> Counter[str]:
    """The messages at the primary, of which nobody has received any."""
    found = Counter[str]()
    async with client(primary) as broker:
        after = -1
        while page := await broker.peek(ORDERS, from_sequence=after + 1, limit=100):
            found.update(map(name_of, page))
            after = max(each.sequence_number for each in page)
    return found


def name_of(delivery: Delivery) -> str:
    assert isinstance(delivery.message.body, bytes)
    return delivery.message.body.decode()
