"""One channel of a connection to RabbitMQ: requests with their answers, and what comes unasked."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs
import trio
from pamqp import base, commands

from gateway.domain.errors import BrokerError, Unavailable
from gateway.wire.rabbitmq import ContentArrived, MethodArrived
from gateway.wire.rabbitmq_errors import error_of

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
)


class Line(Protocol):
    """The connection, as its channels see it."""

    def write(self, channel: int, *methods: base.Frame) -> None: ...

    def forget(self, number: int) -> None: ...


@attrs.define(eq=False)
class Answer:
    """What was asked and isn't answered yet."""

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
            BrokerError: the channel was closed instead. Nobody knows whether it was done.
        """
        await self._there.wait()
        if self.error is not None:
            raise type(self.error)(str(self.error))
        assert self.method is not None
        return self.method


@attrs.define(eq=False)
class Channel:
    """
    Lives until somebody closes it. `on_unasked` and `on_end` are called in the reader's task, and
    neither waits nor raises.

    `closed_by` is the broker's code and text, where it was the broker who closed just this channel.
    """

    number: int
    _line: Line
    on_unasked: Callable[[Unasked], None] = attrs.field(default=lambda _: None)
    on_end: Callable[[BrokerError], None] = attrs.field(default=lambda _: None)
    closed_by: tuple[int, str] | None = attrs.field(default=None, init=False)
    error: BrokerError | None = attrs.field(default=None, init=False)
    _awaited: deque[Answer] = attrs.field(factory=deque, init=False)

    @property
    def is_over(self) -> bool:
        return self.error is not None

    def ask(self, *methods: base.Frame) -> list[Answer]:
        """Write requests; their answers come in that order."""
        answers = [Answer() for _ in methods]
        for answer, method in zip(answers, methods, strict=True):
            self.ask_for(answer, method)
        return answers

    def ask_for(self, answer: Answer, method: base.Frame) -> None:
        """Write one request, whose answer somebody waits for already."""
        if self.error is not None:
            answer.settle(None, self.error)
            return
        self._awaited.append(answer)
        self._line.write(self.number, method)

    async def call(self, *methods: base.Frame) -> base.Frame:
        """
        Write requests; return the answer to the last.

        Raises:
            BrokerError: the channel was closed instead: for what was asked, or with its connection.
        """
        answers = self.ask(*methods)
        for answer in answers:
            await answer.wait()
        return await answers[-1].wait()

    def tell(self, *methods: base.Frame) -> None:
        """Write what has no answer. Nothing happens on a channel that is over."""
        if self.error is None:
            self._line.write(self.number, *methods)

    def close(self) -> None:
        """Say goodbye and wait for nothing. The broker takes back what wasn't acknowledged."""
        if self.error is None:
            self.ask(commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            self._end(Unavailable("the channel was closed"), tell=False)

    def handle(self, event: Unasked) -> None:
        """What the connection has read for this channel."""
        method = event.method
        if isinstance(method, commands.Channel.Close):
            self.closed_by = method.reply_code or 0, method.reply_text
            self._line.forget(self.number)
            self._end(error_of(*self.closed_by), tell=True)
        elif isinstance(method, commands.Channel.CloseOk):
            self._line.forget(self.number)
        elif isinstance(method, _ANSWERS) and self._awaited:
            self._awaited.popleft().settle(method)
        elif self.error is None:
            self.on_unasked(event)

    def end(self, error: BrokerError) -> None:
        """Its connection is over."""
        if self.error is None:
            self._end(error, tell=True)

    def _end(self, error: BrokerError, *, tell: bool) -> None:
        self.error = error
        awaited, self._awaited = self._awaited, deque()
        for answer in awaited:
            answer.settle(None, error)
        if tell:
            self.on_end(error)
