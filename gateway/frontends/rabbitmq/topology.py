"""
The queues, exchanges and bindings that a client has made and that may end with its connection or
its node: exclusive, auto-delete, transient and server-named ones. They are made again by their
names, except that a server-named queue can only be looked for: its prefix is reserved.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
from pamqp import base, commands

from gateway.domain.errors import MessageError
from gateway.wire.rabbitmq.frames import method_frame, with_any_name

_Bind = commands.Queue.Bind | commands.Exchange.Bind
_Made = commands.Exchange.Declare | commands.Queue.Declare | _Bind
_Binding = tuple[bool, str, str, str, str]  # to a queue, destination, source, key, arguments
# Consumers and things of one connection: some megabytes, and more than an application has.
_MOST: Final = 5000
_LARGEST: Final = 1024  # bytes of a method, whose names have 255 at most; decoded, it has tenfold


def is_large(request: base.Frame) -> bool:
    """
    True if the arguments of a request take more memory than is given to what is remembered, or
    can't be written again.
    """
    if not getattr(request, "arguments", None):
        return False
    try:
        return len(method_frame(0, with_any_name(request))) > _LARGEST
    except MessageError:
        return True


@attrs.define(eq=False)
class ClientTopology:
    _exchanges: dict[str, commands.Exchange.Declare] = attrs.field(factory=dict, init=False)
    _queues: dict[str, commands.Queue.Declare] = attrs.field(factory=dict, init=False)
    _bindings: dict[_Binding, _Bind] = attrs.field(factory=dict, init=False)
    _consumers: Counter[str] = attrs.field(factory=Counter, init=False)  # of each queue
    _consuming: int = attrs.field(default=0, init=False)  # all of them
    # There is more than is remembered: the connection ends with the one to the primary.
    is_too_large: bool = attrs.field(default=False, init=False)
    _is_made: bool = attrs.field(default=True, init=False)  # at the present connection

    def record(self, request: base.Frame, answer: base.Frame | None) -> None:
        """Note a request that the broker has accepted, or that is answered for it."""
        before = self._number
        if isinstance(request, commands.Basic.Consume):
            self._consumers[request.queue] += 1
            self._consuming += 1
        self._record(request, answer)
        if self._number > before and (self._number > _MOST or is_large(request)):
            self.is_too_large = True

    @property
    def _number(self) -> int:
        made = len(self._exchanges) + len(self._queues) + len(self._bindings)
        return made + self._consuming

    def _record(self, request: base.Frame, answer: base.Frame | None) -> None:
        self._is_made = False
        match request:
            case commands.Exchange.Declare() if request.auto_delete or not request.durable:
                if not request.passive:
                    self._exchanges[request.exchange] = request
            case commands.Queue.Declare():
                self._record_queue(request, answer)
            case commands.Queue.Delete():
                self.forget_queue(request.queue)
            case commands.Exchange.Delete():
                self._forget_exchange(request.exchange)
            case commands.Queue.Bind() | commands.Exchange.Bind():
                self._bind(request)
            case commands.Queue.Unbind() | commands.Exchange.Unbind():
                self._unbind([_key_of(request)])

    def _bind(self, request: _Bind) -> None:
        to_queue, destination, source, *_ = key = _key_of(request)
        if destination in (self._queues if to_queue else self._exchanges) or (
            source in self._exchanges
        ):
            self._bindings[key] = request

    def _record_queue(self, request: commands.Queue.Declare, answer: base.Frame | None) -> None:
        if request.passive:
            return
        if not request.queue and isinstance(answer, commands.Queue.DeclareOk):
            name = answer.queue or ""
            self._queues[name] = commands.Queue.Declare(queue=name, passive=True)
        elif request.exclusive or request.auto_delete or not request.durable:
            self._queues[request.queue] = request

    def has(self, queue: str) -> bool:
        """True if the client has made that queue, and it ends with its connection."""
        return queue in self._queues

    def forget_queue(self, name: str) -> None:
        """The queue is gone, with its bindings."""
        self._queues.pop(name, None)
        self._unbind([key for key in self._bindings if key[:2] == (True, name)])

    def record_end(self, name: str) -> None:
        """A consumer of a queue has ended: an auto-delete queue ends with the last one."""
        self._consuming -= 1
        self._consumers[name] -= 1
        if self._consumers[name] > 0:
            return
        del self._consumers[name]
        if (queue := self._queues.get(name)) is not None and queue.auto_delete:
            self.forget_queue(name)

    def _forget_exchange(self, name: str) -> None:
        self._exchanges.pop(name, None)
        self._unbind([key for key in self._bindings if key[2] == name or key[:2] == (False, name)])

    def _unbind(self, keys: Iterable[_Binding]) -> None:
        for key in keys:
            if self._bindings.pop(key, None) is None:
                continue
            source = self._exchanges.get(key[2])
            if source and source.auto_delete and all(key[2] != each[2] for each in self._bindings):
                self._forget_exchange(key[2])

    def lose(self) -> None:
        """Note that the connection upstream is gone."""
        self._is_made = False

    def changed_requests(self) -> Iterator[base.Frame]:
        """As `requests`; none if all of it was made since the connection was lost."""
        if not self._is_made:
            self._is_made = True
            yield from self.requests()

    def requests(self) -> Iterator[base.Frame]:
        """The requests that make all of it again, in order; none if there is nothing."""
        made: list[_Made] = [
            *self._exchanges.values(),
            *self._queues.values(),
            *self._bindings.values(),
        ]
        if made:
            yield commands.Channel.Open()
            for request in made:
                request.nowait = False
                yield request
            yield commands.Channel.Close(200, "", 0, 0)


def _key_of(request: _Bind | commands.Queue.Unbind | commands.Exchange.Unbind) -> _Binding:
    arguments = repr(sorted((request.arguments or {}).items(), key=repr))
    if isinstance(request, commands.Queue.Bind | commands.Queue.Unbind):
        return True, request.queue, request.exchange, request.routing_key, arguments
    return False, request.destination, request.source, request.routing_key, arguments
