"""
Sending to RabbitMQ: publisher confirms with many in flight, and nothing that isn't routed.

Each queue has a lane: a channel of its own, so that what the broker holds against one queue's
messages ends that channel only, and one queue's confirms don't wait for another's.
"""

import random
from collections.abc import Sequence
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import Message
from gateway.net.rabbitmq_channel import Channel, Unasked
from gateway.net.rabbitmq_connection import RabbitmqConnection
from gateway.net.reconnecting import ANY_TIME, Reconnecting
from gateway.ports import WallClock
from gateway.wire.rabbitmq import ContentArrived, content_frames, method_frame
from gateway.wire.rabbitmq_errors import error_after_hand_over
from gateway.wire.rabbitmq_properties import CopyId, Outgoing, copy_in, prepare

MAX_LANES: Final = 256  # channels kept for queues that were sent to
MAX_UNCONFIRMED: Final = 10_000  # messages of one queue: with more, it doesn't confirm any
_EMPTY: Final = prepare(Message(body=b""))


@attrs.define(eq=False)
class _Sending:
    """One call of `send`: how many of its messages await their verdict, and what became of them."""

    queue: str
    open: int
    accepted: int = 0
    refused: int = 0  # full
    unroutable: int = 0
    error: BrokerError | None = None
    done: trio.Event = attrs.field(factory=trio.Event)

    def verdict(self, error: BrokerError | None = None) -> None:
        """One message less to wait for; with an error all of them are done for."""
        self.error = self.error or error
        self.open -= 1
        if self.open == 0 or self.error is not None:
            self.done.set()

    def check(self) -> None:
        """
        Raises:
            BrokerError: not all were accepted. Unknown if some were.
        """
        error = self.error
        if error is None and self.unroutable:
            error = EntityNotFound(f"{self.queue}: there is no such queue")
        elif error is None and self.refused:
            error = QuotaExceeded(f"{self.queue} is full, or can't take messages now")
        if error is None:
            return
        if self.accepted:
            raise OutcomeUnknown(f"{self.accepted} messages were accepted, then: {error}")
        raise error


@attrs.frozen
class _InFlight:
    sending: _Sending
    begin: int  # of its frames, in what the connection ever wrote


@attrs.define(eq=False)
class _Lane:
    """The channel for one queue, with confirms; tags count the messages published on it."""

    queue: str
    connection: RabbitmqConnection
    channel: Channel
    nonce: str
    last_tag: int = 0
    users: int = 0
    in_flight: dict[int, _InFlight] = attrs.field(factory=dict)
    returned: set[int] = attrs.field(factory=set)
    publish: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.channel.on_unasked = self.on_unasked
        self.channel.on_end = self.on_end
        method = commands.Basic.Publish(exchange="", routing_key=self.queue, mandatory=True)
        self.publish = method_frame(self.channel.number, method)

    async def prove(self, sent: int) -> None:
        """
        Return if the user may publish: ask by a message that nobody can get.

        The broker looks at rights when a channel first publishes, and closes it without saying
        which message it means: of several on their way nobody would know what became of them.

        Raises:
            BrokerError: as `RabbitmqSender.send`; nothing was sent.
        """
        nowhere = commands.Basic.Publish(
            exchange="", routing_key=f"pairgate-asks-{self.nonce}", mandatory=True
        )
        sending = self.put([_EMPTY], sent, method_frame(self.channel.number, nowhere))
        await sending.done.wait()
        if sending.error is not None:
            known = sending.error.outcome is Outcome.NOT_SENT
            raise sending.error if known else Unavailable(str(sending.error))

    def put(
        self, messages: Sequence[Outgoing], sent: int, publish: bytes | None = None
    ) -> _Sending:
        """
        Hand the messages to the connection, together and in their order; `publish` says where to,
        if not to the lane's queue.

        Raises:
            MessageTooLarge: the broker's frames don't hold one; none was handed over.
        """
        sending = _Sending(self.queue, len(messages))
        tags = range(self.last_tag + 1, self.last_tag + 1 + len(messages))
        channel, max_frame = self.channel.number, self.connection.max_frame
        method = publish or self.publish
        frames = []
        for tag, message in zip(tags, messages, strict=True):
            head = message.header(CopyId(sent, tag, self.nonce))
            frames.append(method)
            frames += content_frames(channel, head, message.body, max_frame)
        # The broker counts what is written: from here on nothing fails.
        self.last_tag += len(messages)
        in_flight = _InFlight(sending, self.connection.written)
        self.in_flight.update(dict.fromkeys(tags, in_flight))
        self.connection.write_frames(frames)
        return sending

    def on_unasked(self, event: Unasked) -> None:
        match event.method:
            case commands.Basic.Ack(delivery_tag=tag, multiple=multiple):
                for each in self._taken(tag, multiple=multiple):
                    self._accept(each)
            case commands.Basic.Nack(delivery_tag=tag, multiple=multiple):
                for each in self._taken(tag, multiple=multiple):
                    if each in self.in_flight:
                        sending = self.in_flight.pop(each).sending
                        sending.refused += 1
                        sending.verdict()
            case commands.Basic.Return():
                assert isinstance(event, ContentArrived)
                copy = copy_in(event.header)
                if copy is not None and copy.tag in self.in_flight:
                    self.returned.add(copy.tag)  # its confirm follows

    def on_end(self, error: BrokerError) -> None:
        """Who was on the way: unknown, unless it never left or its refusal is known."""
        waiting, self.in_flight = self.in_flight, {}
        closed_by = self.channel.closed_by
        if closed_by is not None:
            error = error_after_hand_over(*closed_by, len(waiting))
        for each in waiting.values():
            if closed_by is None:
                left = each.begin < self.connection.handed
                text = f"{error}, and {self.queue} had not confirmed" if left else str(error)
                each.sending.verdict(OutcomeUnknown(text) if left else Unavailable(text))
            else:
                each.sending.verdict(type(error)(str(error)))

    def _accept(self, tag: int) -> None:
        sending = self.in_flight.pop(tag).sending
        if tag in self.returned:
            self.returned.discard(tag)
            sending.unroutable += 1
        else:
            sending.accepted += 1
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


