"""
A lane of the sender: the channel of one queue in confirm mode, and the batches that wait for their
confirms on it.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    Outcome,
    OutcomeUnknown,
    PartlyAccepted,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import Message
from gateway.net.rabbitmq.channel import Channel, Unasked
from gateway.net.rabbitmq.connection import RabbitmqConnection
from gateway.wire.rabbitmq.errors import error_after_hand_over
from gateway.wire.rabbitmq.exchanges import asked_for, exchange_in
from gateway.wire.rabbitmq.frames import (
    ContentArrived,
    content_frames,
    method_frame,
    payload_frame,
)
from gateway.wire.rabbitmq.properties import CopyId, Outgoing, copy_in, prepare

_EMPTY: Final = prepare(Message(body=b""))


@attrs.define(eq=False)
class SentBatch:
    """
    A batch that is being sent: its messages, the tag of the first one, the number of those that
    wait for their confirm, and the results so far.
    """

    queue: str
    messages: Sequence[Outgoing]
    first: int
    open: int = attrs.field(init=False)
    left: list[int] = attrs.field(factory=list, init=False)  # tags that weren't accepted
    accepted: int = 0
    refused: int = 0  # because the queue is full
    unroutable: int = 0
    error: BrokerError | None = None
    done: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.open = len(self.messages)

    def verdict(self, error: BrokerError | None = None) -> None:
        """Count one confirmed message. An error ends the whole send."""
        self.error = self.error or error
        self.open -= 1
        if self.open == 0 or self.error is not None:
            self.done.set()

    @property
    def is_refused(self) -> bool:
        """True if the queue refused messages, accepted none, and there was no other error."""
        return bool(self.refused) and self.error is None and not self.accepted

    def verdict_of_all(self) -> BrokerError | None:
        """
        None: all messages were accepted. If only some were, the outcome is unknown for the batch,
        and known for each message. A message that is returned says that the queue was deleted
        meanwhile, with those that it had accepted; or of an exchange, that no queue is bound to it
        for that message alone.
        """
        error, is_queue = self.error, exchange_in(self.queue) is None
        if error is None and self.unroutable:
            error = (
                EntityNotFound(f"{self.queue}: no such queue")
                if is_queue
                else InvalidRequest(f"{self.queue}: NO_ROUTE - no queue is bound for the message")
            )
        elif error is None and self.refused:
            error = QuotaExceeded(f"{self.queue}: refused by the queue, which is full")
        if error is None or not self.accepted:
            return error
        text = f"{self.accepted} messages were accepted, then: {error}"
        if self.unroutable and is_queue:
            return OutcomeUnknown(text)
        left, tagged = set(self.left), enumerate(self.messages, self.first)
        return PartlyAccepted(text, [each for tag, each in tagged if tag not in left], error)


@attrs.frozen
class _Published:
    sending: SentBatch
    begin: int  # of its frames, as a position among all bytes that the connection has written


@attrs.define(eq=False)
class SendLane:
    """
    The channel of one queue or exchange, in confirm mode. Its tags count the messages published on
    it.
    """

    queue: str
    connection: RabbitmqConnection
    channel: Channel
    nonce: str
    opened: float = attrs.field(factory=trio.current_time)
    last_tag: int = 0
    users: int = 0
    # True: the channel knows the queue's leader, so that a refusal means a full queue.
    is_known: bool = False
    is_retired: bool = False  # whether the lane is out of use
    in_flight: dict[int, _Published] = attrs.field(factory=dict)
    returned: set[int] = attrs.field(factory=set)
    publish: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.channel.on_unasked = self.on_unasked
        self.channel.on_end = self.on_end
        method = commands.Basic.Publish(exchange="", routing_key=self.queue, mandatory=True)
        self.publish = method_frame(self.channel.number, method)

    @property
    def is_of_exchange(self) -> bool:
        return exchange_in(self.queue) is not None

    def retire(self) -> None:
        """Close the channel as soon as no send waits for its confirms."""
        self.is_retired = True
        if not self.users:
            self.channel.close()

    def passed_to(self, queue: str) -> "SendLane":
        """The lane of another queue on the same channel, which no send uses."""
        return SendLane(
            queue, self.connection, self.channel, self.nonce, self.opened, self.last_tag
        )

    async def prove(self, sent: int) -> None:
        """
        Return if the user may publish. Publishes a message that isn't routed to any queue; an
        exchange is only asked for.

        The broker checks rights at a channel's first publish, and closes the channel without naming
        the message: with several messages in flight, their outcomes would be unknown.

        Raises:
            BrokerError: as `RabbitmqSender.send`; nothing was sent.
        """
        if (exchange := exchange_in(self.queue)) is not None:
            await self.channel.call(asked_for(exchange))
            return
        nowhere = commands.Basic.Publish(
            exchange="", routing_key=f"pairgate-asks-{self.nonce}", mandatory=True
        )
        sending = self.put([_EMPTY], sent, method_frame(self.channel.number, nowhere))
        await sending.done.wait()
        self.is_known = False  # the probe says nothing about the queue
        if sending.error is not None:
            known = sending.error.outcome is Outcome.NOT_SENT
            raise sending.error if known else Unavailable(str(sending.error))

    def put(
        self, messages: Sequence[Outgoing], sent: int, publish: bytes | None = None
    ) -> SentBatch:
        """
        Write the messages to the connection, together and in their order. `publish` is the method
        frame, if not the one for the lane's queue, of messages that have none of their own.

        Raises:
            MessageTooLarge: a message doesn't fit the broker's frames; none was written.
        """
        sending = SentBatch(self.queue, messages, self.last_tag + 1)
        tags = range(self.last_tag + 1, self.last_tag + 1 + len(messages))
        channel, max_frame = self.channel.number, self.connection.max_frame
        method = publish or self.publish
        frames = []
        for tag, message in zip(tags, messages, strict=True):
            head = message.header(CopyId(sent, tag, self.nonce))
            own = message.publish_method
            frames.append(method if own is None else payload_frame(channel, own))
            frames += content_frames(channel, head, message.body, max_frame)
        # the broker counts the written messages: nothing may fail from here on
        self.last_tag += len(messages)
        in_flight = _Published(sending, self.connection.written)
        self.in_flight.update(dict.fromkeys(tags, in_flight))
        self.connection.write_frames(frames)
        return sending

    def on_unasked(self, event: Unasked) -> None:
        match event.method:
            case commands.Basic.Ack(delivery_tag=tag, multiple=multiple):
                self.connection.trust.answered(trio.current_time())
                self._accept(self._taken(tag, multiple=multiple))
            case commands.Basic.Nack(delivery_tag=tag, multiple=multiple):
                self.connection.trust.answered(trio.current_time())
                for each in self._taken(tag, multiple=multiple):
                    if each in self.in_flight:
                        sending = self.in_flight.pop(each).sending
                        sending.left.append(each)
                        sending.refused += 1
                        sending.verdict()
            case commands.Basic.Return():
                assert isinstance(event, ContentArrived)
                copy = copy_in(event.header)
                if copy is not None and copy.tag in self.in_flight:
                    self.returned.add(copy.tag)  # the message's confirm follows

    def on_end(self, error: BrokerError) -> None:
        """
        End all sends in flight: their outcome is unknown, unless their frames were never written or
        the broker's refusal is known.
        """
        waiting, self.in_flight = self.in_flight, {}
        closed_by = self.channel.closed_by
        if closed_by is not None:
            error = error_after_hand_over(*closed_by, len(waiting))
        for tag, each in waiting.items():
            each.sending.left.append(tag)
            if closed_by is None:
                left = each.begin < self.connection.handed
                text = f"{error}, and {self.queue} had not confirmed" if left else str(error)
                each.sending.verdict(OutcomeUnknown(text) if left else Unavailable(text))
            else:
                each.sending.verdict(type(error)(str(error)))

    def _accept(self, tags: Sequence[int]) -> None:
        in_flight, returned = self.in_flight, self.returned
        for tag in tags:
            sending = in_flight.pop(tag).sending
            if tag in returned:
                returned.discard(tag)
                sending.left.append(tag)
                sending.unroutable += 1
            else:
                sending.accepted += 1
                self.is_known = True
            sending.verdict()

    def _taken(self, tag: int, *, multiple: bool) -> list[int]:
        if not multiple:
            return [tag] if tag in self.in_flight else []
        taken = []
        for each in self.in_flight:  # in ascending order
            if tag and each > tag:
                break
            taken.append(each)
        return taken
