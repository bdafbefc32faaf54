"""
The return to the primary: the client's channels are opened at its new connection, with their
prefetch and consumers.

The primary may hold the old connection for a while, as after a freeze: an exclusive consumer is
refused until it's gone (403), and is tried again.
"""

from typing import Final

import attrs
import trio
from pamqp import commands

from gateway.frontends.rabbitmq.channel import RelayedChannel
from gateway.frontends.rabbitmq.channel_setup import LaidConsumer
from gateway.frontends.rabbitmq.ending import FORCED, Ending
from gateway.frontends.rabbitmq.replies import ChannelRefused, ChannelReplies
from gateway.frontends.rabbitmq.requests import Requests
from gateway.frontends.rabbitmq.session import ClientSession
from gateway.wire.rabbitmq.errors import ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED

_PAUSE: Final = 1.0  # seconds between two tries: the primary looks for heartbeats as often
_HELD_BY_OTHERS: Final = (ACCESS_REFUSED, RESOURCE_LOCKED)
_IN_USE: Final = ("in exclusive use", "exclusive access")


@attrs.define(eq=False)
class Laying:
    _session: ClientSession
    _requests: Requests
    _ending: Ending

    async def run(self) -> None:
        """
        Return when each channel is as it was, or the client knows.

        Raises:
            trio.TooSlowError: the primary doesn't answer.
        """
        session = self._session
        session.is_on_wire = True
        async with trio.open_nursery() as nursery:
            for channel in list(session.channels.values()):
                if not channel.is_closed:
                    channel.replies = ChannelReplies()
                    nursery.start_soon(self._lay, channel, channel.replies)

    async def _lay(self, channel: RelayedChannel, replies: ChannelReplies) -> None:
        try:
            while not await self._set_up(channel, replies):
                channel.tags.lose()  # the primary has closed the channel
            channel.is_open_upstream = True
        finally:
            channel.replies = None
        self._requests.release_held(channel)

    async def _set_up(self, channel: RelayedChannel, replies: ChannelReplies) -> bool:
        """Open the channel; False: another try is needed."""
        for request, consumer in channel.setup.requests():
            self._session.ask(channel.number, request)
            try:
                await replies.answer_to(request)
            except ChannelRefused as refusal:
                self._session.ask(channel.number, commands.Channel.CloseOk())
                await self._handle_refusal(channel, consumer, refusal)
                return False
        return True

    async def _handle_refusal(
        self, channel: RelayedChannel, consumer: LaidConsumer | None, refusal: ChannelRefused
    ) -> None:
        in_use = any(text in refusal.text for text in _IN_USE)
        if in_use and refusal.code in _HELD_BY_OTHERS:
            await trio.sleep(_PAUSE)
        elif refusal.code == NOT_FOUND and consumer and self._session.login.hears_cancels:
            tag = consumer.method.consumer_tag
            del channel.setup.consumers[tag]
            self._session.answer(channel.number, commands.Basic.Cancel(tag, nowait=True))
        else:
            self._ending.close(FORCED, f"CONNECTION_FORCED - {refusal.text}")
            await trio.sleep_forever()