@attrs.define(eq=False, kw_only=True)
class RabbitmqSender:
    """Publishes to queues over one connection, which carries nothing else: it may be blocked."""

    _connections: Reconnecting[RabbitmqConnection]
    _clock: WallClock
    _rng: random.Random
    _lanes: dict[str, _Lane] = attrs.field(factory=dict, init=False)  # the one used last is last
    _opening: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def send(self, queue: str, messages: Sequence[Outgoing], since: float = ANY_TIME) -> None:
        """
        Return once the broker has confirmed all messages. `since` is that of `Reconnecting.get`.

        Raises:
            EntityNotFound: there is no such queue; nothing was kept.
            QuotaExceeded: the queue refuses (`reject-publish`).
            NotAuthorized, MessageTooLarge: the broker's word.
            Unavailable: not connected, or the broker takes nothing now.
            OutcomeUnknown: the connection was lost, or the channel with more than this on it.
            Busy: the queue confirms nothing, and too many wait.
        """
        lane = await self._lane(queue, since)
        lane.users += 1
        try:
            if not lane.connection.has_room:
                await lane.connection.wait_for_room()
            self.check_blocked(lane.connection)
            if lane.channel.error is not None:
                raise Unavailable(str(lane.channel.error))
            if len(lane.in_flight) + len(messages) > MAX_UNCONFIRMED:
                raise Busy(f"{queue} doesn't confirm what was sent to it", retry_after=1.0)
            sending = lane.put(messages, self._now())
            await sending.done.wait()
        finally:
            lane.users -= 1
        sending.check()

    async def check(self) -> None:
        """
        Return if messages could be sent now, as far as it can be known.

        Raises:
            BrokerError: they couldn't.
        """
        self.check_blocked(await self._connections.get())

    def check_blocked(self, connection: RabbitmqConnection) -> None:
        if connection.blocked is not None:
            raise Unavailable(f"the broker takes no messages now: {connection.blocked}")

    async def _lane(self, queue: str, since: float) -> _Lane:
        # Each message comes this way: nothing is awaited where there is nothing to wait for.
        connection = self._connections.current or await self._connections.get(since)
        lane = self._usable(queue, connection)
        if lane is None:
            async with self._opening:
                lane = self._usable(queue, connection) or await self._open(queue, connection)
        self._lanes[queue] = self._lanes.pop(queue, lane)
        return lane  # noqa: ASYNC910 who sends waits for its confirm

    def _usable(self, queue: str, connection: RabbitmqConnection) -> _Lane | None:
        lane = self._lanes.get(queue)
        if lane is None or lane.connection is not connection or lane.channel.is_over:
            return None
        return lane

    async def _open(self, queue: str, connection: RabbitmqConnection) -> _Lane:
        self.check_blocked(connection)  # its channels don't open either
        self._lanes.pop(queue, None)
        self._make_room()
        channel = await connection.open_channel()
        nonce = f"{self._rng.getrandbits(64):016x}"
        lane = _Lane(queue, connection, channel, nonce)
        try:
            await channel.call(commands.Confirm.Select())
            await lane.prove(self._now())
        except BaseException:
            channel.close()
            raise
        self._lanes[queue] = lane
        return lane

    def _now(self) -> int:
        return int(self._clock().timestamp() * 1000)

    def _make_room(self) -> None:
        """Give up lanes that nobody uses, those not used for longest first."""
        idle = [queue for queue, lane in self._lanes.items() if not lane.users]
        for queue in idle[: max(0, len(self._lanes) - MAX_LANES + 1)]:
            self._lanes.pop(queue).channel.close()
        if len(self._lanes) >= MAX_LANES:
            raise Busy(f"messages for {MAX_LANES} queues are under way", retry_after=1.0)
