"""
Settles deliveries, whether or not the namespace can settle many at once.

`settle_one` and `settle_all` return verdicts as `SettlesMany.settle_many` does: None, or the error.
Where no answer came within `seconds`, the verdict is `OutcomeUnknown`: the message may come again.

`SettlementDoubts` remembers settlements without an answer, so that no consumer hears that they
weren't done. A namespace that has executed an unanswered completion answers "lock lost" to the next
one. A consumer takes that for "the message is delivered again" and rolls back its work, and the
message never comes. So the verdict is `OutcomeUnknown` until a settlement succeeds. Others that are
under way then get it, too: a client that repeats a settlement doesn't hear the answer to the first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from types import TracebackType
from typing import Final

import attrs
import trio

from gateway.capabilities.receiving import SettlesMany
from gateway.deadlines import answered_within
from gateway.domain.bounded import Bounded
from gateway.domain.errors import (
    BrokerError,
    LockLost,
    MessageNotFound,
    NotSupported,
    Outcome,
    OutcomeUnknown,
)
from gateway.domain.message import Delivery, Settlement
from gateway.offering import offered
from gateway.ports import Receiver

_WHAT: Final = "to a settlement"
# Deliveries that are remembered by one receiver, the newest. A client settles its doubts within
# the few retries of its SDK.
_MOST: Final = 10_000


async def settle_one(
    receiver: Receiver,
    delivery: Delivery,
    settlement: Settlement,
    seconds: float = inf,
    *,
    shield: bool = False,
) -> BrokerError | None:
    """Settle a delivery. A cancellation waits for the verdict with `shield`."""
    try:
        with answered_within(seconds, _WHAT, shield=shield):
            await receiver.settle(delivery, settlement)
    except BrokerError as error:
        return error
    return None


async def settle_all(
    receiver: Receiver, settlements: Sequence[tuple[Delivery, Settlement]], seconds: float = inf
) -> Sequence[BrokerError | None]:
    """Settle several deliveries: in one step if the receiver can, else each in its own task."""
    if (settles_many := offered(receiver, SettlesMany)) is not None:
        try:
            with answered_within(seconds, _WHAT):
                return await settles_many.settle_many(settlements)
        except NotSupported:
            pass  # the wrapper's inner receiver was replaced, and can't
        except BrokerError as error:
            return [error] * len(settlements)
    verdicts: list[BrokerError | None] = [None] * len(settlements)

    async def settle(index: int, delivery: Delivery, settlement: Settlement) -> None:
        verdicts[index] = await settle_one(receiver, delivery, settlement, seconds)

    async with trio.open_nursery() as nursery:
        for index, (delivery, settlement) in enumerate(settlements):
            nursery.start_soon(settle, index, delivery, settlement)
    return verdicts


async def settle_or_raise(
    receiver: Receiver, settlements: Sequence[tuple[Delivery, Settlement]]
) -> None:
    """
    As `settle_all`, without a time limit.

    Raises:
        BrokerError: some couldn't be settled; this is the first error.
    """
    for error in await settle_all(receiver, settlements):
        if error is not None:
            raise error


@attrs.define(eq=False)
class SettlementDoubts:
    """The deliveries of one receiver, or of one table of leases, that may be settled."""

    _most: int = _MOST
    # By lock token, the number of settlements that were begun and have no definite end, but for
    # those of `settling` that may still end: each of these has a task.
    _open: Bounded[str, int] = attrs.field(init=False)
    _under_way: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._open = Bounded(self._most)

    def about(self, lock_token: str | None) -> bool:
        """True if a settlement of that delivery was begun and has no definite end."""
        key = _key(lock_token)
        return key in self._open or key in self._under_way

    def begin(self, lock_token: str | None) -> None:
        """Note that a settlement begins: until `resolve` it counts as unanswered."""
        key = _key(lock_token)
        self._open[key] = self._open.get(key, 0) + 1

    def resolve(self, lock_token: str | None, error: BrokerError | None) -> BrokerError | None:
        """
        Note the answer to a settlement that has begun; return the verdict: None, the error, or
        `OutcomeUnknown` if the lock or the message is gone and an earlier settlement had no answer.
        """
        key = _key(lock_token)
        if error is None:
            self._open.pop(key, None)
            if key in self._under_way:  # another one, which finds the lock lost
                self._open[key] = 1
            return None
        if error.outcome is Outcome.UNKNOWN:
            return error
        if earlier := self._open.get(key, 1) - 1:
            self._open[key] = earlier
        else:
            self._open.pop(key, None)
        has_others = earlier or key in self._under_way
        is_gone = isinstance(error, LockLost | MessageNotFound)
        return _in_doubt(error) if has_others and is_gone else error

    def settling(self, lock_token: str | None) -> "SettlementUnderWay":
        """
        A context whose block settles the delivery. A cancellation leaves it in doubt.

        Raises:
            OutcomeUnknown: instead of `LockLost`, as `resolve` says.
        """
        return SettlementUnderWay(self, self._under_way, _key(lock_token))

    @contextmanager
    def using(self, lock_token: str | None) -> Iterator[None]:
        """
        The block renews the lock of the delivery, or does something else with it.

        Raises:
            OutcomeUnknown: instead of `LockLost`, if a settlement had no answer.
        """
        try:
            yield
        except (LockLost, MessageNotFound) as error:
            if self.about(lock_token):
                raise _in_doubt(error) from error
            raise


@attrs.define(eq=False)
class SettlementUnderWay:
    """
    As `SettlementDoubts.settling`. No generator, which takes three times as long: each settlement
    comes here, at several layers.
    """

    _doubts: SettlementDoubts
    _under_way: dict[str, int]
    _key: str

    def __enter__(self) -> None:
        self._under_way[self._key] = self._under_way.get(self._key, 0) + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        others = self._under_way.pop(self._key) - 1
        if others:
            self._under_way[self._key] = others
        if error is not None:
            self._doubts.begin(self._key)
        if error is None or isinstance(error, BrokerError):
            verdict = self._doubts.resolve(self._key, error)
            if verdict is not None and verdict is not error:
                raise verdict from error


def _key(lock_token: str | None) -> str:
    return (lock_token or "").lower()


def _in_doubt(error: BrokerError) -> OutcomeUnknown:
    return OutcomeUnknown(
        "an earlier settlement of this delivery had no answer: it may be done, or the message may"
        f" be delivered again ({error})"
    )
