"""Settling several deliveries: in one step or side by side, each with its verdict, in time."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio

from gateway.capabilities.settling import settle_all, settle_one
from gateway.domain.errors import Busy, LockLost, NotSupported, OutcomeUnknown
from gateway.domain.message import Abandon, Complete, Delivery, Message


@attrs.define
class OneByOne:
    """Settles after a second; `faults` by token: an error to raise, or None: never answers."""

    faults: dict[str, Exception | None] = attrs.Factory(dict)
    settled: list[Any] = attrs.Factory(list)

    async def settle(self, delivery, settlement):
        fault = self.faults.get(delivery.lock_token, ())
        await trio.sleep(60 if fault is None else 1)
        if fault:
            raise fault
        self.settled.append((delivery.lock_token, settlement))


@attrs.define
class Together(OneByOne):
    """
    Answers all settlements at once; `verdict`: the error that it raises instead, or None: it never
    answers.
    """

    verdict: Any = ()
    calls: int = 0

    async def settle_many(self, settlements: Sequence[Any]):
        self.calls += 1
        await trio.sleep(60 if self.verdict is None else 1)
        if self.verdict:
            raise self.verdict
        return [self.faults.get(delivery.lock_token) for delivery, _ in settlements]


def deliveries(*tokens):
    return [
        Delivery(message=Message(), sequence_number=number, lock_token=token)
        for number, token in enumerate(tokens, 1)
    ]


def completing(*tokens):
    return [(delivery, Complete()) for delivery in deliveries(*tokens)]


async def test_side_by_side_each_has_its_own_verdict(autojump_clock):
    lost = LockLost("too late")
    receiver = OneByOne(faults={"b": lost, "c": None})

    verdicts = await settle_all(receiver, completing("a", "b", "c", "d"), 5)

    assert trio.current_time() == 5  # the four at once, and no longer than the limit
    assert (verdicts[0], verdicts[1], verdicts[3]) == (None, lost, None)
    assert isinstance(verdicts[2], OutcomeUnknown)
    assert str(verdicts[2]) == "no answer to a settlement within 5 s"
    assert {token for token, _ in receiver.settled} == {"a", "d"}


async def test_a_receiver_that_can_settles_all_in_one_step(autojump_clock):
    lost = LockLost("too late")
    receiver = Together(faults={"b": lost})

    verdicts = await settle_all(receiver, completing("a", "b"), 5)

    assert list(verdicts) == [None, lost]
    assert (receiver.calls, receiver.settled) == (1, [])


@pytest.mark.parametrize(("verdict", "kind"), [(Busy("wait"), Busy), (None, OutcomeUnknown)])
async def test_one_verdict_on_all_is_the_verdict_on_each(autojump_clock, verdict, kind):
    verdicts = await settle_all(Together(verdict=verdict), completing("a", "b"), 5)

    assert [type(each) for each in verdicts] == [kind, kind]


async def test_a_wrapper_whose_receiver_cannot_settles_side_by_side(autojump_clock):
    receiver = Together(verdict=NotSupported("not this one"))

    assert list(await settle_all(receiver, completing("a", "b"), 5)) == [None, None]
    assert len(receiver.settled) == 2


async def test_nothing_to_settle_is_done_at_once(autojump_clock):
    assert list(await settle_all(OneByOne(), [], 5)) == []


async def test_a_shielded_settlement_ends_before_it_is_cancelled(autojump_clock):
    receiver = OneByOne()
    (delivery,) = deliveries("a")
    verdict: Any = "none"

    with trio.CancelScope() as scope:
        scope.cancel()
        verdict = await settle_one(receiver, delivery, Abandon(), 5, shield=True)

    assert verdict is None
    assert receiver.settled == [("a", Abandon())]
