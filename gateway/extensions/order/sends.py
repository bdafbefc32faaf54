"""
Sends that keep an order: one call at a time for each key, to the primary or to one backlog queue.

    key at home             the primary; then, if it doesn't accept, the key's backlog queue
    away, and failed over   the key's backlog queue
    away, entity healthy    the backlog queue, behind the others, with pauses, so that the syphon
                            catches up. Once few messages of the key are left there, the send waits
                            until they have moved, for `WAIT` seconds at most, and then goes to the
                            primary

Where several gateways send to the ordered entities, each send first waits for the lease of its
key's queue (`lease.py`), or is forwarded to the gateway that has it (`forward.py`).

All sends of a key go to one queue, so that what follows never overtakes; a queue that fails has no
substitute, and neither has the spool a part in it. `watch.py` knows which keys are away.

Calls that wait for their turn are sent together: the call whose turn it is takes along those behind
it, each of which has its own verdict. Their time to live runs from the time when the gateway got
the last of them: no message expires too early, and the first lives `SHORT_WAIT` longer at most.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import count, islice, takewhile
from typing import Final

import attrs
import trio

from gateway.capabilities import FAULTS_OF_ONE
from gateway.changes import QueueTurn, Turns
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NotOrderer, Outcome, OutcomeUnknown, Unavailable
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Message
from gateway.extensions.order.forward import forward
from gateway.extensions.order.keys import OrderKey, is_ordered, key_of
from gateway.extensions.order.lease import WAIT_SHARE as LEASE_SHARE
from gateway.extensions.order.lease import OrderLease, OrderLeases
from gateway.extensions.order.watch import OrderedQueue, OrderWatch
from gateway.pairing.additions import OrderPeers
from gateway.pairing.backlog import PACE
from gateway.pairing.sending import SHORT_WAIT, Batch, Sending
from gateway.pairing.ways import Ways
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

Deliver = Callable[[OrderKey, Batch, Now], Awaitable[None]]
"""
Gives the batch, which has messages of that key only, its verdict. Their time to live runs from the
given time on.
"""


@attrs.define(eq=False)
class _Part:
    """The messages of one key in `parent`; `batch` is `parent` itself if it has no other key."""

    key: OrderKey
    parent: Batch
    batch: Batch


@attrs.define(eq=False, kw_only=True)
class _Call:
    """A call's batches of one key, and their turn."""

    parts: Sequence[_Part]
    turn: QueueTurn
    taken: Now  # when the gateway got them
    deadline: float
    is_forwarded: bool  # by another gateway
    goes_along: bool = attrs.field(default=False, init=False)  # with a call in front of it

    @property
    def key(self) -> OrderKey:
        return self.parts[0].key

    @property
    def digest(self) -> str:
        return self.key.digest

    @property
    def is_pending(self) -> bool:
        """True as long as no batch has a verdict."""
        return all(part.batch.is_pending for part in self.parts)

    def may_take_along(self, other: "_Call") -> bool:
        """
        True if the other call's messages can be sent with this call's: they lose no time for the
        send, aren't forwarded a second time, and this call's messages don't live much longer.
        """
        if other.is_forwarded != self.is_forwarded or other.deadline < self.deadline:
            return False
        return other.taken.monotonic - self.taken.monotonic < SHORT_WAIT

    def copy_verdict(self, whole: Batch) -> None:
        """
        End the call as the batch that it went along in. If that certainly wasn't sent, the call
        has its own turn: it has more time, and perhaps it isn't its message that is at fault.
        """
        self.goes_along = False
        if whole.error is None or whole.error.outcome is not Outcome.NOT_SENT:
            for part in self.parts:
                part.batch.copy_verdict(whole)


@attrs.define(eq=False)
class _Room:
    """The room that is left in a batch for the messages of others."""

    messages: int = MOST_TOGETHER
    size: int = MOST_BYTES

    def acquire(self, parts: Iterable[_Part]) -> bool:
        """Take the room of these batches. False: there wasn't enough for all."""
        for part in parts:
            self.messages -= len(part.batch.messages)
            bodies = [message.body for message in part.batch.messages]
            self.size -= sum(len(e) if isinstance(e, bytes) else MOST_BYTES for e in bodies)
        return self.messages >= 0 and self.size >= 0


