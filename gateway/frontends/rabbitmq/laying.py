"""
The return to the primary: what has ended with the client's last connection is made again, then its
channels are opened, with their prefetch and consumers.

The primary may hold the old connection for a while, as after a freeze: its exclusive queues (405)
and exclusive consumers (403) are refused until it's gone, and are tried again. So are queues whose
node is down (404), alone: the rest goes on without them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.frontends.rabbitmq.channel import RelayedChannel
from gateway.frontends.rabbitmq.channel_setup import LaidConsumer
from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.replies import ChannelRefused, ChannelReplies
from gateway.frontends.rabbitmq.requests import Requests
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.errors import (
    ACCESS_REFUSED,
    FORCED,
    NOT_FOUND,
    RESOURCE_LOCKED,
    queue_that_is_down,
)

_PAUSE: Final = 1.0  # seconds between two tries: the primary looks for heartbeats as often
# The primary ends a silent connection after two to three heartbeats, or when TCP gives it up.
_HEARTBEATS: Final = 4
_WITHOUT_HEARTBEATS: Final = 240.0  # seconds: as with RabbitMQ's default of 60
_HELD_BY_OTHERS: Final = (ACCESS_REFUSED, RESOURCE_LOCKED)
_IN_USE: Final = ("in exclusive use", "exclusive access")


@attrs.define(eq=False)
class Laying:
    _session: ClientSession
    _requests: Requests
    _ending: Ending
    _patient_until: float = attrs.field(default=0.0, init=False)  # by Trio's clock

    async def run(self) -> None:
        """
        Make all as it was, or tell the client; then `keep` it so.

        Raises:
            trio.TooSlowError: the primary doesn't answer; or a group with it.
        """
        session = self._session
        patience = _HEARTBEATS * session.login.heartbeat or _WITHOUT_HEARTBEATS
        self._patient_until = trio.current_time() + patience
        await self._make_again()
        session.is_on_wire = True
        for channel in session.channels.values():
            if not channel.is_closed:
                channel.replies = ChannelReplies()
                session.down.closed.append(channel)
        await self.keep()

    async def keep(self) -> None:
        """
        Until cancelled, open the channels again that the primary closes for queues that are down,
        and let consumers of these go on when they are back.

        Raises:
            ExceptionGroup: with `trio.TooSlowError`: the primary doesn't answer.
        """
        down = self._session.down
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_until_back)
            while True:
                closed, down.closed = down.closed, []
                for channel in closed:
                    nursery.start_soon(self._lay, channel)
                await down.changes.wait_next()

    async def _ask_until_back(self) -> None:
        """Ask for each queue that may be down, every second, until it isn't."""
        down = self._session.down
        while True:
            if not (down.names or down.cancelled):
                await down.changes.wait_next()
                continue
            await self._judge_cancels()
            for queue in sorted(down.names):
                if not await self._why_down(queue):
                    await self._resume(queue)
            with trio.move_on_after(_PAUSE):
                await down.changes.wait_next()

    async def _judge_cancels(self) -> None:
        """Tell the client of consumers that the primary has ended, unless their queues are down."""
        down = self._session.down
        cancelled, down.cancelled = down.cancelled, []
        for channel, cancel in cancelled:
            consumer = channel.setup.consumers.get(cancel.consumer_tag or "")
            if consumer is None or consumer.waits:
                continue
            queue = consumer.method.queue
            if why := await self._why_down(queue):
                self._requests.record_down(queue, why)
            elif channel.setup.consumers.get(consumer.method.consumer_tag) is consumer:
                self._requests.on_cancel(channel, cancel)

    async def _why_down(self, queue: str) -> str:
        """The text with which the primary says that a queue's node is down; empty: it isn't."""
        with self._own_channel() as channel:
            if channel is None:
                return ""
            for request in (
                commands.Channel.Open(),
                commands.Queue.Declare(queue=queue, passive=True),
                commands.Channel.Close(200, "", 0, 0),
            ):
                self._session.ask(channel.number, request)
                try:
                    assert channel.replies is not None, "they are its own"
                    await channel.replies.answer_to(request)
                except ChannelRefused as refusal:
                    self._session.ask(channel.number, commands.Channel.CloseOk())
                    return refusal.text if queue_that_is_down(refusal.code, refusal.text) else ""
        return ""

    async def _resume(self, queue: str) -> None:
        """The queue isn't down any more: lay again what has waited for it."""
        session = self._session
        session.down.names.discard(queue)
        session.topology.lose()
        await self._make_again()
        for channel in session.channels.values():
            if channel.is_open_upstream:
                self._requests.resume(channel)

    async def _make_again(self) -> None:
        """Make the topology of the client, less the queues that are down."""
        session = self._session
        while made := [
            (request, None)
            for request in session.topology.changed_requests()
            if getattr(request, "queue", "") not in session.down.names
        ]:
            await self._lay_topology(made)

    async def _lay_topology(self, made: Sequence[tuple[base.Frame, None]]) -> None:
        """Make it again on a channel that the client doesn't use: a refusal closes the channel."""
        with self._own_channel() as channel:
            if channel is None:
                self._ending.close_away()
                await trio.sleep_forever()
            assert channel is not None, "it slept"
            if not await self._asked(channel, made):
                self._session.topology.lose()  # all of it is due again, less what is gone

    @contextmanager
    def _own_channel(self) -> Iterator[RelayedChannel | None]:
        """A channel that the client doesn't use; None: it uses all."""
        session = self._session
        numbers = range(1, session.login.max_channels + 1)
        number = max(set(numbers).difference(session.channels), default=0)
        if not number:
            yield None
            return
        channel = session.channels[number] = RelayedChannel(number, replies=ChannelReplies())
        try:
            yield channel
        finally:
            del session.channels[number]
            if channel.held:  # the client has opened it in this moment
                session.channels[number] = RelayedChannel(
                    number, held=channel.held, is_open_upstream=session.is_on_wire
                )
                self._requests.release_held(session.channels[number])

    async def _lay(self, channel: RelayedChannel) -> None:
        try:
            if channel.owes_close:
                channel.owes_close = False
                await self._asked(channel, [(commands.Channel.Close(200, "", 0, 0), None)])
            while not await self._asked(channel, channel.setup.requests()):
                pass  # the primary has closed the channel
            channel.is_open_upstream = channel.names_queues = True
        finally:
            channel.replies = None
        self._requests.resume(channel)
        self._requests.release_held(channel)

    async def _asked(
        self,
        channel: RelayedChannel,
        requests: Iterable[tuple[base.Frame, LaidConsumer | None]],
    ) -> bool:
        """Make the requests, one by one; False: the channel was closed, and they are due again."""
        replies = channel.replies
        assert replies is not None, "the channel is being laid"
        for request, consumer in requests:
            self._session.ask(channel.number, request)
            try:
                await replies.answer_to(request)
            except ChannelRefused as refusal:
                channel.tags.lose()
                self._session.ask(channel.number, commands.Channel.CloseOk())
                if queue := queue_that_is_down(refusal.code, refusal.text):
                    self._requests.record_down(queue, refusal.text)
                elif not self._ends_with(request, refusal):
                    await self._handle_refusal(channel, consumer, refusal)
                return False
        return True

    def _ends_with(self, request: base.Frame, refusal: ChannelRefused) -> bool:
        """True if a server-named queue is gone, and the client has heard it by its consumers."""
        session = self._session
        if not isinstance(request, commands.Queue.Declare) or refusal.code != NOT_FOUND:
            return False
        if not session.login.hears_cancels:
            return False
        found = [
            (channel, tag)
            for channel in session.channels.values()
            for tag, each in channel.setup.consumers.items()
            if each.method.queue == request.queue
        ]
        for channel, tag in found:
            session.record_end(channel.setup.consumers.pop(tag))
            session.answer(channel.number, commands.Basic.Cancel(tag, nowait=True))
        if found:
            session.topology.forget_queue(request.queue)
        return bool(found)

    async def _handle_refusal(
        self, channel: RelayedChannel, consumer: LaidConsumer | None, refusal: ChannelRefused
    ) -> None:
        in_use = any(text in refusal.text for text in _IN_USE)
        if in_use and refusal.code in _HELD_BY_OTHERS and trio.current_time() < self._patient_until:
            await trio.sleep(_PAUSE)
        elif refusal.code == NOT_FOUND and consumer and self._session.login.hears_cancels:
            tag = consumer.method.consumer_tag
            if channel.setup.consumers.pop(tag, None) is not None:
                self._session.record_end(consumer)
            self._session.answer(channel.number, commands.Basic.Cancel(tag, nowait=True))
        else:
            self._ending.close(FORCED, f"CONNECTION_FORCED - {refusal.text}")
            await trio.sleep_forever()
