"""
Sends that keep an order: one call at a time for each key, to the primary or to one backlog queue.

    key at home             the primary; then, if it doesn't accept, the key's backlog queue
    away, and failed over   the key's backlog queue
    away, entity healthy    the backlog queue, behind the others, with pauses, so that the syphon
                            catches up. Once few messages of the key are left there, the send waits
                            until they have moved, for `WAIT` seconds at most, and then goes to the
                            primary

All sends of a key go to one queue, so that what follows never overtakes; a queue that fails has no
substitute, and neither has the spool a part in it. `watch.py` knows which keys are away.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Final

import attrs
import trio

from gateway.changes import Turn, Turns
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    MESSAGE_FAULTS,
    Outcome,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Message
from gateway.pairing.backlog import PACE, BacklogSender
from gateway.pairing.order.keys import OrderKey, is_ordered, key_of
from gateway.pairing.order.watch import OrderedQueue, OrderWatch
from gateway.pairing.primary import PrimarySender
from gateway.pairing.sending import Batch, Sending
from gateway.pairing.states import EntityStates
from gateway.ports import NewId

# Messages: with more of its key on the backlog, a send doesn't wait for the key's return.
FEW: Final = 50
WAIT: Final = 5.0  # seconds, at most, that a send waits for its key's return
WAIT_SHARE: Final = 0.4  # of the time that the send has left
# The pause before a send to the backlog of a healthy entity, in durations of the key's last
# diverted send.
SLOWER: Final = 4.0
SLOWEST: Final = 0.5  # seconds
NO_WAIT: Final = 10.0  # seconds in which no send of the key waits, after a wait that timed out
RETRY_SHARE: Final = 0.5  # of a send's time, in which its backlog queue is tried again
MOST_TOGETHER: Final = 100  # messages of several batches that go as one
MOST_BYTES: Final = 128 * 1024  # of their bodies
MAY_RETURN: Final = frozenset({State.PRIMARY, State.HALF_OPEN})
MOST_KNOWN: Final = 10_000  # entities for which it is remembered whether they are ordered

Deliver = Callable[[OrderKey, Batch], Awaitable[None]]
"""Gives the batch, which has messages of that key only, its verdict."""


@attrs.define(eq=False)
class _Part:
    """The messages of one key in `parent`; `batch` is `parent` itself if it has no other key."""

    key: OrderKey
    parent: Batch
    batch: Batch


@attrs.define(eq=False, kw_only=True)
class OrderedSends:
    """Delivers the sends of ordered entities."""

    patterns: Sequence[str]
    watch: OrderWatch
    states: EntityStates
    to_primary: PrimarySender
    to_backlog: BacklogSender
    new_id: NewId
    _epoch: str = attrs.field(init=False)  # of the places that this gateway gives, hexadecimal
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1), init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)
    _known: dict[str, bool] = attrs.field(factory=dict, init=False)

    @_epoch.default
    def _new_epoch(self) -> str:
        digits = "".join(each for each in self.new_id().lower() if each in "0123456789abcdef")
        return digits[:32] or "0"

    def covers(self, entity: EntityPath) -> bool:
        """True if the entity keeps the order of its sends."""
        known = self._known.get(entity.key)
        if known is None:
            known = is_ordered(entity, self.patterns)
            if len(self._known) < MOST_KNOWN:
                self._known[entity.key] = known
        return known

    async def deliver(
        self, entity: EntityPath, batches: Sequence[Batch], deadline: float, deliver: Deliver
    ) -> None:
        """
        Return when each batch has its verdict. The call has its place in the order before its first
        checkpoint.

        If a message isn't accepted, those of its key that follow in this call aren't sent. A batch
        with several keys is sent as one batch for each key.
        """
        parts = [part for batch in batches for part in _parts_of(entity, batch)]
        by_key: dict[str, list[_Part]] = {}
        for part in parts:
            by_key.setdefault(part.key.digest, []).append(part)
        with ExitStack() as stack:
            turns = [stack.enter_context(self._turns.take(digest)) for digest in by_key]
            if len(turns) == 1:
                await self._deliver_key(parts, turns[0], deadline, deliver)
            else:
                async with trio.open_nursery() as nursery:
                    for turn, mine in zip(turns, by_key.values(), strict=True):
                        nursery.start_soon(self._deliver_key, mine, turn, deadline, deliver)
        for batch in batches:
            if batch.is_pending:
                _join(batch, [part.batch for part in parts if part.parent is batch])

    async def _deliver_key(
        self, parts: Sequence[_Part], turn: Turn, deadline: float, deliver: Deliver
    ) -> None:
        """Deliver a call's messages of one key, once it is their turn; then end the turn."""
        with turn:
            with trio.move_on_at(deadline):
                await turn.come()
            if turn.before is None:
                await self._deliver_all(parts, deliver)
                return
        for part in parts:
            part.batch.fail(Unavailable("an earlier send of the same order had no answer yet"))

    async def _deliver_all(self, parts: Sequence[_Part], deliver: Deliver) -> None:
        waiting = list(parts)
        while waiting:
            sent = await self._deliver_some(waiting, deliver)
            del waiting[:sent]
            error = parts[len(parts) - len(waiting) - 1].batch.error
            if error is not None:
                for part in waiting:
                    part.batch.fail(Unavailable(f"not sent, as an earlier message failed: {error}"))
                return

    async def _deliver_some(self, waiting: Sequence[_Part], deliver: Deliver) -> int:
        """Deliver the first batches, as one if possible; return how many have their verdict."""
        first, together = waiting[0], _together(waiting)
        if len(together) > 1:
            whole = Batch([message for part in together for message in part.batch.messages])
            await deliver(first.key, whole)
            if not isinstance(whole.error, MESSAGE_FAULTS):
                for part in together:
                    part.batch.take_verdict(whole)
                return len(together)
            for part in waiting:  # each alone: only one may be at fault
                part.batch.tainted |= whole.tainted
        await deliver(first.key, first.batch)
        return 1

    async def try_ways(
        self, sending: Sending, key: OrderKey, refuse: Callable[[Sending], None]
    ) -> None:
        """
        Try the primary or the key's backlog queue, or both, for batches of one key whose turn it
        is. `refuse` ends the batches that the primary wouldn't accept.

        Raises:
            BrokerError: the verdict for all pending batches.
        """
        if not sending.may_divert:
            await self.to_primary.take(sending)
            return
        queue = self.watch.queue_of(key)
        home = self.watch.is_home(key) or await self._comes_home(sending, key, queue)
        if home and await self.to_primary.take(sending):
            return
        refuse(sending)
        if not home:
            await self._let_the_syphon_catch_up(sending, key, queue)
        if await self._divert(sending, key, queue, has_other_way=home):
            return
        if home and await self.to_primary.take_after_all(sending):
            return
        until = trio.current_time() + sending.left * RETRY_SHARE
        while not await self._divert(sending, key, queue, has_other_way=False):
            if home or trio.current_time() + PACE > until:
                return
            await trio.sleep(PACE)

    async def _comes_home(self, sending: Sending, key: OrderKey, queue: OrderedQueue) -> bool:
        """Wait for the return of a key that is away, if it may be soon. True: it is at home."""
        if self.states.state_of(sending.entity) not in MAY_RETURN:
            return False
        now, away = trio.current_time(), queue.away.get(key.digest)
        if queue.any_key is not None:
            if now < queue.no_wait_before:
                return False
        elif away is not None and not away.may_return_soon(now, FEW):
            return False
        seconds = min(WAIT, sending.left * WAIT_SHARE)
        if await self.watch.wait_home(key, now + seconds):
            return True
        no_wait_before = trio.current_time() + NO_WAIT
        if queue.any_key is not None:
            queue.no_wait_before = no_wait_before
        if away is not None:
            away.no_wait_before = no_wait_before
        return False

    async def _let_the_syphon_catch_up(
        self, sending: Sending, key: OrderKey, queue: OrderedQueue
    ) -> None:
        """Wait a little, so that the key's sends are slower than the syphon that moves them."""
        away = queue.away.get(key.digest)
        if away is not None and self.states.state_of(sending.entity) is State.PRIMARY:
            await trio.sleep(min(SLOWER * away.took, SLOWEST, sending.left * WAIT_SHARE))

    async def _divert(
        self, sending: Sending, key: OrderKey, queue: OrderedQueue, *, has_other_way: bool
    ) -> bool:
        """Send to the key's backlog queue. True: nothing is left to be sent."""
        if not any(batch.fault is None for batch in sending.pending):
            return True
        was_home = self.watch.is_home(key)
        queue.note_diverted(key, sum(len(batch.messages) for batch in sending.pending))
        places = (f"{key.digest}.{self._epoch}.{number}" for number in self._numbers)
        pending, began = sending.pending, trio.current_time()
        done = await self.to_backlog.take_at(
            sending, queue.path, places, has_other_way=has_other_way
        )
        queue.note_diverted(key, 0)
        if (away := queue.away.get(key.digest)) is not None:
            away.took = trio.current_time() - began
        if was_home and all(map(_was_refused, pending)):
            queue.note_refused(key)
        return done


