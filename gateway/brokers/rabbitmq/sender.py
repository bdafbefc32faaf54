"""
Sending to RabbitMQ: publisher confirms with many messages in flight; unroutable messages are
errors.

Each queue has a lane, that is a channel of its own: an error of one queue closes that channel only,
and one queue's confirms don't wait for another's. A broker may allow few channels: a connection has
at most `channel_max`, and a user may have a limit over all connections, at which the broker ends
the connection that asks. So a channel is opened while nothing is in flight on its connection, and
where no further one is allowed an unused lane gives its channel to the queue.
"""

import math
import random
import sys
from collections.abc import Sequence
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq.limited import UserLimit
from gateway.changes import QueueTurn
from gateway.domain.errors import (
    BrokerError,
    Busy,
    BusyReason,
    EntityNotFound,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import Message
from gateway.net.rabbitmq.channel import Channel, Unasked
from gateway.net.rabbitmq.connection import RabbitmqConnection
from gateway.net.reconnecting import ANY_TIME, Reconnecting
from gateway.ports import WallClock
from gateway.wire.rabbitmq.errors import error_after_hand_over, is_user_limit
from gateway.wire.rabbitmq.frames import ContentArrived, content_frames, method_frame
from gateway.wire.rabbitmq.properties import CopyId, Outgoing, copy_in, prepare

MAX_LANES: Final = 256  # channels that are kept for recently used queues
MAX_UNCONFIRMED: Final = 10_000  # messages per queue; a queue with more doesn't confirm at all
_PROMPT: Final = 1.0  # seconds; a slower refusal comes from a queue without a majority
_QUIET: Final = 0.1  # seconds, at most, that sends are held back before a channel is opened
_LANE_WAIT: Final = 1.0  # seconds for a lane that is in use to become free
_LIMITED: Final = 60.0  # seconds after which a user's limit of channels is tried again
_EMPTY: Final = prepare(Message(body=b""))


class LeaderUnknown(BrokerError):
    """
    A queue refused the first message on a channel, and kept nothing: it is full, or has no leader
    at the moment. Never leaves the adapter.
    """


@attrs.define(eq=False)
class _Sending:
    """
    A batch that is being sent: the number of messages that wait for their confirm, and the results
    so far.
    """

    queue: str
    open: int
    accepted: int = 0
    refused: int = 0  # because the queue is full
    unroutable: int = 0
    error: BrokerError | None = None
    done: trio.Event = attrs.field(factory=trio.Event)

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
        """None: all messages were accepted. If only some were, the outcome is unknown."""
        error = self.error
        if error is None and self.unroutable:
            error = EntityNotFound(f"{self.queue}: no such queue")
        elif error is None and self.refused:
            error = QuotaExceeded(f"{self.queue}: refused by the queue, which is full")
        if error is not None and self.accepted:
            return OutcomeUnknown(f"{self.accepted} messages were accepted, then: {error}")
        return error


@attrs.frozen
class _InFlight:
    sending: _Sending
    begin: int  # of its frames, as a position among all bytes that the connection has written


@attrs.define(eq=False)
class _Lane:
    """The channel of one queue, in confirm mode. Its tags count the messages published on it."""

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
    in_flight: dict[int, _InFlight] = attrs.field(factory=dict)
    returned: set[int] = attrs.field(factory=set)
    publish: bytes = b""

    def __attrs_post_init__(self) -> None:
        self.channel.on_unasked = self.on_unasked
        self.channel.on_end = self.on_end
        method = commands.Basic.Publish(exchange="", routing_key=self.queue, mandatory=True)
        self.publish = method_frame(self.channel.number, method)

    def retire(self) -> None:
        """Close the channel as soon as no send waits for its confirms."""
        self.is_retired = True
        if not self.users:
            self.channel.close()

    def passed_to(self, queue: str) -> "_Lane":
        """The lane of another queue on the same channel, which no send uses."""
        return _Lane(queue, self.connection, self.channel, self.nonce, self.opened, self.last_tag)

    async def prove(self, sent: int) -> None:
        """
        Return if the user may publish. Publishes a message that isn't routed to any queue.

        The broker checks rights at a channel's first publish, and closes the channel without naming
        the message: with several messages in flight, their outcomes would be unknown.

        Raises:
            BrokerError: as `RabbitmqSender.send`; nothing was sent.
        """
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
    ) -> _Sending:
        """
        Write the messages to the connection, together and in their order. `publish` is the method
        frame, if not the one for the lane's queue.

        Raises:
            MessageTooLarge: a message doesn't fit the broker's frames; none was written.
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
        # the broker counts the written messages: nothing may fail from here on
        self.last_tag += len(messages)
        in_flight = _InFlight(sending, self.connection.written)
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
        for each in waiting.values():
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


@attrs.define(eq=False, kw_only=True)
class RabbitmqSender:
    """
    Publishes to queues over a connection that carries nothing else, since the broker may block it.
    """

    _connections: Reconnecting[RabbitmqConnection]
    _clock: WallClock
    _rng: random.Random
    _limit: UserLimit
    _has_other_hosts: bool = False
    _max_lanes: int = MAX_LANES
    _lanes: dict[str, _Lane] = attrs.field(factory=dict, init=False)  # the last used lane is last
    _opening: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _holding: bool = attrs.field(default=False, init=False)  # sends wait until a channel is open
    _held: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _freed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    # The lanes that a user's limit allows, and until when that is believed.
    _user_lanes: int = attrs.field(default=sys.maxsize, init=False)
    _believed: float = attrs.field(default=-math.inf, init=False)

    async def send(
        self,
        queue: str,
        messages: Sequence[Outgoing],
        since: float = ANY_TIME,
        led_since: float = -math.inf,
    ) -> None:
        """As `send_many`, for one batch. Raises its verdict."""
        [verdict] = await self.send_many(queue, [messages], since, led_since)
        if verdict is not None:
            raise verdict

    async def send_many(
        self,
        queue: str,
        batches: Sequence[Sequence[Outgoing]],
        since: float = ANY_TIME,
        led_since: float = -math.inf,
        turn: QueueTurn | None = None,
    ) -> Sequence[BrokerError | None]:
        """
        Return once the broker has confirmed or refused all messages; the verdicts are as in
        `SendsMany.send_many`. `since` is that of `Reconnecting.get`. The turn ends when all are
        written, in their order.

        `led_since` is when the queue was last seen with a leader. Only channels opened later surely
        know that leader.

        The verdict for a batch is None, or:
            LeaderUnknown: refused on a channel that may not know the leader; the next send opens
                another channel.
            EntityNotFound: the queue doesn't exist; nothing was kept.
            QuotaExceeded: the queue is full and refuses (`reject-publish`).
            NotAuthorized, MessageTooLarge: the broker refuses.
            OutcomeUnknown: the connection was lost, or the channel while other messages were in
                flight on it.

        Raises:
            Unavailable: not connected, the broker takes no messages at the moment, or allows no
                further channel.
            Busy: the queue doesn't confirm, and too many messages wait.
            BrokerError: no channel could be opened. In all cases nothing was sent.
        """
        lane = await self._lane(queue, since)
        lane.users += 1
        try:
            await self._check_room(lane, sum(map(len, batches)))
            began = trio.current_time()
            under_way = [self._put(lane, messages) for messages in batches]
            if turn is not None:
                turn.release()
            await self._wait_for_confirms(lane, under_way, began)
        finally:
            lane.users -= 1
            self._freed.unpark()
            if lane.is_retired:
                lane.retire()
        verdicts = [
            self._verdict(lane, each, began, led_since) if isinstance(each, _Sending) else each
            for each in under_way
        ]
        if any(error is not None and error.counts_as_outage for error in verdicts):
            self._leave_if_bad(lane.connection, began)
        return verdicts

    async def _check_room(self, lane: _Lane, messages: int) -> None:
        """Return once the messages may be written. Raises as `send_many`."""
        while self._holding:
            await self._held.park()
        if not lane.connection.has_room:
            await lane.connection.wait_for_room()
        self.check_blocked(lane.connection)
        if lane.channel.error is not None:
            raise Unavailable(str(lane.channel.error))
        if len(lane.in_flight) + messages > MAX_UNCONFIRMED:
            raise Busy(
                f"{lane.queue} doesn't confirm messages: {MAX_UNCONFIRMED} wait for a confirm",
                retry_after=1.0,
                reason=BusyReason.UNCONFIRMED,
            )

    async def _wait_for_confirms(
        self, lane: _Lane, under_way: Sequence[_Sending | BrokerError | None], began: float
    ) -> None:
        try:
            for each in under_way:
                if isinstance(each, _Sending) and not each.done.is_set():
                    await each.done.wait()
        except trio.Cancelled:
            self._leave_if_silent(lane.connection, began)
            raise

    def _put(self, lane: _Lane, messages: Sequence[Outgoing]) -> _Sending | BrokerError | None:
        """
        Write a batch. Return None if it has no messages, or the error because of which it can't be
        written.
        """
        if not messages:
            return None
        try:
            return lane.put(messages, self._now())
        except BrokerError as error:
            return error

    def _verdict(
        self, lane: _Lane, sending: _Sending, began: float, led_since: float
    ) -> BrokerError | None:
        if sending.is_refused and not lane.is_known:
            is_prompt = trio.current_time() - began < _PROMPT
            lane.is_known = is_prompt and lane.opened >= led_since
            if not lane.is_known:
                self._retire(lane)
                return LeaderUnknown(
                    f"{lane.queue} takes no messages: it has no leader, or is full"
                )
        return sending.verdict_of_all()

    async def check(self) -> None:
        """
        Return if messages could be sent now, as far as known.

        Raises:
            BrokerError: they couldn't.
        """
        self.check_blocked(await self._connections.get())

    def check_blocked(self, connection: RabbitmqConnection) -> None:
        if connection.blocked is not None:
            raise Unavailable(f"the broker takes no messages now: {connection.blocked}")

    async def _lane(self, queue: str, since: float) -> _Lane:
        # On the path of every message: awaits only if there is something to wait for.
        lane = self._usable(queue)
        if lane is None:
            async with self._opening:
                lane = self._usable(queue) or await self._open(queue, since)
        self._lanes[queue] = self._lanes.pop(queue, lane)
        return lane

    def _usable(self, queue: str) -> _Lane | None:
        lane = self._lanes.get(queue)
        if lane is None or lane.channel.is_over:
            return None
        return lane if lane.connection is self._connections.current else None

    async def _open(self, queue: str, since: float) -> _Lane:
        try:
            lane = await self._new_lane(queue, since)
        except Unavailable as error:
            if not is_user_limit(str(error)):
                raise
            lane = await self._new_lane(queue, since)  # fewer channels, on another connection
        self._lanes[queue] = lane
        return lane

    async def _new_lane(self, queue: str, since: float) -> _Lane:
        connection = await self._connections.get(since)
        self.check_blocked(connection)  # a blocked connection opens no channels either
        self._lanes.pop(queue, None)
        self._forget_others(connection)
        if len(self._lanes) < self._most_lanes(connection):
            return await self._opened(queue, connection)
        return await self._passed_on(queue, connection)

    async def _opened(self, queue: str, connection: RabbitmqConnection) -> _Lane:
        channel = await self._open_channel(connection)
        lane = _Lane(queue, connection, channel, f"{self._rng.getrandbits(64):016x}")
        try:
            await channel.call(commands.Confirm.Select())
            await lane.prove(self._now())
        except BaseException:
            channel.close()
            raise
        return lane

    async def _open_channel(self, connection: RabbitmqConnection) -> Channel:
        """Open a channel. Raises Unavailable at a user's limit, which ends the connection."""
        used, self._holding = len(self._lanes), True
        try:
            await self._wait_until_quiet()
            return await connection.open_channel()
        except BrokerError as error:
            if is_user_limit(str(error)):
                self._user_lanes = max(1, used)
                self._believed = trio.current_time() + _LIMITED
                self._limit.believe()
            raise
        finally:
            self._holding = False
            self._held.unpark_all()

    async def _wait_until_quiet(self) -> None:
        """Return when nothing is in flight; or soon, as a queue may not confirm at all."""
        under_way = {
            id(each.sending): each.sending
            for lane in self._lanes.values()
            for each in lane.in_flight.values()
        }
        with trio.move_on_after(_QUIET):
            for sending in under_way.values():
                await sending.done.wait()

    def _most_lanes(self, connection: RabbitmqConnection) -> int:
        most = min(self._max_lanes, connection.max_channels)
        return min(most, self._user_lanes) if trio.current_time() < self._believed else most

    async def _passed_on(self, queue: str, connection: RabbitmqConnection) -> _Lane:
        """
        The lane of the queue on the channel of the least recently used lane that no send uses.

        Raises:
            Unavailable: all lanes stay in use.
        """
        with trio.move_on_after(_LANE_WAIT):
            while True:
                self._forget_others(connection)
                for name, lane in self._lanes.items():
                    if not lane.users and not lane.in_flight:
                        del self._lanes[name]
                        return lane.passed_to(queue)
                await self._freed.park()
        raise Unavailable(
            f"sends to {len(self._lanes)} queues are in progress, and no further channel is allowed"
        )

    def _forget_others(self, connection: RabbitmqConnection) -> None:
        """Forget lanes that have ended, or that a connection had which was replaced."""
        for name, lane in list(self._lanes.items()):
            if lane.channel.is_over or lane.connection is not connection:
                del self._lanes[name]

    def _leave_if_silent(self, connection: RabbitmqConnection, began: float) -> None:
        """
        Leave a connection on which nothing is confirmed. A cluster has other nodes: one that is cut
        off from them accepts messages, but doesn't confirm any.
        """
        now = trio.current_time()
        if not connection.trust.given_up(began, now):
            return
        if self._has_other_hosts:
            connection.fail(Unavailable(f"{connection}: no confirm for {now - began:.1f} s"))
        self._leave(connection)

    def _leave_if_bad(self, connection: RabbitmqConnection, began: float) -> None:
        if not connection.is_over and connection.trust.failed(began, trio.current_time()):
            self._leave(connection)

    def _leave(self, connection: RabbitmqConnection) -> None:
        """Use another connection from now on. Sends under way on this one get their answers."""
        self._connections.replace(connection)
        for lane in [each for each in self._lanes.values() if each.connection is connection]:
            self._retire(lane)
        connection.replaced()

    def _retire(self, lane: _Lane) -> None:
        if self._lanes.get(lane.queue) is lane:
            del self._lanes[lane.queue]
        lane.retire()

    def _now(self) -> int:
        return int(self._clock().timestamp() * 1000)
