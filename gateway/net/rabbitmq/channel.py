"""
A channel of a connection to RabbitMQ: requests with their answers, and events from the broker.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs
import trio
from pamqp import base, commands

from gateway.domain.errors import BrokerError, Unavailable
from gateway.wire.rabbitmq.errors import error_of
from gateway.wire.rabbitmq.frames import ContentArrived, MethodArrived

Unasked = MethodArrived | ContentArrived

_ANSWERS = (
    commands.Channel.OpenOk,
    commands.Channel.CloseOk,
    commands.Confirm.SelectOk,
    commands.Basic.QosOk,
    commands.Basic.ConsumeOk,
    commands.Basic.CancelOk,
    commands.Queue.DeclareOk,
    commands.Queue.DeleteOk,
    commands.Exchange.DeclareOk,
)


class ConnectionLine(Protocol):
    """The operations of the connection that a channel needs."""

    @property
    def asks_for_channels(self) -> bool: ...

    async def wait_for_channels(self) -> None: ...

    def write(self, channel: int, *methods: base.Frame) -> None: ...

    def forget(self, number: int) -> None: ...


@attrs.define(eq=False)
class PendingAnswer:
    """The pending answer to a request."""

    method: base.Frame | None = None
    error: BrokerError | None = None
    _there: trio.Event = attrs.field(factory=trio.Event)

    def settle(self, method: base.Frame | None, error: BrokerError | None = None) -> None:
        self.method, self.error = method, error
        self._there.set()

    async def wait(self) -> base.Frame:
        """
        Return the answer.

        Raises:
            BrokerError: the channel was closed first. Whether the request was carried out is
                unknown.
        """
        await self._there.wait()
        if self.error is not None:
            raise type(self.error)(str(self.error))
        assert self.method is not None
        return self.method


@attrs.define(eq=False)
class Channel:
    """
    Lives until one side closes it, or the broker gives an answer that no pending request has.
    `on_unasked` and `on_end` are called in the reader's task, and
    must neither wait nor raise. `holds` says if the end of the channel would cost its user a lock.

    `closed_by` is the broker's code and text if the broker closed this channel only.
    """

    number: int
    _line: ConnectionLine
    on_unasked: Callable[[Unasked], None] = attrs.field(default=lambda _: None)
    on_end: Callable[[BrokerError], None] = attrs.field(default=lambda _: None)
    holds: Callable[[], bool] = attrs.field(default=lambda: False)
    closed_by: tuple[int, str] | None = attrs.field(default=None, init=False)
    error: BrokerError | None = attrs.field(default=None, init=False)
    _awaited: deque[tuple[PendingAnswer, base.Frame]] = attrs.field(factory=deque, init=False)

    @property
    def is_over(self) -> bool:
        return self.error is not None

    @property
    def is_at_risk(self) -> bool:
        """True while its connection asks for a channel: a refusal ends all that it has."""
        return self.error is None and self._line.asks_for_channels

    async def wait_until_safe(self) -> None:
        """Return when the channel isn't at risk."""
        while self.is_at_risk:
            await self._line.wait_for_channels()

    def ask(self, *methods: base.Frame) -> list[PendingAnswer]:
        """Write requests; answers of one kind arrive in the order of their requests."""
        answers = [PendingAnswer() for _ in methods]
        for answer, method in zip(answers, methods, strict=True):
            self.ask_for(answer, method)
        return answers

    def ask_for(self, answer: PendingAnswer, method: base.Frame) -> None:
        """Write one request with an existing `PendingAnswer`, which may have waiters already."""
        if self.error is not None:
            answer.settle(None, self.error)
            return
        self._awaited.append((answer, method))
        self._line.write(self.number, method)

    async def call(self, *methods: base.Frame) -> base.Frame:
        """
        Write requests; return the answer to the last.

        Raises:
            BrokerError: the channel was closed first, because of a request or with its connection.
        """
        answers = self.ask(*methods)
        for answer in answers:
            await answer.wait()
        return await answers[-1].wait()

    def send(self, *methods: base.Frame) -> None:
        """Write methods that have no answer. Does nothing if the channel has ended."""
        if self.error is None:
            self._line.write(self.number, *methods)

    def close(self) -> None:
        """Close the channel without waiting. The broker requeues unacknowledged messages."""
        if self.error is None:
            self._line.write(self.number, _goodbye())
            self._end(Unavailable("the channel was closed"), tell=False)

    def handle(self, event: Unasked) -> None:
        """Handle a method that the connection has read for this channel."""
        method = event.method
        if isinstance(event, ContentArrived):
            if self.error is None:
                self.on_unasked(event)
        elif isinstance(method, commands.Channel.Close):
            self.closed_by = method.reply_code or 0, method.reply_text
            self._line.forget(self.number)
            self._end(error_of(*self.closed_by), tell=True)
        elif isinstance(method, commands.Channel.CloseOk):
            self._line.forget(self.number)
        elif isinstance(method, _ANSWERS):
            self._answered(method)
        elif self.error is None:
            self.on_unasked(event)

    def fail(self, error: BrokerError) -> None:
        """Note that the connection has ended."""
        if self.error is None:
            self._end(error, tell=True)

    def _answered(self, method: base.Frame) -> None:
        """
        Settle the oldest request that has answers of this kind; if there is none, end the channel.

        RabbitMQ leaves the answers to consume and cancel to the queue's process, so that the answer
        to a later request may overtake them.
        """
        for entry in self._awaited:
            if method.name in entry[1].valid_responses:
                self._awaited.remove(entry)
                entry[0].settle(method)
                return
        if self.error is None:
            asked = ", ".join([each.name for _, each in self._awaited]) or "no request"
            self._line.write(self.number, _goodbye())
            self._end(Unavailable(f"the broker answered {method.name} to {asked}"), tell=True)

    def _end(self, error: BrokerError, *, tell: bool) -> None:
        self.error = error
        awaited, self._awaited = self._awaited, deque()
        for answer, _ in awaited:
            answer.settle(None, error)
        if tell:
            self.on_end(error)


def _goodbye() -> base.Frame:
    return commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0)
