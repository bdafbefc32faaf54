"""Requests of the gateway's own on a channel of the primary, one at a time."""

from collections import deque
from typing import Final

import attrs
import trio
from pamqp import base, commands

# Seconds for an answer: RabbitMQ itself waits up to 15 for a quorum queue without its leader.
ANSWER: Final = 30.0


class ChannelRefused(Exception):
    """The primary has closed the channel instead of an answer."""

    def __init__(self, close: commands.Channel.Close) -> None:
        super().__init__(close.reply_text)
        self.code, self.text = close.reply_code or 0, close.reply_text


@attrs.define(eq=False)
class ChannelReplies:
    """The methods that the primary sends on that channel."""

    _arrived: deque[base.Frame] = attrs.field(factory=deque)
    _wake: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def put(self, method: base.Frame) -> None:
        self._arrived.append(method)
        self._wake.unpark_all()

    async def answer_to(self, request: base.Frame) -> base.Frame:
        """
        Return the answer.

        Raises:
            ChannelRefused: the channel is closed.
            trio.TooSlowError: none came.
        """
        with trio.fail_after(ANSWER):
            while True:
                while not self._arrived:
                    await self._wake.park()
                reply = self._arrived.popleft()
                if isinstance(reply, commands.Channel.Close):
                    raise ChannelRefused(reply)
                if reply.name in request.valid_responses:
                    return reply
