"""
The return to the primary: what has ended with the client's last connection is made again, then its
channels are opened, with their prefetch and consumers.

The primary may hold the old connection for a while, as after a freeze: its exclusive queues (405)
and exclusive consumers (403) are refused until it's gone, and are tried again.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import trio
from pamqp import base, commands

from gateway.frontends.rabbitmq.channel import RelayedChannel
from gateway.frontends.rabbitmq.channel_setup import LaidConsumer
from gateway.frontends.rabbitmq.ending import FORCED, Ending
from gateway.frontends.rabbitmq.replies import ChannelRefused, ChannelReplies
from gateway.frontends.rabbitmq.requests import Requests
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.errors import ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED

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
        Return when all is as it was, or the client knows.

        Raises:
            trio.TooSlowError: the primary doesn't answer.
        """
        session = self._session
        patience = _HEARTBEATS * session.login.heartbeat or _WITHOUT_HEARTBEATS
        self._patient_until = trio.current_time() + patience
        while made := [(request, None) for request in session.topology.changed_requests()]:
            await self._lay_topology(made)
        session.is_on_wire = True
        async with trio.open_nursery() as nursery:
            for channel in list(session.channels.values()):
                if not channel.is_closed:
                    channel.replies = ChannelReplies()
                    nursery.start_soon(self._lay, channel, channel.replies)

    async def _lay_topology(self, made: Sequence[tuple[base.Frame, None]]) -> None:
        """Make it again on a channel that the client doesn't use: a refusal closes the channel."""
        channels, login = self._session.channels, self._session.login
        number = max(set(range(1, login.max_channels + 1)).difference(channels), default=0)
        if not number:
            self._ending.close_away()
            await trio.sleep_forever()
        channel = channels[number] = RelayedChannel(number, replies=ChannelReplies())
        assert channel.replies is not None, "they are new"
        try:
            if not await self._asked(channel, channel.replies, made):
                self._session.topology.lose()  # all of it is due again, less what is gone
        finally:
            del channels[number]

    async def _lay(self, channel: RelayedChannel, replies: ChannelReplies) -> None:
        try:
            while not await self._asked(channel, replies, channel.setup.requests()):
                pass  # the primary has closed the channel
            channel.is_open_upstream = True
        finally:
            channel.replies = None
        self._requests.release_held(channel)

    async def _asked(
        self,
        channel: RelayedChannel,
        replies: ChannelReplies,
        requests: Iterable[tuple[base.Frame, LaidConsumer | None]],
    ) -> bool:
        """Make the requests, one by one; False: the channel was closed, and they are due again."""
        for request, consumer in requests:
            self._session.ask(channel.number, request)
            try:
                await replies.answer_to(request)
            except ChannelRefused as refusal:
                channel.tags.lose()
                self._session.ask(channel.number, commands.Channel.CloseOk())
                if not self._ends_with(request, refusal):
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