def _was_refused(batch: Batch) -> bool:
    """True if the backlog certainly doesn't have the batch."""
    error = batch.errors.get(AcceptedBy.BACKLOG)
    refused = error is not None and error.outcome is Outcome.NOT_SENT
    return refused and batch.accepted_by is not AcceptedBy.BACKLOG


def _parts_of(entity: EntityPath, batch: Batch) -> Sequence[_Part]:
    """The batch by its keys."""
    by_key: dict[OrderKey, list[Message]] = {}
    for message in batch.messages:
        by_key.setdefault(key_of(entity, message), []).append(message)
    if len(by_key) == 1:
        return [_Part(key, batch, batch) for key in by_key]
    return [_Part(key, batch, Batch(messages)) for key, messages in by_key.items()]


def _together(waiting: Sequence[_Part]) -> Sequence[_Part]:
    """The first of these batches, and those behind it that may share its call."""
    messages = size = taken = 0
    for part in waiting:
        messages += len(part.batch.messages)
        bodies = [message.body for message in part.batch.messages]
        size += sum(len(body) if isinstance(body, bytes) else MOST_BYTES for body in bodies)
        if taken and (messages > MOST_TOGETHER or size > MOST_BYTES):
            break
        taken += 1
    return waiting[:taken]


def _join(batch: Batch, parts: Sequence[Batch]) -> None:
    """End a batch that was sent as several: a part that was accepted leaves the whole unknown."""
    errors = [part.error for part in parts if part.error is not None]
    if not errors:
        accepted = {part.accepted_by for part in parts}
        batch.accepted_by = (
            AcceptedBy.PRIMARY if accepted <= {AcceptedBy.PRIMARY} else AcceptedBy.BACKLOG
        )
    elif len(errors) == len(parts) and all(e.outcome is Outcome.NOT_SENT for e in errors):
        batch.error = errors[0]
    else:
        batch.error = OutcomeUnknown(f"only a part of the batch was accepted: {errors[0]}")
