"""
Sending to RabbitMQ: publisher confirms with many messages in flight; unroutable messages are
errors.

Each queue has a lane, that is a channel of its own: an error of one queue closes that channel only,
and one queue's confirms don't wait for another's. A broker may allow few channels: a connection has
at most `channel_max`, and a user may have a limit over all connections, at which the broker ends
the connection that asks. So a channel is opened while nothing is in flight on its connection, or
after a connection of its own was allowed one. Where no further one is allowed, an unused lane gives
its channel to the queue.
"""

import math
import random
import sys
from collections.abc import Sequence
from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.brokers.rabbitmq.lane import SendLane, SentBatch
from gateway.brokers.rabbitmq.limited import LimitedConnection, UserLimit
from gateway.changes import QueueTurn
from gateway.domain.errors import (
    BrokerError,
    Busy,
    BusyReason,
    Unavailable,
)
from gateway.net.rabbitmq.channel import Channel
from gateway.net.rabbitmq.connection import RabbitmqConnection
from gateway.net.reconnecting import ANY_TIME, Reconnecting, recently
from gateway.ports import WallClock
from gateway.wire.rabbitmq.errors import is_user_limit
from gateway.wire.rabbitmq.properties import Outgoing

MAX_LANES: Final = 256  # channels that are kept for recently used queues
MAX_UNCONFIRMED: Final = 10_000  # messages per queue; a queue with more doesn't confirm at all
_PROMPT: Final = 1.0  # seconds; a slower refusal comes from a queue without a majority
_QUIET: Final = 0.1  # seconds, at most, that sends are held back before a channel is opened
_TRIAL_WAIT: Final = 1.0  # seconds to ask for a channel on another connection
_COUNTED: Final = 0.1  # seconds after which the broker doesn't count a closed channel any more
_LANE_WAIT: Final = 1.0  # seconds for a lane that is in use to become free
_LIMITED: Final = 60.0  # seconds after which a user's limit of channels is tried again


class LeaderUnknown(BrokerError):
    """
    A queue refused the first message on a channel, and kept nothing: it is full, or has no leader
    at the moment. Never leaves the adapter.
    """


@attrs.define(eq=False, kw_only=True)
class RabbitmqSender:
    """
    Publishes to queues over a connection that carries nothing else, since the broker may block it.
    """

    _connections: Reconnecting[RabbitmqConnection]
    _clock: WallClock
    _rng: random.Random
    _limit: UserLimit
    # Carries nothing: what it is refused costs no message.
    _trial: LimitedConnection
    _has_other_hosts: bool = False
    _max_lanes: int = MAX_LANES
    _lanes: dict[str, SendLane] = attrs.field(
        factory=dict, init=False
    )  # the last used lane is last
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
            self._verdict(lane, each, began, led_since) if isinstance(each, SentBatch) else each
            for each in under_way
        ]
        if any(error is not None and error.counts_as_outage for error in verdicts):
            self._leave_if_bad(lane.connection, began)
        return verdicts

    async def _check_room(self, lane: SendLane, messages: int) -> None:
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
        self, lane: SendLane, under_way: Sequence[SentBatch | BrokerError | None], began: float
    ) -> None:
        try:
            for each in under_way:
                if isinstance(each, SentBatch) and not each.done.is_set():
                    await each.done.wait()
        except trio.Cancelled:
            self._leave_if_silent(lane.connection, began)
            raise

    def _put(self, lane: SendLane, messages: Sequence[Outgoing]) -> SentBatch | BrokerError | None:
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
        self, lane: SendLane, sending: SentBatch, began: float, led_since: float
    ) -> BrokerError | None:
        if sending.is_refused and lane.is_of_exchange:
            self._retire(lane)  # the channel may know an old leader of a queue that is bound
        elif sending.is_refused and not lane.is_known:
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
        self.check_blocked(await self._connections.get(recently()))

    def check_blocked(self, connection: RabbitmqConnection) -> None:
        if connection.blocked is not None:
            raise Unavailable(f"the broker takes no messages now: {connection.blocked}")

    async def _lane(self, queue: str, since: float) -> SendLane:
        # On the path of every message: awaits only if there is something to wait for.
        lane = self._usable(queue)
        if lane is None:
            async with self._opening:
                lane = self._usable(queue) or await self._open(queue, since)
        self._lanes[queue] = self._lanes.pop(queue, lane)
        return lane

    def _usable(self, queue: str) -> SendLane | None:
        lane = self._lanes.get(queue)
        if lane is None or lane.channel.is_over:
            return None
        return lane if lane.connection is self._connections.current else None

    async def _open(self, queue: str, since: float) -> SendLane:
        try:
            lane = await self._new_lane(queue, since)
        except Unavailable as error:
            if not is_user_limit(str(error)):
                raise
            lane = await self._new_lane(queue, since)  # fewer channels, on another connection
        self._lanes[queue] = lane
        return lane

    async def _new_lane(self, queue: str, since: float) -> SendLane:
        connection = await self._connections.get(since)
        self.check_blocked(connection)  # a blocked connection opens no channels either
        self._lanes.pop(queue, None)
        self._forget_others(connection)
        if len(self._lanes) < self._most_lanes(connection):
            return await self._opened(queue, connection)
        return await self._passed_on(queue, connection)

    async def _opened(self, queue: str, connection: RabbitmqConnection) -> SendLane:
        channel = await self._open_channel(connection)
        lane = SendLane(queue, connection, channel, f"{self._rng.getrandbits(64):016x}")
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
            if not await self._is_quiet():
                self._let_go()
                await self._try_elsewhere()
            return await connection.open_channel()
        except BrokerError as error:
            if is_user_limit(str(error)):
                self._user_lanes = max(1, used)
                self._believed = trio.current_time() + _LIMITED
                self._limit.believe()
            raise
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Hold no sends back any more."""
        self._holding = False
        self._held.unpark_all()

    async def _try_elsewhere(self) -> None:
        """
        Ask for a channel on a connection that carries nothing, and close it again.

        Raises:
            Unavailable: the user has as many channels as it may.
        """
        with trio.move_on_after(_TRIAL_WAIT):
            try:
                for channel in await self._trial.open():
                    channel.close()
                self._trial.leave()
                await trio.sleep(_COUNTED)
            except BrokerError as error:
                if is_user_limit(str(error)):
                    raise

    async def _is_quiet(self) -> bool:
        """
        Return True when nothing is in flight; False after a while, as a queue may not confirm at
        all.
        """
        under_way = {
            id(each.sending): each.sending
            for lane in self._lanes.values()
            for each in lane.in_flight.values()
        }
        with trio.move_on_after(_QUIET) as scope:
            for sending in under_way.values():
                await sending.done.wait()
        return not scope.cancelled_caught

    def _most_lanes(self, connection: RabbitmqConnection) -> int:
        most = min(self._max_lanes, connection.max_channels)
        return min(most, self._user_lanes) if trio.current_time() < self._believed else most

    async def _passed_on(self, queue: str, connection: RabbitmqConnection) -> SendLane:
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

    def _retire(self, lane: SendLane) -> None:
        if self._lanes.get(lane.queue) is lane:
            del self._lanes[lane.queue]
        lane.retire()

    def _now(self) -> int:
        return int(self._clock().timestamp() * 1000)