@attrs.define(eq=False, kw_only=True)
class OrderedSends:
    """
    `gateway.pairing.ways.Delivers`: the sends of ordered entities in their order, all others by
    `ways`.
    """

    patterns: Sequence[str]
    watch: OrderWatch
    ways: Ways
    new_id: NewId
    leases: OrderLeases | None = None  # None: no other gateway sends to the ordered entities
    _epoch: str = attrs.field(init=False)  # of the places that this gateway gives, hexadecimal
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1), init=False)
    _turns: Turns = attrs.field(factory=Turns, init=False)
    # By the key's digest: the calls whose turn hasn't ended, in the order of their turns.
    _calls: dict[str, dict[_Call, None]] = attrs.field(factory=dict, init=False)
    _known: dict[str, bool] = attrs.field(factory=dict, init=False)

    @_epoch.default
    def _new_epoch(self) -> str:
        digits = "".join(each for each in self.new_id().lower() if each in "0123456789abcdef")
        return digits[:32] or "0"

    def keeps_order(self, entity: EntityPath) -> bool:
        """True if the entity keeps the order of its sends."""
        known = self._known.get(entity.key)
        if known is None:
            known = is_ordered(entity, self.patterns)
            if len(self._known) < MOST_KNOWN:
                self._known[entity.key] = known
        return known

    async def deliver(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        *,
        in_order: bool = False,
    ) -> None:
        """As `Delivers.deliver`."""
        if self.keeps_order(entity):
            await self.deliver_in_order(entity, batches, taken, deadline)
        else:
            await self.ways.deliver(entity, batches, taken, deadline, in_order=in_order)

    async def deliver_in_order(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        *,
        is_forwarded: bool = False,
    ) -> None:
        """As `in_turns`, to the primary or to the backlog; or to the orderer, unless forwarded."""

        async def deliver(key: OrderKey, batch: Batch, since: Now) -> None:
            sending = self.ways.make(entity, [batch], since, deadline)
            sending.second = None  # a second copy would have another place in the order
            await self.ways.give_verdicts(
                sending, lambda each: self.try_ways(each, key, is_forwarded=is_forwarded)
            )

        await self.in_turns(entity, batches, taken, deadline, deliver, is_forwarded=is_forwarded)

    async def in_turns(
        self,
        entity: EntityPath,
        batches: Sequence[Batch],
        taken: Now,
        deadline: float,
        deliver: Deliver,
        *,
        is_forwarded: bool = False,
    ) -> None:
        """
        Return when each batch has its verdict. The call has its place in the order before its first
        checkpoint.

        If a message isn't accepted, those of its key that follow in this call aren't sent. A batch
        with several keys is sent as one batch for each key. If the task that sends the messages of
        several calls is cancelled, the outcome is unknown for all of these.
        """
        parts = [part for batch in batches for part in _parts_of(entity, batch)]
        by_key: dict[str, list[_Part]] = {}
        for part in parts:
            by_key.setdefault(part.key.digest, []).append(part)
        calls = [
            self._call(mine, taken, deadline, is_forwarded=is_forwarded) for mine in by_key.values()
        ]
        if len(calls) == 1:
            await self._deliver_call(calls[0], deliver)
        else:
            async with trio.open_nursery() as nursery:
                for call in calls:
                    nursery.start_soon(self._deliver_call, call, deliver)
        for batch in batches:
            if batch.is_pending:
                _join(batch, [part.batch for part in parts if part.parent is batch])

    def _call(
        self, parts: Sequence[_Part], taken: Now, deadline: float, *, is_forwarded: bool
    ) -> _Call:
        """A call, whose parts have one key, with the next place among those of that key."""
        digest = parts[0].key.digest
        call = _Call(
            parts=parts,
            turn=self._turns.acquire(digest),
            taken=taken,
            deadline=deadline,
            is_forwarded=is_forwarded,
        )
        self._calls.setdefault(digest, {})[call] = None
        return call

    async def _deliver_call(self, call: _Call, deliver: Deliver) -> None:
        """Return when the call's batches have their verdicts, and its turn has ended."""
        try:
            await self._wait_turn(call)
            if call.is_pending and call.turn.before is None:
                await self._deliver_all(call, deliver)
        finally:
            self._release(call)
        for part in call.parts:
            if part.batch.is_pending:
                part.batch.tainted |= call.goes_along
                part.batch.fail(self._without_turn(call))

    async def _wait_turn(self, call: _Call) -> None:
        """
        Return when it is the call's turn, or its deadline has passed; or, if another gateway has
        forwarded it, once this one lets go: else each could wait for the other's turn.
        """
        with trio.move_on_at(call.deadline):
            if call.is_forwarded and self.leases is not None:
                with self.leases.of(call.key).while_open():
                    await call.turn.come()
                if not call.goes_along:
                    return
            await call.turn.come()

    def _without_turn(self, call: _Call) -> BrokerError:
        try:
            if call.is_forwarded:
                self.check_orderer(call.key)
        except NotOrderer as error:
            return error
        return Unavailable("an earlier send of the same order had no answer yet")

    def _release(self, call: _Call) -> None:
        """End the call's turn, if that hasn't ended."""
        call.turn.release()
        calls = self._calls.get(call.digest, {})
        if call in calls:
            del calls[call]
            if not calls:
                del self._calls[call.digest]

    async def _deliver_all(self, call: _Call, deliver: Deliver) -> None:
        waiting = list(call.parts)
        while waiting:
            sent = await self._deliver_some(call, waiting, deliver)
            error = waiting[sent - 1].batch.error
            del waiting[:sent]
            if error is not None:
                for part in waiting:
                    part.batch.fail(Unavailable(f"not sent, as an earlier message failed: {error}"))
                return

    async def _deliver_some(self, call: _Call, waiting: Sequence[_Part], deliver: Deliver) -> int:
        """Deliver the call's first batches, as one if possible; return how many have a verdict."""
        room, first = _Room(), waiting[0]
        room.acquire([first])
        own = [first, *takewhile(lambda part: room.acquire([part]), waiting[1:])]
        others = self._behind(call, room) if len(own) == len(waiting) else []
        together = [*own, *(part for other in others for part in other.parts)]
        if len(together) > 1:
            whole = Batch([message for part in together for message in part.batch.messages])
            await self._deliver_whole(call, whole, others, deliver)
            if not isinstance(whole.error, FAULTS_OF_ONE):
                for part in own:
                    part.batch.copy_verdict(whole)
                return len(own)
            for part in together:  # each alone: one may be at fault, or there is room for some
                part.batch.tainted |= whole.tainted
        await deliver(first.key, first.batch, call.taken)
        return 1

    def _behind(self, call: _Call, room: _Room) -> Sequence[_Call]:
        """The calls directly behind this one that it takes along."""
        behind = islice(self._calls[call.digest], 1, None)
        return [
            *takewhile(
                lambda other: call.may_take_along(other) and room.acquire(other.parts), behind
            )
        ]

    async def _deliver_whole(
        self, call: _Call, whole: Batch, others: Sequence[_Call], deliver: Deliver
    ) -> None:
        """Deliver a batch that has the messages of other calls too, and give these its verdict."""
        for other in others:
            other.goes_along = True
        taken = max((each.taken for each in [call, *others]), key=lambda now: now.monotonic)
        try:
            await deliver(call.key, whole, taken)
        finally:
            if whole.is_pending:
                whole.error = OutcomeUnknown("the call that sent the messages was cancelled")
            for other in others:
                other.copy_verdict(whole)
                if not other.is_pending:
                    self._release(other)

    async def try_ways(
        self, sending: Sending, key: OrderKey, *, is_forwarded: bool = False
    ) -> None:
        """
        Try the primary or the key's backlog queue, or both, for batches of one key whose turn it
        is.

        Raises:
            BrokerError: the verdict for all pending batches.
        """
        if not sending.may_divert:
            await self.ways.to_primary.send_to_primary(sending)
        elif self.leases is None:
            await self._try_ways(sending, key, None)
        else:
            lease = self.leases.of(key)
            if is_forwarded:
                self.check_orderer(key)
            else:
                until = trio.current_time() + sending.left * LEASE_SHARE
                await self._forward(sending, lease, self.leases.peers, until)
            if sending.pending:
                with lease.in_use():
                    await self._try_ways(sending, key, lease)

    def check_orderer(self, key: OrderKey, queue: EntityPath | None = None) -> None:
        """
        Check that this gateway is the orderer of the key; and that the key is one of that queue.

        Raises:
            NotOrderer: it isn't.
        """
        lease = None if self.leases is None else self.leases.of(key)
        if lease is None or not lease.is_open or queue not in {None, lease.queue.path}:
            raise NotOrderer(f"this gateway isn't the orderer of a key of {key.entity}")

    async def _forward(
        self, sending: Sending, lease: OrderLease, peers: OrderPeers | None, until: float
    ) -> None:
        """
        Return when the orderer has sent the batches, or this gateway may.

        Raises:
            Unavailable: neither is so until then.
        """
        forwards = peers is not None
        while sending.pending and not lease.is_open:
            if peers is not None and forwards and lease.orderer:
                forwards = await forward(peers, sending, lease, until)
            else:
                await lease.wait(until, forwards=forwards)

    async def _try_ways(
        self,
        sending: Sending,
        key: OrderKey,
        lease: OrderLease | None,
    ) -> None:
        queue = self.watch.queue_of(key)
        home = self.watch.is_home(key) or await self._comes_home(sending, key, queue)
        if lease is not None and not lease.may_send(home=home):
            raise _without_lease(queue)
        if home and await self.ways.to_primary.send_to_primary(sending):
            return
        self.ways.refuse_what_the_primary_would(sending)
        if not home:
            await self._let_the_syphon_catch_up(sending, key, queue)
        if await self._divert(sending, key, queue, lease, has_other_way=home):
            return
        if home and await self.ways.to_primary.send_to_primary_after_all(sending):
            return
        until = trio.current_time() + sending.left * RETRY_SHARE
        while not await self._divert(sending, key, queue, lease, has_other_way=False):
            if home or trio.current_time() + PACE > until:
                return
            await trio.sleep(PACE)

    async def _comes_home(self, sending: Sending, key: OrderKey, queue: OrderedQueue) -> bool:
        """Wait for the return of a key that is away, if it may be soon. True: it is at home."""
        if self.ways.states.state_of(sending.entity) not in MAY_RETURN:
            return False
        if not queue.may_return_soon(key, FEW):
            return False
        until = trio.current_time() + min(WAIT, sending.left * WAIT_SHARE)
        if await self.watch.wait_home(key, until, FEW):
            return True
        if queue.may_return_soon(key, FEW):
            queue.record_wait_in_vain(key, NO_WAIT)
        return False

    async def _let_the_syphon_catch_up(
        self, sending: Sending, key: OrderKey, queue: OrderedQueue
    ) -> None:
        """Wait a little, so that the key's sends are slower than the syphon that moves them."""
        away = queue.away.get(key.digest)
        if away is not None and self.ways.states.state_of(sending.entity) is State.PRIMARY:
            await trio.sleep(min(SLOWER * away.took, SLOWEST, sending.left * WAIT_SHARE))

    async def _divert(
        self,
        sending: Sending,
        key: OrderKey,
        queue: OrderedQueue,
        lease: OrderLease | None,
        *,
        has_other_way: bool,
    ) -> bool:
        """Send to the key's backlog queue. True: nothing is left to be sent."""
        if not any(batch.fault is None for batch in sending.pending):
            return True
        if lease is not None and not lease.is_valid:
            for batch in sending.pending:
                batch.errors[AcceptedBy.BACKLOG] = _without_lease(queue)
            return False
        was_home = self.watch.is_home(key)
        queue.record_diverted(key, sum(len(batch.messages) for batch in sending.pending))
        places = (f"{key.digest}.{self._epoch}.{number}" for number in self._numbers)
        pending, began = sending.pending, trio.current_time()
        done = await self.ways.to_backlog.send_to_queue(
            sending, queue.path, places, has_other_way=has_other_way
        )
        queue.record_diverted(key, 0)
        if lease is not None and not lease.is_valid:
            _doubt(pending)
        if (away := queue.away.get(key.digest)) is not None:
            away.took = trio.current_time() - began
        if was_home and all(map(_was_refused, pending)):
            queue.record_refused(key)
        return done


