"""Publishes on their way to the namespace: one send for each queue, in the order of a channel."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities import MOST_DELETED, DeletesMessages, ReceivesAvailable, send_each
from gateway.capabilities.settling import settle_all, settle_or_raise
from gateway.deadlines import answered_within
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    MessageError,
    QuotaExceeded,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Message, Settlement
from gateway.frontends.rabbitmq_broker.names import entity_of
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused
from gateway.frontends.rabbitmq_broker.vhost import ServedQueue, ServedVhost, ready_in
from gateway.offering import offered, required
from gateway.wire.rabbitmq.stored import CC, StoredContent, message_of, recipients

FULL: Final = "maxlen"  # RabbitMQ's reason for what a full queue drops
_MOST_DROPPED: Final = 100  # messages at a time
# Seconds for the count of a queue that may be too long: in an outage a channel doesn't wait longer.
_COUNTED: Final = 2.0


@attrs.define(eq=False)
class RoutedPublish:
    content: StoredContent
    queues: Sequence[str]
    error: BrokerError | None = None  # of one of the queues
    is_routed: bool = False  # a queue, or the client that waits for the reply, has it
    is_reply: bool = False  # a direct reply, which has no queue


@attrs.define(eq=False, kw_only=True)
class RoutedSends:
    vhost: ServedVhost
    timeout: float  # seconds for a send

    def routed(self, content: StoredContent) -> RoutedPublish:
        """
        The publish with its queues.

        Raises:
            MessageError: the content header is malformed.
        """
        table = self.vhost.table
        keys = [content.routing_key]
        if CC.encode() in content.header:  # seldom; of BCC, too
            keys += recipients(content.headers)
        queues = table.route(content.exchange, keys, lambda: content.headers)
        return RoutedPublish(content, queues)

    async def send(self, publishes: Sequence[RoutedPublish]) -> None:
        """Send each to its queues; return when each has its verdict."""
        by_queue: dict[str, list[RoutedPublish]] = {}
        for each in publishes:
            for name in each.queues:
                by_queue.setdefault(name, []).append(each)
        if not by_queue:
            return
        if len(by_queue) == 1:  # as nearly always
            await self._send_to(*by_queue.popitem())
            return
        async with trio.open_nursery() as nursery:
            for name, some in by_queue.items():
                nursery.start_soon(self._send_to, name, some)

    async def _send_to(self, name: str, publishes: Sequence[RoutedPublish]) -> None:
        if self.vhost.is_gone(name):
            return
        queue = self.vhost.queues.get(name)  # None: others have made it, or it is missing
        bounded = queue if queue is not None and queue.terms.is_bounded else None
        if bounded is not None and bounded.terms.refuses:
            publishes = await self._with_room(bounded, publishes)
        await self._store(name, publishes)
        if bounded is not None:
            await self.drop_excess(bounded)

    async def _store(self, name: str, publishes: Sequence[RoutedPublish]) -> None:
        batches: list[list[Message]] = []
        good: list[RoutedPublish] = []
        for each in publishes:
            try:
                batches.append([message_of(each.content)])
                good.append(each)
            except MessageError as error:
                each.error = InvalidRequest(str(error))
        verdicts = await self._verdicts(name, batches) if good else ()
        for each, verdict in zip(good, verdicts, strict=True):
            if verdict is None:
                each.is_routed = True
            elif isinstance(verdict, EntityNotFound):
                self.vhost.record_missing(name)
            else:
                each.error = verdict

    async def _verdicts(
        self, name: str, batches: Sequence[Sequence[Message]]
    ) -> Sequence[BrokerError | None]:
        try:
            entity = entity_of(name)
            with answered_within(self.timeout, "to a send"):
                return await send_each(self.vhost.broker, entity, batches)
        except ClientRefused as refusal:  # no queue has such a name
            return [EntityNotFound(str(refusal))] * len(batches)
        except BrokerError as error:
            return [error] * len(batches)

    async def _with_room(
        self, queue: ServedQueue, publishes: Sequence[RoutedPublish]
    ) -> Sequence[RoutedPublish]:
        """The first publishes, for which the queue has room; the others are refused."""
        try:
            info = await self.vhost.info(queue)
        except ClientRefused:
            return publishes  # the send says what is wrong
        room, terms = len(publishes), queue.terms
        if terms.most is not None:
            room = min(room, max(0, terms.most - ready_in(queue, info)))
        if terms.most_bytes is not None and info is not None:
            room = room if (info.size or 0) < terms.most_bytes else 0
        for each in publishes[room:]:
            each.error = QuotaExceeded(f"queue '{queue.name}' is full")
        return publishes[:room]

    async def drop_excess(self, queue: ServedQueue) -> None:
        """
        Remove the oldest messages of a queue that has more than it may; none if it refuses. A
        message that a client may hold isn't in excess. A queue that can't be counted soon stays too
        long until the next call.
        """
        if queue.terms.refuses or not queue.terms.is_bounded:
            return
        begun = queue.drops
        async with queue.drop_turn:  # two at once would both drop the same excess
            if queue.drops > begun:
                return  # one that has begun since then has counted all that came before
            queue.drops += 1
            try:
                if (excess := await self._excess(queue)) > 0:
                    with answered_within(self.timeout, "to a receive"):
                        await self._drop(queue, excess)
            except (BrokerError, ClientRefused):
                return

    async def _drop(self, queue: ServedQueue, excess: int) -> None:
        reason = FULL if queue.terms.dead_letter_exchange is not None else None
        settlement: Settlement = Complete() if reason is None else DeadLetter(reason=reason)
        async with self.vhost.broker.open_receiver(queue.entity) as receiver:
            receives = required(receiver, ReceivesAvailable)
            while excess > 0:
                found = await receives.receive_available(min(excess, _MOST_DROPPED))
                if not found:
                    return
                # Nobody else can take these, the oldest. Count again: clients may have emptied the
                # queue since the first count.
                excess = await self._excess(queue)
                count = max(0, min(excess, len(found)))
                chosen = [settlement] * count + [Abandon(delivered=False)] * (len(found) - count)
                await settle_all(receiver, list(zip(found, chosen, strict=True)))
                excess -= count
                if count and queue.terms.most_bytes is not None:
                    excess = await self._excess(queue)  # the number doesn't tell the bytes

    async def _excess(self, queue: ServedQueue) -> int:
        """
        The messages that a queue has too many, or fewer: those that clients may have held at any
        time of the count aren't its own.
        """
        given = queue.given  # what is settled from now on may be in the count
        with answered_within(min(self.timeout, _COUNTED), "to a question"):
            info = await self.vhost.info(queue)
        if info is None or info.active is None or info.lag:
            return 0
        ready, terms = info.active + info.locked_here - (queue.taken - given), queue.terms
        excess = 0 if terms.most is None else ready - terms.most
        if terms.most_bytes is not None and ready > 0:
            excess = max(excess, int((info.size or 0) > terms.most_bytes))
        return excess

    async def purge(self, queue: ServedQueue) -> int:
        """
        Delete the messages that nobody has received; return their number.

        Raises:
            BrokerError: some may be left.
        """
        deletes = offered(self.vhost.broker, DeletesMessages)
        count = 0
        with answered_within(self.timeout, "to a deletion"):
            while True:
                if deletes is not None:
                    some = await deletes.delete_messages(queue.entity, MOST_DELETED)
                else:
                    some = await self._received_and_deleted(queue)
                count += some
                if not some:
                    return count

    async def _received_and_deleted(self, queue: ServedQueue) -> int:
        async with self.vhost.broker.open_receiver(queue.entity) as receiver:
            found = await required(receiver, ReceivesAvailable).receive_available(_MOST_DROPPED)
            await settle_or_raise(receiver, [(each, Complete()) for each in found])
            return len(found)
