"""
Clients that send, receive, settle and vanish at random, over a namespace that fails at random:
accepted messages are there, rejected ones are not, and nothing stays behind.
"""

import random
from collections import Counter

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import Busy
from gateway.domain.message import Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.shared_receivers import LeaseOptions
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from tests.frontends.amqp.conftest import Faulty, House
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import ORDERS, POLICIES, wall_clock
from tests.harness.faults import LoseAnswer, Operation, Refuse, Reset

MESSAGES = 15
OUTCOMES = [amqp.ACCEPTED, amqp.ACCEPTED, amqp.RELEASED, amqp.Modified(delivery_failed=True)]
FAULTS = [LoseAnswer(), Reset(), Refuse(), Refuse(Busy)]
RATES = {Operation.SEND: 0.4, Operation.SETTLE: 0.1}
ONE_VIRTUAL_DAY = 86_400.0


@attrs.define(eq=False)
class History:
    """The answers that clients got, by message id."""

    house: House
    rng: random.Random
    accepted: set[str] = attrs.field(factory=set)
    unknown: Counter = attrs.field(factory=Counter)
    completed: Counter = attrs.field(factory=Counter)

    async def send(self, name: str) -> None:
        """A producer that sends each message again until it is accepted."""
        left = [f"{name}{number}" for number in range(MESSAGES)]
        while left:
            sdk = await self.house.client()
            link = await sdk.sender()
            under_way = {
                sdk.transfer(link, Message(message_id=each)): each
                for each in left[: self.rng.randint(1, 10)]
            }
            await self._hear(sdk, under_way)
            left = [each for each in left if each not in self.accepted]
            await sdk.connection.close()

    async def _hear(self, sdk: Sdk, under_way: dict[amqp.DeliveryId, str]) -> None:
        """Wait for the outcomes, or for the end of the link: the rest is unknown then."""
        while under_way:
            event = await sdk.until(amqp.DispositionReceived | amqp.LinkDetached)
            if isinstance(event, amqp.LinkDetached):
                assert event.error.condition == "com.microsoft:timeout"
                self.unknown.update(under_way.values())
                return
            message = under_way.pop(event.delivery)
            if event.state == amqp.ACCEPTED:
                self.accepted.add(message)
            else:
                assert isinstance(event.state, amqp.Rejected)

    async def receive(self) -> None:
        """A consumer that settles as it likes, and goes without a word now and then."""
        while True:
            sdk = await self.house.client()
            link = await sdk.receiver(credit=self.rng.randint(1, 5))
            with trio.move_on_after(self.rng.choice([1.0, 70.0, 300.0])):
                while True:
                    event = await sdk.until(amqp.TransferReceived | amqp.LinkDetached)
                    if isinstance(event, amqp.LinkDetached):
                        break
                    await self._settle(sdk, event)
                    sdk.engine.grant(link, 1)
            await sdk.connection.close()

    async def _settle(self, sdk: Sdk, event: amqp.TransferReceived) -> None:
        await trio.sleep(self.rng.choice([0.0, 0.0, 1.0, 61.0]))
        outcome = self.rng.choice(OUTCOMES)
        sdk.engine.update(event.delivery, outcome)
        answer = await sdk.until(
            amqp.DispositionReceived | amqp.LinkDetached | amqp.ConnectionClosed
        )
        if outcome == amqp.ACCEPTED and isinstance(answer, amqp.DispositionReceived):
            name = decode_delivery(event.payload).message.message_id
            if answer.state == amqp.ACCEPTED:
                self.completed[name] += 1
            elif answer.state.error.condition == "com.microsoft:timeout":
                self.unknown[name] += 1


async def play(seed: int) -> tuple[History, int]:
    rng = random.Random(seed)
    broker = MemoryBroker(wall_clock, random.Random(seed))
    await broker.create_queue(ORDERS, QueueProperties(max_delivery_count=1000))
    faulty = Faulty(inner=broker)
    leases = Leases(faulty, wall_clock, LeaseOptions(idle_timeout=5.0))
    async with trio.open_nursery() as services:
        await services.start(faulty.run)
        await services.start(leases.run)
        frontend = AmqpFrontend(
            broker=faulty,
            leases=leases,
            authorizer=Authorizer(POLICIES, wall_clock=wall_clock),
            wall_clock=wall_clock,
        )
        history = History(House(services, broker, faulty, frontend), rng)
        faulty.fault = lambda operation, entity: (
            rng.choice(FAULTS) if rng.random() < RATES.get(operation, 0.0) else None
        )
        async with trio.open_nursery() as consumers:
            consumers.start_soon(history.receive)
            consumers.start_soon(history.receive)
            async with trio.open_nursery() as producers:
                producers.start_soon(history.send, "a")
                producers.start_soon(history.send, "b")
            faulty.fault = lambda operation, entity: None
            while await broker.peek(ORDERS):  # noqa: ASYNC110 the tasks that empty it
                await trio.sleep(10)
            consumers.cancel_scope.cancel()
        await trio.sleep(400)  # links that clients have left open end by themselves
        tasks = len(services.child_tasks)
        services.cancel_scope.cancel()
    return history, tasks


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.random_module())
def test_an_accepted_message_is_received_whatever_happens(seed: int, order: object) -> None:
    async def main() -> tuple[History, int]:
        with trio.fail_after(ONE_VIRTUAL_DAY):
            return await play(seed)
        raise AssertionError("unreachable")

    history, tasks = trio.run(main, clock=MockClock(autojump_threshold=0))

    sent = {f"{name}{number}" for name in "ab" for number in range(MESSAGES)}
    assert history.accepted == sent
    for message in sent:
        copies = history.completed[message]
        assert copies <= 1 + history.unknown[message]
        assert copies >= 1 or history.unknown[message]
    assert tasks <= 2 + 2 * 2  # the two services, and what consumers left unclosed
