"""
The publishes of one client: written to the primary while it is well, given to the pair if not, and
kept until one of the two has confirmed them.
"""

from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.failover import State
from gateway.frontends.rabbitmq.by_pair import PairSends, WireEvidence
from gateway.frontends.rabbitmq.channel import KeptPublish, RelayedChannel
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.frontends.rabbitmq.wire_counts import ENDED, NACK, WireCounts
from gateway.wire.rabbitmq.errors import NOT_FOUND, PRECONDITION_FAILED, error_of
from gateway.wire.rabbitmq.exchanges import entity_of_queue, exchange_in
from gateway.wire.rabbitmq.frames import ProtocolError
from gateway.wire.rabbitmq.properties import refusal_of_properties
from gateway.wire.rabbitmq.relayed import RelayedContent, RelayedFrame, read_publish

# Bytes of publishes that a connection may have without a confirm, before it is read again: several
# of the largest that RabbitMQ 4 takes by default.
MAX_KEPT: Final = 64 * 1024 * 1024
LARGEST: Final = 128 * 1024 * 1024  # bytes of a body: RabbitMQ's own limit up to 3.13


@attrs.define(eq=False)
class Publishes:
    _session: ClientSession
    _nursery: trio.Nursery
    _evidence: WireEvidence = attrs.field(init=False)
    _pair: PairSends = attrs.field(init=False)
    counts: WireCounts = attrs.field(init=False)
    _kept_bytes: int = attrs.field(default=0, init=False)
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    # A publish could neither be written nor be given to the pair.
    refused: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        target = self._session.target
        self._evidence = WireEvidence(target.states)
        self.counts = WireCounts(target.sends)
        self._pair = PairSends(broker=target.broker, nursery=self._nursery)

    # --- from the client

    def begin(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """Begin a publish with its method."""
        channel.incoming = RelayedContent(frame)
        self._hold(channel.incoming.size)

    def add(self, channel: RelayedChannel, content: RelayedContent, frame: RelayedFrame) -> None:
        """
        Add a frame of a publish, which is sent when it's whole.

        Raises:
            ProtocolError: the frame isn't part of it, or too much is unfinished.
        """
        content.add(frame, LARGEST)
        self._hold(len(frame.data))
        if content.is_whole:
            channel.incoming = None
            if self._session.load is not None and not self._has_unfinished:
                self._session.load.finish(self)
            self._publish(channel, content)
        elif self._kept_bytes > MAX_KEPT + LARGEST:
            raise ProtocolError("too many unfinished messages at a time")

    async def wait_for_room(self) -> None:
        """Return when the connection and its client may have more bytes."""
        while self._kept_bytes > MAX_KEPT and not self._has_unfinished:
            await self._room.park()
        load = self._session.load
        while load is not None and load.is_full and not load.may_finish(self):
            await load.wait_for_less()

    @property
    def _has_unfinished(self) -> bool:
        return any(channel.incoming is not None for channel in self._session.channels.values())

    def _hold(self, size: int) -> None:
        self._kept_bytes += size
        if self._session.load is not None:
            self._session.load.hold(size)

    def _finish(self, kept: KeptPublish) -> None:
        """The publish has its verdict."""
        self._release(kept.content)
        if kept.turn is not None:
            kept.turn.release()
            kept.turn = None

    def _release(self, content: RelayedContent) -> None:
        size = content.size
        self._kept_bytes -= size
        self._room.unpark_all()
        if self._session.load is not None:
            self._session.load.release(size)

    def release_all(self) -> None:
        """Hold nothing any more: the connection has ended."""
        for channel in self._session.channels.values():
            left = [kept for kept in channel.by_tag.values() if not kept.is_moved]
            self.counts.failed(left, None)
            channel.by_tag.clear()  # they refer to the channel, and their bytes are to be free now
        if self._session.load is not None:
            self._session.load.finish(self)
            self._session.load.release(self._kept_bytes)
            self._session.load = None  # a task that ends in this pass counts nothing more
        self._session.turns.drop()

    # --- the two ways

    def _publish(self, channel: RelayedChannel, content: RelayedContent) -> None:
        publish = read_publish(content.method)
        kept = channel.counted(content, publish, trio.current_time())
        session = self._session
        kept.turn = session.turns.hold()
        known, vhost = session.target.known, session.login.vhost
        if not kept.exchange and known.is_exclusive(vhost, publish.routing_key):
            kept.entity = None  # the queue ends with its connection: nothing can come home to it
        if self._is_on_wire(channel, kept):
            self._write(channel, kept)
        else:
            self._give_to_pair(channel, kept)

    def _is_on_wire(self, channel: RelayedChannel, kept: KeptPublish) -> bool:
        entity = kept.entity
        if not self._session.is_on_wire or not channel.is_open_upstream:
            return False
        if entity is None or channel.is_transacted or not self._may_use_pair(kept):
            return True
        if self._session.target.alarm.is_on or self._pair.has(entity):
            return False
        return self._session.target.states.state_of(entity) is State.PRIMARY

    def _write(self, channel: RelayedChannel, kept: KeptPublish) -> None:
        if not channel.upstream_confirms and not channel.is_transacted:
            channel.upstream_confirms = True
            self._session.ask(channel.number, commands.Confirm.Select(nowait=True))
        self._session.to_primary.put(b"".join(kept.content.frames))
        if channel.is_transacted:
            channel.in_transaction += 1
            self._finish(kept)
            return
        channel.keep(kept)
        if kept.entity is not None:
            self._evidence.written(kept.entity)

    def _may_use_pair(self, kept: KeptPublish) -> bool:
        """
        True if the primary has let this login publish to that exchange, or a policy does; the pair
        has rights of its own.
        """
        login, target = self._session.login, self._session.target
        if login.vhost != target.vhost:
            return False
        is_allowed = (login.digest, kept.exchange) in target.may_publish
        return is_allowed or target.policies.may_publish(login, kept.entity)

    def _give_to_pair(self, channel: RelayedChannel, kept: KeptPublish) -> None:
        if channel.is_closed:
            self._finish(kept)
            return
        refusal = self._refusal_of(kept)
        is_away = not (self._session.is_on_wire and channel.is_open_upstream)
        if refusal is not None and is_away:
            self._finish(kept)
            self.counts.failed([kept], error_of(*refusal))
            self.close_channel(channel, *refusal, commands.Basic.Publish.index)
            return
        channel.with_pair += 1
        if kept.entity is None or refusal is not None or not self._may_use_pair(kept):
            error = Unavailable("the primary can't be reached")
            self.counts.failed([kept], error)
            self._record_verdict(kept, error)
            if kept.client_tag is None:  # only so the client can know
                self.refused.set()
            return
        self._pair.add(kept.entity, kept, self._record_verdict)

    def _refusal_of(self, kept: KeptPublish) -> tuple[int, str] | None:
        """Code and text with which the primary would close the channel; None: it wouldn't."""
        login, exchange = self._session.login, kept.exchange
        if not self._session.target.known.has_exchange(login.vhost, exchange):
            return NOT_FOUND, f"NOT_FOUND - no exchange '{exchange}' in vhost '{login.vhost}'"
        text = refusal_of_properties(kept.content.header, login.user)
        return (PRECONDITION_FAILED, f"PRECONDITION_FAILED - {text}") if text else None

    def close_channel(self, channel: RelayedChannel, code: int, text: str, index: int) -> None:
        """
        Close a channel of the client, as the primary does after an error. `index` is that of the
        method at fault.
        """
        channel.is_closed = True
        self.forget(channel)
        class_id, method_id = divmod(index, 0x10000)
        close = commands.Channel.Close(code, text[:255], class_id, method_id)
        self._session.answer(channel.number, close)

    # --- verdicts

    def _record_verdict(self, kept: KeptPublish, verdict: BrokerError | None) -> None:
        channel = kept.channel
        channel.with_pair -= 1
        self._finish(kept)
        if self._session.channels.get(channel.number) is channel and not channel.is_closed:
            self._announce_alarm(verdict)
            confirms = channel.confirms([kept], accepted=verdict is None)
            self._session.to_client.put_answer(confirms)

    def _announce_alarm(self, verdict: BrokerError | None) -> None:
        """The client hears of the primary's alarm while the pair takes no publishes either."""
        session, alarm = self._session, self._session.target.alarm
        is_over = verdict is None or not alarm.is_on
        if is_over and session.hears_of_alarm:
            session.hears_of_alarm = False
            session.answer(0, commands.Connection.Unblocked())
        elif not is_over and session.login.hears_alarms and not session.hears_of_alarm:
            session.hears_of_alarm = True
            session.answer(0, commands.Connection.Blocked(alarm.reason))

    def watch_alarm(self) -> None:
        """Tell the client when the alarm is over."""
        if not self._session.target.alarm.is_on:
            self._announce_alarm(None)

    def confirm(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """Handle the primary's `basic.ack` or `basic.nack`."""
        method = frame.method()
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack), "its index says so"
        found = channel.settle(method.delivery_tag, multiple=bool(method.multiple))
        accepted = isinstance(method, commands.Basic.Ack)
        for kept in found:
            self._finish(kept)
            if kept.is_moved:
                continue
            if (entity := kept.entity) is not None:
                self._evidence.confirmed(entity)
                if accepted:
                    self._allow(kept.exchange)
        mine = [kept for kept in found if not kept.is_moved]
        if accepted:
            self.counts.accepted(mine)
        else:
            self.counts.failed(mine, NACK)
        self._session.to_client.put(channel.confirms(mine, accepted=accepted))

    def _allow(self, exchange: str) -> None:
        login, target = self._session.login, self._session.target
        target.may_publish[login.digest, exchange] = None
        if exchange:
            target.known.record_exchange(login.vhost, exchange)

    def forget(self, channel: RelayedChannel, error: BrokerError = ENDED) -> None:
        """
        The channel is closed: its publishes without a confirm end with that error, and what arrives
        after is dropped.
        """
        if channel.incoming is not None:
            self._release(channel.incoming)
            channel.incoming = None
        left = channel.lose()
        for kept in left:
            self._finish(kept)
            if not kept.is_moved and (entity := kept.entity) is not None:
                self._evidence.dropped(entity)
        self.counts.failed([kept for kept in left if not kept.is_moved], error)

    def lose_channel(self, channel: RelayedChannel) -> None:
        """The channel upstream is closed, through no fault of its publishes: the pair gets them."""
        for kept in channel.lose():
            if kept.is_moved:
                self._finish(kept)
                continue
            if kept.entity is not None:
                self._evidence.dropped(kept.entity)
            kept.in_doubt = True
            self._give_to_pair(channel, kept)

    def record_down(self, queue: str, text: str) -> None:
        """The primary says, by that text, that the queue's node is down."""
        entity, states = entity_of_queue(queue), self._session.target.states
        is_known = self._session.login.vhost == self._session.target.vhost
        if is_known and exchange_in(entity.name) is None:  # else the pair doesn't know it
            states.failed(states.begin(entity), Unavailable(text))

    def lose(self) -> None:
        """The connection upstream is lost: give the pair all that has no confirm."""
        channels = self._session.channels.values()
        left = [(channel, each) for channel in channels for each in channel.lose()]
        self._evidence.lost(Unavailable("the connection to the primary was lost"))
        for channel, kept in left:
            if kept.is_moved:
                self._finish(kept)
            else:
                kept.in_doubt = True
                self._give_to_pair(channel, kept)

    # --- time

    def is_silent(self, now: float, heard: float) -> bool:
        """
        Give the pair the publishes whose entity alone is late. True if the primary is frozen:
        publishes are late, and nothing was heard.
        """
        late = now - self._session.target.slow
        found = False
        for channel in self._session.channels.values():
            for kept in channel.by_tag.values():
                if kept.since > late:
                    break
                if kept.is_moved or (entity := kept.entity) is None:
                    continue
                if not self._may_use_pair(kept):
                    continue
                found = True
                if heard >= kept.since:  # the entity alone is late
                    self._move(channel, kept, entity)
        return found and heard <= late

    def _move(self, channel: RelayedChannel, kept: KeptPublish, entity: EntityPath) -> None:
        kept.is_moved = True
        self._evidence.silent(entity)
        self._hold(kept.content.size)  # the wire has it, too
        self._give_to_pair(channel, attrs.evolve(kept, is_moved=False, in_doubt=True, turn=None))

    def record_silence(self) -> None:
        """The primary is frozen, and its connection is given up."""
        for channel in self._session.channels.values():
            for kept in channel.by_tag.values():
                if not kept.is_moved and (entity := kept.entity) is not None:
                    self._evidence.silent(entity)

    @property
    def pair_has_any(self) -> bool:
        return any(channel.with_pair for channel in self._session.channels.values())

    async def wait_until_pair_is_done(self) -> None:
        """Return when the pair has a verdict for all that it was given."""
        await self._pair.wait_until_done()

    async def wait_for_verdicts(self, channel: RelayedChannel) -> None:
        """Return when each publish of the channel has its verdict."""
        while channel.with_pair or any(not kept.is_moved for kept in channel.by_tag.values()):
            await self._room.park()

    async def wait_until_confirmed(self) -> None:
        """Return when the primary owes no confirm."""
        while any(channel.by_tag for channel in self._session.channels.values()):
            await self._room.park()
