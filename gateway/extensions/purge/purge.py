"""Deletes the messages of one backlog queue, as far as an operator has seen them."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.capabilities import Sessions
from gateway.capabilities.settling import settle_all
from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import InvalidRequest, NotSupported, SessionLockLost
from gateway.domain.events.control import ControlCalled
from gateway.domain.message import Abandon, Complete, Delivery, Settlement
from gateway.domain.operators.control import Operator
from gateway.extensions.purge.events import BacklogPurged
from gateway.extensions.purge.order import PurgeAnswer, PurgeOrder
from gateway.offering import required
from gateway.ports import Broker, Observer, Receiver, WallClock

BATCH: Final = 50  # messages that are locked together
QUIET: Final = 3.0  # seconds without another message after which the others are locked elsewhere
ACTION: Final = "purge"


@attrs.frozen(kw_only=True)
class Purge:
    """Executes purges of the backlog queues with one label on `source`."""

    source: Broker
    label: str
    clock: WallClock
    observer: Observer

    async def execute(self, order: PurgeOrder, operator: Operator) -> PurgeAnswer:
        """
        Count the messages and, if the order confirms that, delete at most as many as its operator
        has seen. Messages that come during the purge stay. On cancellation those that were deleted
        are gone, and all others stay.

        Raises:
            InvalidRequest: it is no backlog queue of this pair, or it has more messages than the
                operator has seen; nothing was deleted.
            NotSupported: the namespace doesn't report the number of messages.
            BrokerError: the namespace can't be asked, or fails meanwhile.
        """
        if not backlog.is_backlog_of(self.label, order.path):
            prefix = backlog.queue_prefix(self.label)
            raise InvalidRequest(f"queue: a backlog queue of this pair ({prefix}0 ...) expected")
        began = self.clock()
        info = await self.source.inspect(EntityPath(order.queue))
        found = await self._count(info, order)
        if not order.executes:
            return PurgeAnswer(queue=order.queue, dead_letters=order.dead_letters, messages=found)
        seen = order.messages or 0
        refused = found > seen
        self.observer.report(
            ControlCalled.by(
                operator,
                ACTION,
                changed=bool(found) and not refused,
                targets=[order.path.name],
                reason=order.reason,
            )
        )
        if refused:
            raise InvalidRequest(
                f"more has come: {order.path} has {found} messages, and {seen} were seen"
            )
        deletion = _Deletion(began=began, left=found)
        try:
            if info.requires_session and not order.dead_letters:
                await self._delete_in_sessions(order.path, deletion)
            else:
                async with self.source.open_receiver(order.path) as receiver:
                    await deletion.run(receiver)
        finally:
            purged = found - deletion.left
            self.observer.report(
                BacklogPurged(
                    queue=order.path.name,
                    messages=purged,
                    left=deletion.left,
                    operator=operator.name,
                )
            )
        return PurgeAnswer(
            queue=order.queue,
            dead_letters=order.dead_letters,
            messages=found,
            purged=purged,
            left=deletion.left,
        )

    async def _count(self, info: EntityInfo, order: PurgeOrder) -> int:
        if order.dead_letters and info.dead_lettered is None:
            info = await self.source.inspect(order.path)
            found = info.active
        else:
            found = info.dead_lettered if order.dead_letters else info.active
        if found is None:
            raise NotSupported(f"the namespace doesn't report how many messages {order.path} has")
        return found + (0 if order.dead_letters else info.locked_here)

    async def _delete_in_sessions(self, queue: EntityPath, deletion: "_Deletion") -> None:
        """Delete session by session, those with the oldest messages first."""
        sessions = required(self.source, Sessions)
        while deletion.left:
            before = deletion.left
            try:
                with trio.move_on_after(QUIET) as waiting:
                    async with sessions.open_session(queue, None) as receiver:
                        waiting.deadline = math.inf
                        await deletion.run(receiver)
            except SessionLockLost:  # it had more messages than were deleted in time
                if deletion.left == before:
                    raise
            if deletion.left == before:
                return  # the others are new, or are locked elsewhere


@attrs.define(eq=False, kw_only=True)
class _Deletion:
    """Deletes messages that came before `began`, at most `left` of them."""

    began: datetime
    left: int

    async def run(self, receiver: Receiver) -> None:
        """Delete until none is received, or enough are deleted."""
        while self.left and (done := await self._delete_some(receiver)):
            self.left -= done

    async def _delete_some(self, receiver: Receiver) -> int:
        """Delete some messages; return their number, 0 if none is received."""
        deliveries: Sequence[Delivery] = ()
        with trio.move_on_after(QUIET):
            deliveries = await receiver.receive(min(BATCH, self.left))
        settlements: list[tuple[Delivery, Settlement]] = []
        for each in deliveries:
            is_old = each.enqueued is None or each.enqueued <= self.began
            settlements.append((each, Complete() if is_old else Abandon(delivered=False)))
        verdicts = await settle_all(receiver, settlements)
        done = sum(
            error is None and isinstance(settlement, Complete)
            for (_, settlement), error in zip(settlements, verdicts, strict=True)
        )
        first = next((error for error in verdicts if error is not None), None)
        if first is not None and not done:
            raise first
        return done
