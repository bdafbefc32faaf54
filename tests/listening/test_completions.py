"""Completions that come at one moment go in one step, and none is cut short."""

from collections.abc import Sequence
from math import inf
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.errors import BrokerError, LockLost, NotSupported, OutcomeUnknown, Unavailable
from gateway.domain.message import Delivery, Message, Settlement
from gateway.listening.queue_session import Completions
from tests.listening.harness import virtual_time

pytestmark = virtual_time

LIMIT = 10.0
FIVE = [Delivery(message=Message(message_id=str(n)), sequence_number=n) for n in range(5)]


@attrs.define(eq=False)
class OneByOne:
    """Completes after a second, except deliveries in `lost`."""

    lost: frozenset[int] = frozenset()
    done: list[int] = attrs.field(factory=list)
    alone: int = 0

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self.alone += 1
        await trio.sleep(1.0)
        if delivery.sequence_number in self.lost:
            raise LockLost("it ran out")
        self.done.append(delivery.sequence_number)


@attrs.define(eq=False)
class Together(OneByOne):
    """The same in one step; or it fails with `error`, or it hangs."""

    error: Exception | None = None
    hangs: bool = False
    steps: int = 0

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        self.steps += 1
        await trio.sleep(1.0)
        if self.hangs:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error
        asked = [delivery.sequence_number for delivery, _ in settlements]
        self.done += [number for number in asked if number not in self.lost]
        return [LockLost("it ran out") if number in self.lost else None for number in asked]


async def complete_five(receiver: Any, *, cancelled_after: float = inf) -> list[Any]:
    """Complete five deliveries at one moment; return the verdict of each."""
    completions = Completions(receiver=receiver, limit=LIMIT)
    verdicts: list[Any] = [None] * len(FIVE)

    async def complete(delivery: Delivery) -> None:
        verdict = await completions.complete(delivery)
        verdicts[delivery.sequence_number] = verdict

    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + cancelled_after
        for each in FIVE:
            nursery.start_soon(complete, each)
    return verdicts


async def test_deliveries_done_at_one_moment_are_completed_in_one_step():
    receiver = Together()
    verdicts = await complete_five(receiver)

    assert verdicts == [None] * 5
    assert sorted(receiver.done) == [0, 1, 2, 3, 4]
    assert (receiver.steps, receiver.alone) == (1, 0)


async def test_a_later_completion_waits_for_no_step_under_way():
    receiver = Together()
    completions = Completions(receiver=receiver, limit=LIMIT)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for each in FIVE:
            nursery.start_soon(completions.complete, each)
            await trio.sleep(0.5)

    assert trio.current_time() - began == 3.0
    assert sorted(receiver.done) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [OneByOne, Together])
async def test_each_has_a_verdict_of_its_own(kind):
    verdicts = await complete_five(kind(lost=frozenset({1, 3})))

    assert [isinstance(each, LockLost) for each in verdicts] == [False, True, False, True, False]


async def test_an_error_of_the_step_is_everybodys():
    verdicts = await complete_five(Together(error=Unavailable("down")))

    assert [type(each) for each in verdicts] == [Unavailable] * 5


async def test_without_an_answer_in_time_nobody_knows():
    began = trio.current_time()
    verdicts = await complete_five(Together(hangs=True))

    assert [type(each) for each in verdicts] == [OutcomeUnknown] * 5
    assert trio.current_time() - began == LIMIT


@pytest.mark.parametrize("kind", [OneByOne, Together])
async def test_a_cancellation_comes_after_the_verdict(kind):
    receiver = kind()
    verdicts = await complete_five(receiver, cancelled_after=0.5)

    assert verdicts == [None] * 5
    assert sorted(receiver.done) == [0, 1, 2, 3, 4]


async def test_deliveries_that_cant_be_completed_together_are_completed_one_by_one():
    receiver = Together(error=NotSupported("one at a time"))
    verdicts = await complete_five(receiver)

    assert verdicts == [None] * 5
    assert sorted(receiver.done) == [0, 1, 2, 3, 4]
    assert (receiver.steps, receiver.alone) == (1, 5)


async def test_a_step_that_breaks_leaves_nobody_waiting():
    with pytest.raises(ExceptionGroup):
        await complete_five(Together(error=ZeroDivisionError()))
