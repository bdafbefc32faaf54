"""A channel's deliveries: consumers, `basic.get`, prefetch, and its client's settlements."""

import math
import secrets
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

import attrs
import trio
from pamqp import commands

from gateway.capabilities import ReceivesAvailable
from gateway.capabilities.settling import settle_all, settle_one
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    LockLost,
    MessageError,
    MessageTooLarge,
    OutcomeUnknown,
)
from gateway.domain.message import Abandon, Complete, DeadLetter, Delivery, Settlement
from gateway.frontends.rabbitmq_broker.channel_owner import ChannelOwner
from gateway.frontends.rabbitmq_broker.queue_consumers import (
    GIVE_UP,
    ChannelPrefetch,
    QueueConsumers,
    ServedConsumer,
    complete,
)
from gateway.frontends.rabbitmq_broker.queue_receiver import QueueReceiver, UnsettledDelivery
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, not_implemented, refusal_of
from gateway.frontends.rabbitmq_broker.vhost import ServedQueue
from gateway.offering import offered
from gateway.ports import Receiver
from gateway.wire.rabbitmq.errors import ACCESS_REFUSED, NOT_ALLOWED, PRECONDITION_FAILED
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.served import ServedDelivery, ServedGet, served_frames
from gateway.wire.rabbitmq.stored import REJECTED, StoredContent, content_of

_UNREAD: Final = 5.0  # seconds for a client that doesn't read its replies
_EMPTY: Final = 1.0  # seconds, where a namespace doesn't tell that a queue is empty

_LONGEST_TEXT: Final = 1000  # characters of a description

_Settles = commands.Basic.Ack | commands.Basic.Nack | commands.Basic.Reject


@attrs.frozen
class ChosenDeliveries:
    """Deliveries that the client settles, by their tags."""

    request: _Settles
    tags: Sequence[int]


