"""
The requests of a client on its channels: passed to the primary while the channel is there. If it
isn't, they are answered from what is remembered, or held until it is.
"""

import secrets
from collections.abc import Iterable
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.frontends.rabbitmq.channel import AwaitedRequest, RelayedChannel
from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.known_topology import Inequivalent
from gateway.frontends.rabbitmq.publishes import Publishes
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.frontends.rabbitmq.topology import is_large
from gateway.wire.rabbitmq.errors import (
    NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    error_after_hand_over,
)
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.relayed import SETTLEMENTS, RelayedFrame, delivery_tag

# Seconds that a request waits for the primary: half of what RabbitMQ.Client waits for an answer.
PATIENCE: Final = 10.0
# Requests of a connection, and their bytes, that wait for the primary or for its answers: a client
# that asks for answers has one on each channel.
_MOST_WAITING: Final = 1000
_MOST_BYTES: Final = 1024 * 1024
_KINDS: Final = {  # by the class of a method
    commands.Queue.frame_id: "queue",
    commands.Exchange.frame_id: "exchange",
}
_TX: Final = (commands.Tx.Select, commands.Tx.Commit, commands.Tx.Rollback)


@attrs.define(eq=False)
class Requests:
    _session: ClientSession
    _publishes: Publishes
    _ending: Ending
    _nursery: trio.Nursery
    _answered: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    async def wait_for_answers(self) -> None:
        """Return when the primary owes the client few answers, which it may not read."""
        while _are_many(
            request.frame
            for channel in self._session.channels.values()
            for request in channel.awaited
        ):
            await self._answered.park()

    def record_answer(self, channel: RelayedChannel, answer: base.Frame) -> AwaitedRequest | None:
        """Note an answer of the primary; return its request."""
        self._answered.unpark_all()
        return channel.answered(answer)

    def handle(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """Handle a method of the client that has no content."""
        if self._session.is_on_wire and (channel.is_open_upstream or channel.owes_close_ok):
            self._pass_on(channel, frame)
        elif frame.method_index in SETTLEMENTS:
            self._settle_away(channel, frame)
        else:
            self._handle_away(channel, frame, frame.method())

    def _pass_on(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """Pass a method to the primary; note what it changes there."""
        if frame.method_index in SETTLEMENTS:
            self._session.to_primary.put(channel.tags.settled(frame))
            return
        method = frame.method()
        session = self._session
        match method:
            case commands.Tx.Select():
                channel.is_transacted = True
            case commands.Channel.CloseOk():
                session.close_channel(channel)
            case commands.Confirm.Select():
                channel.upstream_confirms = channel.client_confirms = True
        if method.synchronous and not getattr(method, "nowait", False):
            channel.awaited.append(AwaitedRequest(frame, method, trio.current_time()))
        else:
            self._record(channel, method, None)
        session.to_primary.put(frame.data)

    def on_reply(self, channel: RelayedChannel, frame: RelayedFrame, method: base.Frame) -> None:
        """Handle a method of the primary that has no content: an answer, a close, a cancel."""
        request = self.record_answer(channel, method)
        if request is not None:
            self._record(channel, request.method, method)
            if isinstance(request.method, commands.Tx.Commit):
                self._publishes.counts.committed(channel.in_transaction, request.since)
            if isinstance(request.method, commands.Tx.Commit | commands.Tx.Rollback):
                channel.in_transaction = 0
        data = frame.data
        match method:
            case commands.Channel.Close():
                channel.awaited.clear()
                channel.is_closed = True
                data = method_frame(channel.number, channel.tags.of_client(method))
                left = len(channel.by_tag)
                error = error_after_hand_over(method.reply_code or 0, method.reply_text, left)
                self._publishes.forget(channel, error)
                channel.owes_close_ok = True
            case commands.Channel.CloseOk():
                self._publishes.forget(channel)
                self._session.close_channel(channel)
            case commands.Basic.Cancel():
                self._record(channel, method, None)
        self._session.to_client.put(data)

    def _record(
        self, channel: RelayedChannel, request: base.Frame, answer: base.Frame | None
    ) -> None:
        """Note a request that is accepted, for the return."""
        session = self._session
        if session.topology.is_too_large:
            return
        for ended in channel.setup.record(request, answer):
            session.record_end(ended)
        session.topology.record(request, answer)
        if not is_large(request):
            session.target.known.record(session.login.vhost, request)

    def has_waited_since(self, moment: float) -> bool:
        """True if the primary owes an answer since then."""
        channels = self._session.channels.values()
        return any(channel.awaited and channel.awaited[0].since <= moment for channel in channels)

    # --- away

    def lose(self) -> None:
        """The connection upstream is lost: answer what was asked, or hold it."""
        self._answered.unpark_all()
        for channel in list(self._session.channels.values()):
            awaited, channel.awaited = channel.awaited, []
            for request in awaited:
                # Where the queue may be missing, the primary is to say so.
                if isinstance(request.method, commands.Basic.Consume):
                    self._hold(channel, request.frame)
                elif _is_exclusive(request.method):
                    # The primary may have made it, and hold it for a while.
                    self._record(channel, request.method, None)
                    self._hold(channel, request.frame)
                else:
                    self._handle_away(channel, request.frame, request.method)

    def _settle_away(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        """A channel that is being set up delivers already; what was lost is delivered again."""
        if not channel.tags.is_unknown(frame):
            self._session.to_primary.put(channel.tags.settled(frame))
        elif channel.replies is None:
            text = f"PRECONDITION_FAILED - unknown delivery tag {delivery_tag(frame)}"
            self._publishes.close_channel(channel, PRECONDITION_FAILED, text, frame.method_index)

    def _handle_away(
        self, channel: RelayedChannel, frame: RelayedFrame, method: base.Frame
    ) -> None:
        if channel.replies is not None or channel.held:
            self._hold(channel, frame)
        elif isinstance(method, commands.Channel.Close):
            self._nursery.start_soon(self._close_channel, channel)
        elif isinstance(method, commands.Channel.CloseOk):
            self._session.close_channel(channel)
        elif isinstance(method, _TX):
            self._ending.close_away()
        elif not self._answer(channel, method):
            self._hold(channel, frame)

    def _answer(self, channel: RelayedChannel, method: base.Frame) -> bool:
        """Answer from what is remembered; False: only the primary can."""
        if isinstance(method, commands.Basic.Consume) and not self._may_consume(channel, method):
            return True
        try:
            answer = _answer_away(method)
            if answer is None:
                answer = self._answer_to_declare(channel, method)
        except Inequivalent as error:
            self._publishes.close_channel(channel, PRECONDITION_FAILED, str(error), method.index)
            return True
        if answer is None:
            return False
        self._record(channel, method, answer)
        if self._session.topology.is_too_large:  # it can't be laid again
            self._ending.close_away()
        if not getattr(method, "nowait", False) and method.synchronous:
            self._session.answer(channel.number, answer)
        return True

    def _answer_to_declare(self, channel: RelayedChannel, method: base.Frame) -> base.Frame | None:
        """The answer to what is known, or will be made at the return."""
        if isinstance(method, commands.Queue.Declare) and _is_exclusive(method):
            return commands.Queue.DeclareOk(method.queue, 0, 0)
        channel.setup.name(method)
        if isinstance(method, commands.Queue.Bind) and self._session.topology.has(method.queue):
            return commands.Queue.BindOk()
        return self._session.target.known.answer(self._session.login.vhost, method)

    def _may_consume(self, channel: RelayedChannel, consume: commands.Basic.Consume) -> bool:
        if consume.consumer_tag in channel.setup.consumers:
            text = f"NOT_ALLOWED - attempt to reuse consumer tag '{consume.consumer_tag}'"
            self._ending.close(NOT_ALLOWED, text)
            return False
        return True

    def _hold(self, channel: RelayedChannel, frame: RelayedFrame) -> None:
        if not channel.held:
            channel.held_since = trio.current_time()
        channel.held.append(frame)
        channels = self._session.channels.values()
        if _are_many(held for each in channels for held in each.held):
            self._ending.close_away()

    def release_held(self, channel: RelayedChannel) -> None:
        """The channel is open again: pass on what waits for it."""
        held, channel.held = channel.held, []
        for frame in held:
            self.handle(channel, frame)

    def refuse_late(self, now: float) -> None:
        """Refuse what has waited longer than a client should: only the primary can answer it."""
        for channel in list(self._session.channels.values()):
            if not channel.held or now - channel.held_since < PATIENCE:
                continue
            method = channel.held[0].method()
            if (kind := _KINDS.get(method.index >> 16)) and channel.replies is None:
                channel.held.clear()
                text = f"NOT_FOUND - the {kind}'s node is down or inaccessible"
                self._publishes.close_channel(channel, NOT_FOUND, text, method.index)
            else:
                self._ending.close_away()

    async def _close_channel(self, channel: RelayedChannel) -> None:
        await self._publishes.wait_until_pair_is_done()
        if self._session.channels.get(channel.number) is channel:
            self._session.close_channel(channel)
            self._session.answer(channel.number, commands.Channel.CloseOk())


def _are_many(waiting: Iterable[RelayedFrame]) -> bool:
    sizes = [len(frame.data) for frame in waiting]
    return len(sizes) > _MOST_WAITING or sum(sizes) > _MOST_BYTES


def _is_exclusive(request: base.Frame) -> bool:
    return isinstance(request, commands.Queue.Declare) and bool(request.exclusive and request.queue)


def _answer_away(method: base.Frame) -> base.Frame | None:
    """The answer to a request that nobody but the gateway need know of now."""
    match method:
        case commands.Basic.Consume():
            tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
            return commands.Basic.ConsumeOk(consumer_tag=tag)
        case commands.Basic.Cancel():
            return commands.Basic.CancelOk(consumer_tag=method.consumer_tag)
        case commands.Basic.Get():
            return commands.Basic.GetEmpty()
        case commands.Channel.Flow():
            return commands.Channel.FlowOk(active=method.active)
        case _:
            kind = _PLAIN.get(type(method))
            return None if kind is None else kind()


_PLAIN: Final[dict[type[base.Frame], type[base.Frame]]] = {
    commands.Basic.Qos: commands.Basic.QosOk,
    commands.Basic.Recover: commands.Basic.RecoverOk,
    commands.Basic.RecoverAsync: commands.Basic.RecoverOk,  # not told: it has no answer
    commands.Channel.Open: commands.Channel.OpenOk,
    commands.Confirm.Select: commands.Confirm.SelectOk,
}
