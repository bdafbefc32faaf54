"""
Empties one entity at the side that it leaves: what nobody receives there is sent to the other side,
and completed after that.

    scheduled           if both sides number them; else they come when they are due
    queue               its messages
    subscription        its messages, if the other side takes any for it alone; else its receivers
                        take what is there
    dead letters        if the other side takes any but from receivers
    deferred            never: their receivers have their numbers
    order is kept       no messages while it moves: its receivers take what is there, and get the
                        other side's after it; later, what comes late
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import attrs
import trio

from gateway.capabilities import (
    Peeks,
    ReceivesAvailable,
    Schedules,
    SendEach,
    SendsToSubscriptions,
    Topology,
    WritesDeadLetters,
    send_each,
    send_in_turn,
)
from gateway.capabilities.settling import settle_all
from gateway.deadlines import AnswerDeadline, answered_within
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.envelope_fields import text_of_id
from gateway.domain.errors import (
    MESSAGE_FAULTS,
    BrokerError,
    MessageNotFound,
    NotSupported,
    Outcome,
)
from gateway.domain.message import (
    Abandon,
    Complete,
    Delivery,
    Message,
    MessageState,
    derive_message,
)
from gateway.domain.topics.topology import SubscriptionInfo
from gateway.extensions.move.report import MoveReport
from gateway.extensions.move.stages import Move
from gateway.offering import offered, required
from gateway.ports import Broker, Receiver, WallClock

BATCH: Final = 50  # messages that are locked together: they move long before a lock ends
QUIET: Final = 1.0  # seconds without a message, where a queue can't say that it is empty
UNCOUNTED: Final = 5.0  # the same, where nobody counts and quiet ends the move: a busy machine
ANSWER: Final = 10.0  # seconds that one request to a namespace may take
PAGE: Final = 100  # as many as Service Bus lists at most
# A scheduled message that is due sooner comes by itself: it isn't raced against its date.
MARGIN: Final = timedelta(minutes=1)

Change = Callable[[MoveReport], MoveReport]


@attrs.frozen
class _MessageGroup:
    """Messages of an entity that are moved in one way."""

    entity: EntityPath  # that they are received from
    kind: str  # the count of the report
    send: SendEach[None]
    quiet: float = QUIET


class Stuck(Exception):
    """Messages can't be moved as they are: an operator must act."""