def _was_refused(batch: Batch) -> bool:
    """True if the backlog certainly doesn't have the batch."""
    error = batch.errors.get(AcceptedBy.BACKLOG)
    refused = error is not None and error.outcome is Outcome.NOT_SENT
    return refused and batch.accepted_by is not AcceptedBy.BACKLOG


def _without_lease(queue: OrderedQueue) -> Unavailable:
    return Unavailable(f"the lease of {queue.path} has run out")


def _doubt(batches: Iterable[Batch]) -> None:
    """
    The backlog has accepted these batches, perhaps after another gateway had listed its messages:
    that one may already send later messages to the primary.
    """
    for batch in batches:
        if batch.accepted_by is AcceptedBy.BACKLOG:
            batch.accepted_by = None
            batch.fail(OutcomeUnknown("the backlog's answer came after the end of the lease"))


def _parts_of(entity: EntityPath, batch: Batch) -> Sequence[_Part]:
    """The batch by its keys."""
    by_key: dict[OrderKey, list[Message]] = {}
    for message in batch.messages:
        by_key.setdefault(key_of(entity, message), []).append(message)
    if len(by_key) == 1:
        return [_Part(key, batch, batch) for key in by_key]
    return [_Part(key, batch, Batch(messages)) for key, messages in by_key.items()]


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