@attrs.define(eq=False)
class ChannelDeliveries:
    _owner: ChannelOwner
    _nursery: trio.Nursery  # of the channel
    consumers: dict[str, ServedConsumer] = attrs.field(factory=dict, init=False)
    _unsettled: dict[int, UnsettledDelivery] = attrs.field(factory=dict, init=False)  # by tag
    _receivers: dict[ServedQueue, QueueReceiver] = attrs.field(factory=dict, init=False)
    _by_queue: dict[ServedQueue, QueueConsumers] = attrs.field(factory=dict, init=False)
    _reply: tuple[str, str] | None = attrs.field(default=None, init=False)  # address, and tag
    _tag: int = attrs.field(default=0, init=False)
    _prefetch: int = attrs.field(default=0, init=False)  # of the next consumers; 0: any number
    _shared: ChannelPrefetch = attrs.field(factory=ChannelPrefetch, init=False)
    _added: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    # --- consumers

    def set_prefetch(self, count: int, *, shared: bool) -> None:
        """`basic.qos`: `shared` is its bit `global`, which in RabbitMQ is of the channel."""
        if not shared:
            self._prefetch = count
            return
        self._shared.limit = count
        self._adjust()

    def _adjust(self) -> None:
        """The limit of the channel, or what its client has, has changed."""
        for consumers in self._by_queue.values():
            consumers.adjust()

    def consume(self, request: commands.Basic.Consume, queue: ServedQueue) -> ServedConsumer:
        """
        Begin a consumer, which `start` lets run.

        Raises:
            ClientRefused: the tag is used, another consumer has the queue for itself, or the
                connection has as many consumers as it may.
        """
        tag = request.consumer_tag or _new_tag()
        if tag in self.consumers:
            raise ClientRefused(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if queue.exclusive_consumer or (request.exclusive and queue.consumers):
            text = f"queue '{queue.name}' in vhost '/' in exclusive use"
            raise ClientRefused(ACCESS_REFUSED, text)
        self._owner.consumers.begin()
        queue.exclusive_consumer = bool(request.exclusive)
        consumer = ServedConsumer(tag, queue, bool(request.no_ack), self._prefetch)
        self.consumers[tag] = consumer
        queue.consumers[consumer] = lambda: self._cancel_by_queue(consumer)
        return consumer

    def start(self, consumer: ServedConsumer) -> None:
        """The client knows the consumer's tag: deliver."""
        self._consumers_of(consumer.queue).begin(consumer)

    def _consumers_of(self, queue: ServedQueue) -> QueueConsumers:
        found = self._by_queue.get(queue)
        if found is None:
            found = self._by_queue[queue] = QueueConsumers(
                owner=self._owner,
                queue=queue,
                opened=self._receiver_of(queue),
                prefetch=self._shared,
                deliver=self._deliver,
            )
            self._nursery.start_soon(self._serve, queue, found)
        return found

    async def _serve(self, queue: ServedQueue, consumers: QueueConsumers) -> None:
        await consumers.run()
        self._forget(queue, consumers)

    def _forget(self, queue: ServedQueue, consumers: QueueConsumers) -> None:
        """Forget a queue's consumers if none is left."""
        if consumers.is_over and self._by_queue.get(queue) is consumers:
            del self._by_queue[queue]

    async def finish(self, tag: str) -> None:
        """
        Return when a consumer has ended, and had what was found for it; the client may still settle
        its deliveries.
        """
        consumer = self.consumers.get(tag)
        consumers = None if consumer is None else self._by_queue[consumer.queue]
        self.cancel(tag)
        if consumer is not None and consumers is not None:
            await consumers.wait_until_ended(consumer)

    def cancel(self, tag: str) -> None:
        """Let a consumer end."""
        if self._reply is not None and self._reply[1] == tag:
            self._finish_replies()
        if (consumer := self._pop_consumer(tag)) is not None:
            self._owner.vhost.finish_consumer(consumer.queue, consumer)

    def _cancel_by_queue(self, consumer: ServedConsumer) -> None:
        """The queue is gone."""
        if self._pop_consumer(consumer.tag) is None:
            return
        if self._owner.hears_cancels:
            cancel = commands.Basic.Cancel(consumer_tag=consumer.tag, nowait=True)
            self._owner.say(cancel)

    def _pop_consumer(self, tag: str) -> ServedConsumer | None:
        """End a consumer; None: there is none with that tag."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            consumers = self._by_queue[consumer.queue]
            consumers.finish(consumer)
            self._forget(consumer.queue, consumers)
            self._owner.consumers.finish()
        return consumer

    def close(self) -> None:
        """The channel ends, and its consumers with it."""
        self._is_closed = True
        self._finish_replies()
        for tag in list(self.consumers):
            self.cancel(tag)
        for each in self._unsettled.values():
            each.queue.unsettled -= 1
        self._unsettled.clear()
        self._by_queue.clear()  # each refers to this object

    def _receiver_of(self, queue: ServedQueue) -> QueueReceiver:
        found = self._receivers.get(queue)
        if found is None:
            self._close_gone()
            found = self._receivers[queue] = QueueReceiver(queue, self._owner.vhost.broker)
            self._nursery.start_soon(found.run)
        return found

    def _close_gone(self) -> None:
        """
        Close the receivers of queues that are gone: a client may have a queue of its own for each
        of its requests. Others may still settle what they have received.
        """
        queues = self._owner.vhost.queues
        for queue in [each for each in self._receivers if queues.get(each.name) is not each]:
            self._receivers.pop(queue).close()

    async def _deliver(
        self, consumer: ServedConsumer, receiver: Receiver, delivery: Delivery
    ) -> None:
        if self._is_closed:
            return  # its receiver gives back what it has
        tag = self._tag + 1
        try:
            content = content_of(delivery.message, consumer.queue.name)
            method = ServedDelivery(
                consumer_tag=consumer.tag,
                delivery_tag=tag,
                redelivered=delivery.delivery_count > 1,
                exchange=content.exchange,
                routing_key=content.routing_key,
            )
            frames = served_frames(self._owner.number, method, content, self._owner.max_frame)
        except (MessageError, MessageTooLarge) as error:
            # Another client's message, which no frame can have: it would come again and again.
            await settle_one(receiver, delivery, _unreadable(error), GIVE_UP)
            return
        self._record_delivered(consumer.queue, receiver, delivery, consumer)
        self._owner.outbox.put(frames)

    def _record_delivered(
        self,
        queue: ServedQueue,
        receiver: Receiver,
        delivery: Delivery,
        consumer: ServedConsumer | None,
    ) -> None:
        """Count a delivery; one that the client is to settle is kept until it does."""
        self._tag += 1
        if consumer is not None and consumer.no_ack:
            return
        self._unsettled[self._tag] = UnsettledDelivery(
            queue, receiver, delivery.handle, consumer, trio.current_time()
        )
        self._added.unpark_all()
        queue.unsettled += 1
        if consumer is not None:
            consumer.unsettled += 1
            self._shared.unsettled += 1
        if self._shared.limit:
            self._adjust()

    # --- direct replies

    def consume_replies(self, request: commands.Basic.Consume) -> str:
        """Begin the consumer of the channel's replies; return its tag. Raises: ClientRefused."""
        if not request.no_ack:
            raise ClientRefused(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self._reply is not None:
            raise ClientRefused(PRECONDITION_FAILED, "reply consumer already set")
        address = self._owner.replies.begin(self._deliver_reply)
        self._reply = address, request.consumer_tag or _new_tag()
        return self._reply[1]

    def reply_address(self) -> str:
        """The address for replies to this channel. Raises: ClientRefused: it consumes none."""
        if self._reply is None:
            raise ClientRefused(PRECONDITION_FAILED, "fast reply consumer does not exist")
        return self._reply[0]

    async def _deliver_reply(self, content: StoredContent) -> bool:
        owner = self._owner
        with trio.move_on_after(_UNREAD):
            await owner.outbox.wait_for_room()
            if self._reply is not None:
                self._tag += 1
                tag, key = self._reply[1], content.routing_key
                method = ServedDelivery(tag, self._tag, False, "", key)
                owner.say_content(method, content)
                return True
        return False

    def _finish_replies(self) -> None:
        if self._reply is not None:
            self._owner.replies.finish(self._reply[0])
            self._reply = None

    # --- basic.get

    async def get(self, request: commands.Basic.Get, queue: ServedQueue) -> None:
        """Answer `basic.get`. Raises: ClientRefused."""
        opened = self._receiver_of(queue)
        try:
            receiver = await opened.opened()
            found = await _available(receiver)
        except BrokerError as error:
            if isinstance(error, EntityNotFound):
                self._owner.vhost.remove(queue)
            raise refusal_of(error) from error
        if found and request.no_ack and not all(await complete(receiver, found)):
            found = []
        if not found:
            self._owner.outbox.put_answer(
                method_frame(self._owner.number, commands.Basic.GetEmpty())
            )
            return
        [delivery] = found
        content = content_of(delivery.message, queue.name)
        if request.no_ack:
            self._tag += 1
        else:
            self._record_delivered(queue, receiver, delivery, None)
        method = ServedGet(
            delivery_tag=self._tag,
            redelivered=delivery.delivery_count > 1,
            exchange=content.exchange,
            routing_key=content.routing_key,
            message_count=await self._owner.vhost.ready(queue),
        )
        self._owner.outbox.put_answer(
            served_frames(self._owner.number, method, content, self._owner.max_frame)
        )

    # --- settlements

    async def settle(self, requests: Sequence[_Settles]) -> None:
        """
        Settle what the client acknowledges or rejects, in its order.

        Raises:
            ClientRefused: a tag is unknown; what came before it is settled.
        """
        chosen: list[ChosenDeliveries] = []
        refusal = None
        for request in requests:
            try:
                chosen.append(self.choose(request))
            except ClientRefused as error:
                refusal = error
                break
        await self.settle_chosen(chosen)
        if refusal is not None:
            raise refusal

    def choose(self, request: _Settles) -> ChosenDeliveries:
        """
        The deliveries that the client settles. It has them until `settle_chosen`, or again after
        `forget_choices`.

        Raises:
            ClientRefused: their tag is unknown.
        """
        tags = self._tags(request)
        for tag in tags:
            self._unsettled[tag].is_chosen = True
        return ChosenDeliveries(request, tags)

    def forget_choices(self) -> None:
        """Let the client settle all again that it has chosen."""
        for each in self._unsettled.values():
            each.is_chosen = False

    async def settle_chosen(self, chosen: Sequence[ChosenDeliveries]) -> None:
        """
        Settle them; one that can't be settled comes again. A bounded queue that gets some back
        drops what it has too many; what it gets back when a lock or the channel ends makes it too
        long until the next publish or requeue.
        """
        back: dict[ServedQueue, None] = {}
        by_receiver: dict[int, tuple[Receiver, list[tuple[Delivery, Settlement]]]] = {}
        for some in chosen:
            for tag in some.tags:
                each = self._pop(tag)
                if each.is_lost:
                    continue
                settlement = _settlement(some.request, each.queue)
                if isinstance(settlement, Abandon):
                    back[each.queue] = None
                _, found = by_receiver.setdefault(id(each.receiver), (each.receiver, []))
                found.append((each.delivery, settlement))
        for receiver, settlements in by_receiver.values():
            verdicts = await settle_all(receiver, settlements)
            if any(each is not None and each.counts_as_outage for each in verdicts):
                back.clear()  # the count of a queue would have no answer, either
        for queue in back:
            await self._owner.sends.drop_excess(queue)

    def _pop(self, tag: int) -> UnsettledDelivery:
        each = self._unsettled.pop(tag)
        each.queue.unsettled -= 1
        if isinstance(each.consumer, ServedConsumer):
            each.consumer.unsettled -= 1
            self._shared.unsettled -= 1
        if self._shared.limit:
            self._adjust()
        elif (consumers := self._by_queue.get(each.queue)) is not None:
            consumers.adjust()
        return each

    def _tags(self, request: _Settles) -> Sequence[int]:
        tag = request.delivery_tag or 0
        is_multiple = not isinstance(request, commands.Basic.Reject) and request.multiple
        if is_multiple and not tag:
            return [each for each, found in self._unsettled.items() if not found.is_chosen]
        named = self._unsettled.get(tag)
        if named is None or named.is_chosen:
            raise ClientRefused(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        if not is_multiple:
            return [tag]
        earlier = takewhile(lambda each: each[0] <= tag, self._unsettled.items())
        return [each for each, found in earlier if not found.is_chosen]

    async def recover(self, request: Any) -> None:
        """Let all that the client hasn't settled come again. Raises: ClientRefused."""
        if not request.requeue:
            raise not_implemented("requeue=false in basic.recover")
        everything = commands.Basic.Nack(delivery_tag=0, multiple=True, requeue=True)
        await self.settle([everything])

    async def renew_locks(self) -> None:
        """Renew the locks of what the client has, until cancelled."""
        while True:
            due = min((each.due for each in self._unsettled.values()), default=math.inf)
            with trio.move_on_at(due):
                await self._added.park()
            now = trio.current_time()
            for each in [each for each in self._unsettled.values() if each.due <= now]:
                await self._renew(each)

    async def _renew(self, each: UnsettledDelivery) -> None:
        each.renewed = trio.current_time()
        try:
            await each.receiver.renew(each.delivery)
        except (LockLost, EntityNotFound):
            each.is_lost = True
        except OutcomeUnknown:
            return  # the next renewal tells
        except BrokerError as error:
            each.is_lost = not error.counts_as_outage


def _new_tag() -> str:
    return f"amq.ctag-{secrets.token_urlsafe(16)}"


async def _available(receiver: Receiver) -> Sequence[Delivery]:
    if (receives := offered(receiver, ReceivesAvailable)) is not None:
        return await receives.receive_available(1)
    with trio.move_on_after(_EMPTY):
        return await receiver.receive(1)
    return []


def _unreadable(error: Exception) -> Settlement:
    return DeadLetter(reason="NotExpressible", description=str(error)[:_LONGEST_TEXT])


def _settlement(request: _Settles, queue: ServedQueue) -> Settlement:
    if isinstance(request, commands.Basic.Ack):
        return Complete()
    if request.requeue:
        return Abandon()
    if queue.terms.dead_letter_exchange is None:
        return Complete()
    return DeadLetter(reason=REJECTED)