@attrs.frozen(kw_only=True)
class Emptying:
    """Looks at an entity once."""

    source: Broker
    target: Broker
    move: Move
    clock: WallClock
    note: Callable[[Change], Awaitable[None]]  # changes the entity's report
    renumber: Callable[[int, int], Awaitable[None]]  # a scheduled message has another number now

    async def run(self) -> bool:
        """
        Move what there is; True: nothing is left that is counted.

        Raises:
            BrokerError: a side doesn't answer, or lacks the entity.
            Stuck: the target refuses messages for good.
        """
        await self._move_scheduled()
        return await (self._empty_topic() if self.move.is_topic else self._empty_queue())

    async def _empty_queue(self) -> bool:
        path, info, seen = self.move.path, await self._info(), 0
        await self._move_dead_letters(path, info.dead_lettered)
        if not self.move.ordered or (info.active and not self.move.is_moving):
            quiet = QUIET if info.active is not None else UNCOUNTED
            send = partial(send_each, self.target)
            seen = await self._move_all(_MessageGroup(path, "active", send, quiet))
        info = await self._info()
        is_quiet = is_empty(info)
        if info.active is None:  # nobody counts: what is received tells, where anything is
            is_quiet = not seen and not self.move.ordered
        return is_quiet and not await self._waits(info)

    async def _info(self) -> EntityInfo:
        """The queue with its counts; without them, if its namespace can't be asked for any."""
        try:
            with self._in_time():
                return await self.source.inspect(self.move.path)
        except NotSupported:
            return EntityInfo(path=self.move.path)

    async def _waits(self, info: EntityInfo) -> bool:
        """True if a queue without messages has dead letters that can move, or deferred ones."""
        moves = offered(self.target, WritesDeadLetters) is not None
        if moves and await self._has_dead_letters(info.path, info.dead_lettered):
            return True
        deferred = info.deferred
        if deferred is None:
            deferred = await self._count_deferred()
            await self.note(lambda report: attrs.evolve(report, deferred=deferred or 0))
        return bool(deferred)

    async def _empty_topic(self) -> bool:
        topology = offered(self.source, Topology)
        if topology is None:
            return True  # a namespace without topics
        sends = offered(self.target, SendsToSubscriptions)
        with self._in_time():
            found = await subscriptions_of(topology, self.move)
        for each in found:
            await self._move_dead_letters(each.path, each.dead_lettered)
            if sends is not None and not self.move.ordered and each.active != 0:
                send = partial(send_in_turn, sends.send_to_subscription)
                await self._move_all(_MessageGroup(each.path, "active", send))
        with self._in_time():
            if (await topology.inspect_topic(self.move.path)).scheduled:
                return False
            found = await subscriptions_of(topology, self.move)
        moves = offered(self.target, WritesDeadLetters) is not None
        return not any(
            each.active is None or each.active or (moves and each.dead_lettered) for each in found
        )

    # --- messages

    async def _move_dead_letters(self, entity: EntityPath, count: int | None) -> None:
        """Move the dead letters of a queue or subscription, if the target takes any."""
        writes = offered(self.target, WritesDeadLetters)
        if writes is None or not await self._has_dead_letters(entity, count):
            return

        async def send(_: EntityPath, messages: Sequence[Message]) -> None:
            for each in messages:
                await writes.dead_letter(entity, each)

        group = _MessageGroup(entity.dead_letter, "dead_lettered", partial(send_in_turn, send))
        await self._move_all(group)

    async def _has_dead_letters(self, entity: EntityPath, count: int | None) -> bool:
        """True if it may have some; a namespace that counts none with their queue is asked."""
        if count is not None:
            return count > 0
        peeks = offered(self.source, Peeks)
        with self._in_time():
            if peeks is not None:
                return bool(await peeks.peek(entity.dead_letter, limit=1))
            if offered(self.source, WritesDeadLetters) is None:
                return False  # it has none, as plain AMQP
            return bool((await self.source.inspect(entity.dead_letter)).active)

    async def _move_all(self, group: _MessageGroup) -> int:
        """
        The number of messages that there were. None is taken before the other side answers: each
        delivery in its outage would count, until the message is dead-lettered.
        """
        seen = 0
        with self._in_time():
            await self.target.probe(self.move.path)
        async with self.source.open_receiver(group.entity) as receiver:
            while found := await self._next(receiver, group.quiet):
                # A cancellation between send and completion would leave copies on both sides.
                with trio.CancelScope(deadline=trio.current_time() + 2 * ANSWER, shield=True):
                    await self._move_batch(receiver, found, group)
                seen += len(found)
                await trio.lowlevel.checkpoint()  # here a pause or another mover ends it
        return seen

    async def _next(self, receiver: Receiver, quiet: float) -> Sequence[Delivery]:
        knows = offered(receiver, ReceivesAvailable)
        with trio.move_on_after(quiet):
            return await (receiver.receive if knows is None else knows.receive_available)(BATCH)
        return ()

    async def _move_batch(
        self, receiver: Receiver, found: Sequence[Delivery], group: _MessageGroup
    ) -> None:
        copies = [[self._copy(each, group)] for each in found]
        verdicts: Sequence[BrokerError | None]
        try:
            with self._in_time():
                verdicts = await group.send(group.entity, copies)
        except BrokerError as error:  # no answer in time: the target may have any of them
            verdicts = [error] * len(found)
        accepted = [each for each, error in zip(found, verdicts, strict=True) if error is None]
        settled = await settle_all(receiver, [(each, Complete()) for each in accepted], ANSWER)
        back = [each for each, error in zip(found, verdicts, strict=True) if error is not None]
        await settle_all(receiver, [(each, Abandon(delivered=False)) for each in back], ANSWER)
        done = [each for each, error in zip(accepted, settled, strict=True) if error is None]
        doubts = [each for each, error in zip(accepted, settled, strict=True) if error is not None]
        doubts += [
            each
            for each, error in zip(found, verdicts, strict=True)
            if error is not None and error.outcome is Outcome.UNKNOWN
        ]
        await self.note(lambda report: report.plus(kind=group.kind, ids=_ids(done)))
        if doubts:
            await self.note(lambda report: report.doubting(*_ids(doubts)))
        await self._check(found, verdicts)

    async def _check(
        self, found: Sequence[Delivery], verdicts: Sequence[BrokerError | None]
    ) -> None:
        """
        Raises:
            BrokerError: the target is in trouble.
            Stuck: it refuses messages for their content.
        """
        faults = {
            text_of_id(each.message.message_id): error
            for each, error in zip(found, verdicts, strict=True)
            if isinstance(error, MESSAGE_FAULTS)
        }
        if faults:
            lines = [f"{name}: {error}" for name, error in faults.items()]
            await self.note(lambda report: report.leaving(*lines))
            raise Stuck(f"{len(faults)} messages can't be moved, as {lines[0]}")
        failed = next((error for error in verdicts if error is not None), None)
        if failed is not None:
            raise failed

    def _copy(self, delivery: Delivery, group: _MessageGroup) -> Message:
        """The message as it is sent again: with the time that it has left to live."""
        life, message = delivery.message.time_to_live, delivery.message
        if life is not None and delivery.expires is not None and not group.entity.is_dead_letter:
            left = delivery.expires - (delivery.received or self.clock())
            life = min(life, max(left, timedelta(milliseconds=1)))
        return derive_message(message, time_to_live=life, absolute_expiry=None, scheduled=None)

    # --- scheduled messages

    async def _move_scheduled(self) -> None:
        """Move what is due later; the numbers that clients have got lead there, too."""
        peeks, here = offered(self.source, Peeks), offered(self.source, Schedules)
        there = offered(self.target, Schedules)
        if peeks is None or here is None or there is None:
            return  # they come when they are due
        start = 0
        while page := await self._page(peeks, start):
            for each in page:
                if _is_due_later(each, self.clock() + MARGIN):
                    with trio.CancelScope(deadline=trio.current_time() + 3 * ANSWER, shield=True):
                        await self._reschedule(here, there, each)
            await trio.lowlevel.checkpoint()
            start = 1 + page[-1].sequence_number

    async def _count_deferred(self) -> int:
        """The deferred messages of a namespace that shows them and doesn't count them."""
        peeks, count, start = offered(self.source, Peeks), 0, 0
        if peeks is None:
            return 0  # nobody defers
        while page := await self._page(peeks, start):
            count += sum(each.state is MessageState.DEFERRED for each in page)
            start = 1 + page[-1].sequence_number
        return count

    async def _page(self, peeks: Peeks, start: int) -> Sequence[Delivery]:
        """Messages of the queue or topic; none if there are no more, or none can be shown."""
        with self._in_time():
            try:
                return await peeks.peek(self.move.path, from_sequence=start, limit=PAGE)
            except NotSupported:
                return ()

    async def _reschedule(self, here: Schedules, there: Schedules, delivery: Delivery) -> None:
        path, [name] = self.move.path, _ids([delivery])
        copy = derive_message(delivery.message, absolute_expiry=None)
        try:
            with self._in_time():
                [number] = await there.schedule(path, [copy])
        except BrokerError as error:
            failure = error
        else:
            await self.renumber(delivery.sequence_number, number)
            await self._cancel(here, there, delivery, number)
            return
        if failure.outcome is Outcome.UNKNOWN:
            await self.note(lambda report: report.doubting(name))
        if isinstance(failure, MESSAGE_FAULTS):
            line = f"{name}: {failure}"
            await self.note(lambda report: report.leaving(line))
            raise Stuck(f"a scheduled message can't be moved: {line}")
        raise failure

    async def _cancel(
        self, here: Schedules, there: Schedules, delivery: Delivery, number: int
    ) -> None:
        """Cancel the message that the other side has now; if that is too late, its copy."""
        path, ids, is_there = self.move.path, _ids([delivery]), True
        failure: BrokerError | None = None
        try:
            with self._in_time():
                await here.cancel_scheduled(path, [delivery.sequence_number])
        except MessageNotFound:
            is_there = False  # its sender has cancelled it meanwhile
        except BrokerError as error:
            failure = error
        if not is_there:
            with self._in_time():
                await there.cancel_scheduled(path, [number])
        elif failure is not None:
            await self.note(lambda report: report.doubting(*ids))
            raise failure
        else:
            await self.note(lambda report: report.plus(kind="scheduled", ids=ids))

    def _in_time(self) -> AnswerDeadline:
        return answered_within(ANSWER, f"about {self.move.path}")


def is_empty(info: EntityInfo) -> bool:
    """
    True if the queue has no message in any state that its namespace counts, but dead letters; also
    none that a receiver of this process has locked.
    """
    return not (info.active or info.locked_here or info.scheduled or info.deferred)


async def session_queues(source: Broker, move: Move) -> Sequence[EntityPath]:
    """The queue of the move, or the subscriptions of its topic: what may have sessions."""
    if not move.is_topic:
        return (move.path,)
    topology = required(source, Topology)
    return [each.path for each in await subscriptions_of(topology, move)]


async def subscriptions_of(topology: Topology, move: Move) -> Sequence[SubscriptionInfo]:
    """All subscriptions of the move's topic. Raises BrokerError."""
    found: list[SubscriptionInfo] = []
    while page := await topology.list_subscriptions(move.path, skip=len(found), top=PAGE):
        found += page
    return found


def _ids(found: Sequence[Delivery]) -> tuple[str, ...]:
    return tuple(text_of_id(each.message.message_id) for each in found)


def _is_due_later(delivery: Delivery, date: datetime) -> bool:
    due = delivery.message.scheduled
    return delivery.state is MessageState.SCHEDULED and due is not None and due > date
