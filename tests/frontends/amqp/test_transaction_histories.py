"""
A law of transactions: workers that move messages from a queue to another one, each in a
transaction, leave every message in exactly one of them, whichever part ends in between.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.capabilities import TransactedWork
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import OutcomeUnknown, Unavailable
from gateway.domain.message import Message
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.events import ACCEPTED, RELEASED, TransactionalState
from gateway.wire.amqp.message import decode_message
from gateway.wire.amqp.transactions import Declare, Discharge
from tests.frontends.amqp.conftest import House
from tests.frontends.amqp.transactions import Around, Controller, controller_of
from tests.frontends.rest_client import ORDERS

MOVED = EntityPath("moved")
MESSAGES = 8
LOCK = 60  # seconds
SEEDS = 8
ANSWER = amqp.DispositionReceived | amqp.ConnectionClosed
ENDS = ("commit", "commit", "commit", "fail", "close", "detach", "late", "forget")


@attrs.define(eq=False)
class Unreliable(Around):
    """A namespace whose commits may be refused, or lose their answers."""

    _rng: random.Random
    verdicts: Counter[str] = attrs.field(factory=Counter)

    async def check_transactions(self) -> None:
        await trio.lowlevel.checkpoint()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        await trio.sleep(self._rng.random())
        fate = self._rng.choice(("done", "done", "done", "refused", "lost", "never"))
        self.verdicts[fate] += 1
        if fate == "refused":
            raise Unavailable("refused")
        if fate in {"done", "lost"}:
            await self._inner.commit(work)
        if fate in {"lost", "never"}:
            raise OutcomeUnknown("no answer")


async def answer(controller: Controller, asked: amqp.DeliveryId) -> amqp.DeliveryState | None:
    """The outcome of a message; None: the connection has ended."""
    event = await controller.sdk.until(
        ANSWER,  # type: ignore[arg-type]
        lambda event: isinstance(event, amqp.ConnectionClosed) or event.delivery == asked,
    )
    return None if isinstance(event, amqp.ConnectionClosed) else event.state


async def live(house: House, rng: random.Random, ends: Sequence[str]) -> None:
    """Run a worker's transactions, up to an end of its connection."""
    sdk = await house.client()
    controller = await controller_of(sdk)
    source, target = await sdk.receiver(), await sdk.sender("moved")
    while True:
        end = rng.choice(ends)
        declared = await answer(controller, controller.ask(Declare()))
        assert isinstance(declared, amqp.Declared), declared
        sdk.engine.grant(source, 1 - sdk.engine.credit(source))
        with trio.move_on_after(2 * LOCK) as waiting:
            taken = await sdk.delivery(source)
        if waiting.cancelled_caught:
            break
        state = TransactionalState(txn_id=declared.txn_id)
        sdk.transfer(target, decode_message(taken.payload), state=state)
        settled = attrs.evolve(state, outcome=ACCEPTED)
        if rng.random() < 0.5:
            sdk.engine.settle(taken.delivery, settled)
        else:
            sdk.engine.update(taken.delivery, settled)
        if end == "close":
            break
        if end == "detach":
            sdk.engine.detach(controller.link)
            break
        if end == "forget":
            continue
        if end == "late":
            await trio.sleep(LOCK + rng.random() * LOCK)
        discharge = Discharge(txn_id=declared.txn_id, fail=end == "fail")
        outcome = await answer(controller, controller.ask(discharge))
        if outcome is None:
            return
        if isinstance(outcome, amqp.Rejected) or end == "fail":
            sdk.engine.settle(taken.delivery, RELEASED)
    await sdk.connection.close()


async def ids(house: House, entity: EntityPath) -> list[Any]:
    return [each.message.message_id for each in await house.broker.peek(entity, limit=1000)]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_message_is_moved_exactly_once(
    seed: int, house: House, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    await house.broker.create_queue(MOVED, QueueProperties(max_delivery_count=1000))
    await house.broker.update_queue(ORDERS, QueueProperties(max_delivery_count=1000))
    await house.broker.send(ORDERS, [Message(message_id=str(n)) for n in range(MESSAGES)])
    unreliable = Unreliable(house.faulty, rng)
    house.frontend = attrs.evolve(house.frontend, broker=unreliable)

    async def work() -> None:
        for _ in range(4):
            await live(house, rng, ENDS)
            where = Counter(await ids(house, ORDERS)) + Counter(await ids(house, MOVED))
            assert where == Counter(map(str, range(MESSAGES)))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(work)
    house.frontend = attrs.evolve(house.frontend, broker=house.faulty)
    while await ids(house, ORDERS):
        await live(house, rng, ("commit",))

    assert sorted(await ids(house, MOVED)) == sorted(map(str, range(MESSAGES)))
