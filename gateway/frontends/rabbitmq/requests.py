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
from gateway.frontends.rabbitmq.replies import ChannelReplies
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.frontends.rabbitmq.topology import is_large
from gateway.wire.rabbitmq.errors import (
    NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    error_after_hand_over,
    queue_that_is_down,
)
from gateway.wire.rabbitmq.frames import METHOD, method_frame
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
# Requests that lose nothing if they are answered while the queue's node is down.
_FOR_LATER: Final = (
    commands.Queue.Declare,
    commands.Queue.Bind,
    commands.Basic.Consume,
    commands.Basic.Get,
)
# Without an answer they are fulfilled: the queue is there, and a consumer is remembered.
_SILENT: Final = frozenset({commands.Queue.Declare.index, commands.Basic.Consume.index})
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

    async def prepare_transaction(self, number: int) -> None:
        """
        Return when the channel may begin a transaction, or the primary is to refuse it. It refuses
        each channel with confirms; those that the gateway alone has selected end with the channel
        upstream, which is opened again. A channel with consumers or deliveries isn't, as these
        would end, too. If it isn't open again in time, the connection ends.
        """
        channel = self._session.channels.get(number)
        if channel is None or not self._may_end_confirms(channel):
            return
        with trio.move_on_after(PATIENCE):
            await self._publishes.wait_for_verdicts(channel)
            while channel.awaited:
                await self._answered.park()
            if not self._may_end_confirms(channel):
                return
            self._publishes.lose_channel(channel)
            channel.owes_close = True
            self._lay_again(channel)
        with trio.move_on_after(PATIENCE):
            while channel.replies is not None:
                await self._answered.park()
        if channel.replies is not None:
            self._ending.close_away()

    def _may_end_confirms(self, channel: RelayedChannel) -> bool:
        is_there = self._session.is_on_wire and channel.is_open_upstream
        return is_there and channel.has_confirms_to_end and self._may_lay(channel)

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
        frame = _with_queue(channel, frame, method)
        if session.down.names and self._answer_for_down(channel, method):
            return
        match method:
            case commands.Tx.Select():
                channel.is_transacted = True
            case commands.Channel.CloseOk():
                session.close_channel(channel)
            case commands.Confirm.Select():
                channel.upstream_confirms = channel.client_confirms = True
        if method.synchronous and not getattr(method, "nowait", False):
            turn = session.turns.hold()
            channel.awaited.append(AwaitedRequest(frame, method, trio.current_time(), turn=turn))
        else:
            self._record(channel, method, None)
        session.to_primary.put(frame.data)

    def on_reply(self, channel: RelayedChannel, frame: RelayedFrame, method: base.Frame) -> None:
        """Handle a method of the primary that has no content: an answer, a close, a cancel."""
        request = self.record_answer(channel, method)
        if request is not None and request.is_own:
            return
        if request is not None:
            self._on_answer(channel, request, method)
        match method:
            case commands.Channel.Close():
                if not self._answer_close(channel, method):
                    self._close_channel_of(channel, method)
                return
            case commands.Channel.CloseOk():
                self._publishes.forget(channel)
                self._session.close_channel(channel)
            case commands.Basic.Cancel() if method.consumer_tag in channel.setup.consumers:
                self._session.down.cancelled.append((channel, method))
                self._session.down.changes.notify()
                return  # until it's known whether the queue's node is down
        self._session.to_client.put(frame.data)

    def _on_answer(
        self, channel: RelayedChannel, request: AwaitedRequest, answer: base.Frame
    ) -> None:
        self._record(channel, request.method, answer)
        if isinstance(request.method, commands.Tx.Commit):
            self._publishes.counts.committed(channel.in_transaction, request.since)
        if isinstance(request.method, commands.Tx.Commit | commands.Tx.Rollback):
            channel.in_transaction = 0

    def _close_channel_of(self, channel: RelayedChannel, close: commands.Channel.Close) -> None:
        """Tell the client that the primary has closed its channel."""
        channel.drop_awaited()
        channel.is_closed = True
        told = method_frame(channel.number, channel.tags.of_client(close))
        left = len(channel.by_tag)
        error = error_after_hand_over(close.reply_code or 0, close.reply_text, left)
        self._publishes.forget(channel, error)
        channel.owes_close_ok = True
        self._session.to_client.put(told)

    def on_cancel(self, channel: RelayedChannel, method: commands.Basic.Cancel) -> None:
        """The primary has ended a consumer, which won't come back by itself."""
        self._record(channel, method, None)
        self._session.answer(channel.number, method)

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

    # --- a queue whose node is down

    def _answer_for_down(self, channel: RelayedChannel, method: base.Frame) -> bool:
        """Answer a request for a queue that is down; False: the primary is to answer it."""
        if channel.awaited or not self._may_lay(channel) or not isinstance(method, _FOR_LATER):
            return False
        channel.setup.name(method)
        if method.queue not in self._session.down.names:
            return False
        is_answered = self._answer(channel, method)
        channel.names_queues |= is_answered  # the primary hasn't heard of a declaration
        self._session.suspend_consumers()
        return is_answered

    def _answer_close(self, channel: RelayedChannel, close: commands.Channel.Close) -> bool:
        """
        Answer the request for which the primary has closed the channel, and have the channel opened
        again. False: the client is to know of the close.
        """
        index = (close.class_id or 0) << 16 | (close.method_id or 0)
        queue = queue_that_is_down(close.reply_code or 0, close.reply_text)
        first = channel.awaited[0] if channel.awaited else None
        is_own = first is not None and first.is_own and first.method.index == index
        if not is_own and not (queue and self._may_lay(channel)):
            return False
        if queue:
            self.record_down(queue, close.reply_text)
        if first is not None and (is_own or _is_of(first.method, index, queue)):
            channel.awaited.pop(0).release()
            is_answered = is_own or self._answer(channel, first.method)
        else:
            is_answered = index in _SILENT  # the client wants no answer
        if is_answered:
            self._session.suspend_consumers()
            self._open_again(channel)
        return is_answered

    def _may_lay(self, channel: RelayedChannel) -> bool:
        """True if the channel can be opened again without the client's notice."""
        return not (channel.is_transacted or self._session.topology.is_too_large)

    def _open_again(self, channel: RelayedChannel) -> None:
        """Have the channel opened again; meanwhile what else the client has asked there waits."""
        session = self._session
        awaited = channel.drop_awaited()
        if channel.is_closed:  # by the answer
            channel.owes_close_ok = True
            return
        self._publishes.lose_channel(channel)
        session.ask(channel.number, commands.Channel.CloseOk())
        for request in awaited:
            if not request.is_own:
                self._hold(channel, request.frame)
        self._lay_again(channel)

    def _lay_again(self, channel: RelayedChannel) -> None:
        channel.replies = ChannelReplies()
        self._session.down.closed.append(channel)
        self._session.down.changes.notify()

    def record_down(self, queue: str, text: str) -> None:
        """The primary says, by that text, that the queue's node is down."""
        session = self._session
        if queue not in session.down.names:
            session.down.names.add(queue)
            session.down.changes.notify()
            self._publishes.record_down(queue, text)
        session.suspend_consumers()

    def resume(self, channel: RelayedChannel) -> None:
        """Let the consumers of a channel go on whose queues aren't down any more."""
        for method in channel.setup.resume(self._session.down.names):
            if not getattr(method, "nowait", False):
                frame = _frame_of(channel, method)
                channel.awaited.append(
                    AwaitedRequest(frame, method, trio.current_time(), is_own=True)
                )
            self._session.ask(channel.number, method)

    def has_waited_since(self, moment: float) -> bool:
        """True if the primary owes an answer since then."""
        channels = self._session.channels.values()
        return any(channel.awaited and channel.awaited[0].since <= moment for channel in channels)

    # --- away

    def lose(self) -> None:
        """The connection upstream is lost: answer what was asked, or hold it."""
        self._answered.unpark_all()
        for channel in list(self._session.channels.values()):
            channel.replies = None
            awaited = channel.drop_awaited()
            for request in awaited:
                if request.is_own:
                    continue
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
            self._publishes.close_channel(channel, error.code, str(error), method.index)
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
        self._answered.unpark_all()
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


def _frame_of(channel: RelayedChannel, method: base.Frame) -> RelayedFrame:
    return RelayedFrame(METHOD, channel.number, method_frame(channel.number, method))


def _with_queue(channel: RelayedChannel, frame: RelayedFrame, method: base.Frame) -> RelayedFrame:
    """The frame of a method for the primary, with the queue's name if that doesn't know it."""
    if isinstance(method, commands.Queue.Declare):
        channel.names_queues = False
    elif channel.names_queues and channel.setup.name(method):
        return _frame_of(channel, method)
    return frame


def _are_many(waiting: Iterable[RelayedFrame]) -> bool:
    sizes = [len(frame.data) for frame in waiting]
    return len(sizes) > _MOST_WAITING or sum(sizes) > _MOST_BYTES


def _is_of(request: base.Frame, index: int, queue: str) -> bool:
    """True if the request has that method, and is for that queue, or the last that was declared."""
    return request.index == index and getattr(request, "queue", None) in {"", queue}


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
