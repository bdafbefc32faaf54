"""Deletes the messages of one backlog queue, as far as an operator has seen them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.events.control import BacklogPurged, ControlCalled
from gateway.domain.message import Abandon, Complete, Delivery, Settlement
from gateway.domain.operators.control import Operator
from gateway.domain.operators.purge import PurgeAnswer, PurgeOrder
from gateway.ports import Broker, Observer, Receiver, WallClock
from gateway.settling import settle_all

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
        if not order.queue.lower().startswith(backlog.queue_prefix(self.label).lower()):
            prefix = backlog.queue_prefix(self.label)
            raise InvalidRequest(f"queue: a backlog queue of this pair ({prefix}0 ...) expected")
        began = self.clock()
        found = await self._count(order)
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
        purged = 0
        try:
            async with self.source.open_receiver(order.path) as receiver:
                while purged < found:
                    done = await self._delete_some(receiver, found - purged, began)
                    if not done:
                        break
                    purged += done
        finally:
            left = found - purged
            self.observer.report(
                BacklogPurged(
                    queue=order.path.name, messages=purged, left=left, operator=operator.name
                )
            )
        return PurgeAnswer(
            queue=order.queue,
            dead_letters=order.dead_letters,
            messages=found,
            purged=purged,
            left=left,
        )

    async def _count(self, order: PurgeOrder) -> int:
        info = await self.source.inspect(EntityPath(order.queue))
        if order.dead_letters and info.dead_lettered is None:
            info = await self.source.inspect(order.path)
            found = info.active
        else:
            found = info.dead_lettered if order.dead_letters else info.active
        if found is None:
            raise NotSupported(f"the namespace doesn't report how many messages {order.path} has")
        return found + (0 if order.dead_letters else info.locked_here)

    async def _delete_some(self, receiver: Receiver, most: int, began: datetime) -> int:
        """Delete messages that came before `began`; return their number, 0 if none is received."""
        deliveries: Sequence[Delivery] = ()
        with trio.move_on_after(QUIET):
            deliveries = await receiver.receive(min(BATCH, most))
        settlements: list[tuple[Delivery, Settlement]] = []
        for each in deliveries:
            is_old = each.enqueued is None or each.enqueued <= began
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
