"""
The queues, exchanges and bindings that the primary has shown to any client of the endpoint, so that
they can be declared in an outage. Counts can't be known then: they are answered with 0, since AMQP
0-9-1 has no "unknown".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from pamqp import base, commands

from gateway.changes import Changes
from gateway.domain.bounded import Bounded
from gateway.wire.rabbitmq.errors import PRECONDITION_FAILED, RESOURCE_LOCKED
from gateway.wire.rabbitmq.frames import method_frame, with_any_name

ALTERNATE: Final = "alternate-exchange"
_MOST: Final = 20_000  # queues, exchanges and bindings: some megabytes
_Declare = commands.Queue.Declare | commands.Exchange.Declare
_Bind = commands.Queue.Bind | commands.Exchange.Bind
_QUEUE: Final = ("exclusive", "durable", "auto_delete", "arguments")
_EXCHANGE: Final = ("exchange_type", "durable", "auto_delete", "internal", "arguments")
_IN_EACH_VHOST: Final = ("", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic")
_Key = tuple[str, ...]


class Inequivalent(Exception):
    """A declaration with other arguments than those of the primary; `code` tells it the client."""

    def __init__(self, text: str, code: int = PRECONDITION_FAILED) -> None:
        super().__init__(text)
        self.code = code


@attrs.frozen
class _Known:
    values: tuple[Any, ...] | None  # with which it was declared; None: it was only seen
    frame: bytes  # of the request, which a restarted gateway gets from the one before


@attrs.define(eq=False)
class KnownTopology:
    _known: Bounded[_Key, _Known] = attrs.field(factory=lambda: Bounded(_MOST))
    changes: Changes = attrs.field(factory=Changes, init=False)

    def record(self, vhost: str, request: base.Frame) -> None:
        """The primary has accepted that request."""
        match request:
            case commands.Queue.Declare() | commands.Exchange.Declare():
                key = _key_of(vhost, request)
                if not (request.passive and key in self._known):
                    self._store(key, None if request.passive else _values(request), request)
            case commands.Queue.Bind() | commands.Exchange.Bind():
                self._store(_key_of(vhost, request), None, request)
            case commands.Queue.Unbind():
                self._forget(vhost, commands.Queue.Bind, request)
            case commands.Exchange.Unbind():
                self._forget(vhost, commands.Exchange.Bind, request)
            case commands.Queue.Delete():
                self._pop((vhost, "queue", request.queue))
            case commands.Exchange.Delete():
                self._pop((vhost, "exchange", request.exchange))

    def record_exchange(self, vhost: str, exchange: str) -> None:
        """The primary has taken a publish to that exchange."""
        key = vhost, "exchange", exchange
        if key not in self._known:
            request = commands.Exchange.Declare(passive=True)
            request.exchange = exchange
            self.record(vhost, request)
        self._known.move_to_end(key)

    def requests(self) -> Sequence[tuple[str, bytes]]:
        """All that is known: each vhost with a frame that has a request."""
        return [(key[0], known.frame) for key, known in self._known.items()]

    def restore(self, known: Iterable[tuple[str, base.Frame]]) -> None:
        """Learn what the process before this one knew, as `requests` told it."""
        for vhost, request in known:
            self.record(vhost, request)

    def has_exchange(self, vhost: str, exchange: str) -> bool:
        """True if the primary has shown it, or each vhost has it."""
        return exchange in _IN_EACH_VHOST or (vhost, "exchange", exchange) in self._known

    def is_exclusive(self, vhost: str, queue: str) -> bool:
        """True if the queue ends with a client's connection: nothing can come home to it."""
        known = self._known.get((vhost, "queue", queue))
        if known is None or known.values is None:
            return False
        return bool(known.values[_QUEUE.index("exclusive")])

    def answer(self, vhost: str, request: base.Frame) -> base.Frame | None:
        """
        The answer to a request whose effect is there already; None: that isn't known.

        Raises:
            Inequivalent: the primary would refuse it.
        """
        match request:
            case commands.Queue.Declare() if request.queue and self._has(vhost, request):
                return commands.Queue.DeclareOk(request.queue, 0, 0)
            case commands.Exchange.Declare() if self._has(vhost, request):
                return commands.Exchange.DeclareOk()
            case commands.Queue.Bind() if _key_of(vhost, request) in self._known:
                return commands.Queue.BindOk()
            case commands.Exchange.Bind() if _key_of(vhost, request) in self._known:
                return commands.Exchange.BindOk()
        return None

    def _has(self, vhost: str, request: _Declare) -> bool:
        key = _key_of(vhost, request)
        if key not in self._known:
            return False
        if request.passive:
            return True
        current = self._known[key].values
        if current is None:
            return False
        check_declaration(vhost, request, current)
        return True

    def _forget(self, vhost: str, kind: type[_Bind], unbind: Any) -> None:
        bind = kind()
        for name in kind.__slots__:
            if name != "nowait":
                setattr(bind, name, getattr(unbind, name))  # pamqp would check names in `kind(...)`
        self._pop(_key_of(vhost, bind))

    def _store(self, key: _Key, values: tuple[Any, ...] | None, request: base.Frame) -> None:
        known = _Known(values, method_frame(0, with_any_name(request)))
        if self._known.get(key) != known:
            self._known[key] = known
            self.changes.notify()

    def _pop(self, key: _Key) -> None:
        if self._known.pop(key, None) is not None:
            self.changes.notify()


def _values(request: _Declare) -> tuple[Any, ...]:
    is_queue = isinstance(request, commands.Queue.Declare)
    names = _QUEUE if is_queue else _EXCHANGE
    *values, arguments = (getattr(request, name) or None for name in names)
    if is_queue and arguments:  # of which RabbitMQ compares those that it knows
        arguments = {name: each for name, each in arguments.items() if name.startswith("x-")}
    elif arguments:
        arguments = compared_of_exchange(arguments)
    return (*values, arguments or None)


def compared_of_exchange(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of an exchange that RabbitMQ compares with those of another declaration."""
    return {ALTERNATE: arguments[ALTERNATE]} if ALTERNATE in arguments else {}


def check_declaration(vhost: str, request: _Declare, current: Sequence[Any]) -> None:
    """
    Compare a declaration with the values of what is there, in the order of `_QUEUE` or `_EXCHANGE`.

    Raises:
        Inequivalent: they differ.
    """
    names = _QUEUE if isinstance(request, commands.Queue.Declare) else _EXCHANGE
    _, kind, name, *_ = _key_of(vhost, request)
    for each, received, there in zip(names, _values(request), current, strict=True):
        if _comparable(received) == _comparable(there):
            continue
        if each == "exclusive":
            where = f"queue '{name}' in vhost '{vhost}'"
            text = f"RESOURCE_LOCKED - cannot obtain exclusive access to locked {where}"
            raise Inequivalent(text, RESOURCE_LOCKED)
        argument, ours, theirs = _difference(each, received, there)
        raise Inequivalent(
            f"PRECONDITION_FAILED - inequivalent arg '{argument}' for {kind} '{name}'"
            f" in vhost '{vhost}': received {ours} but current is {theirs}"
        )


def _comparable(value: Any) -> Any:
    """The value of a field so that in arguments 10 and 10.0 differ, as RabbitMQ has it."""
    if isinstance(value, Mapping):
        value = {name: (isinstance(each, float), each) for name, each in value.items()}
    return value or None


def _difference(name: str, received: Any, current: Any) -> tuple[str, str, str]:
    """The argument that differs, and both its values, in RabbitMQ's words."""
    if name == "exchange_type":
        return "type", f"'{received}'", f"'{current}'"
    if name != "arguments":
        return name, _shown_bit(received), _shown_bit(current)
    ours, theirs = received or {}, current or {}
    left, right = _comparable(ours) or {}, _comparable(theirs) or {}
    argument = next(each for each in {**ours, **theirs} if left.get(each) != right.get(each))
    return argument, _shown(ours, argument), _shown(theirs, argument)


def _shown_bit(value: object) -> str:
    return "'true'" if value else "'false'"


def _shown(arguments: Mapping[str, Any], name: str) -> str:
    return f"the value '{arguments[name]}'" if name in arguments else "none"


def _key_of(vhost: str, request: _Declare | _Bind) -> _Key:
    match request:
        case commands.Queue.Declare():
            return vhost, "queue", request.queue
        case commands.Exchange.Declare():
            return vhost, "exchange", request.exchange
        case commands.Queue.Bind():
            ends = ("queue", request.queue, request.exchange)
        case commands.Exchange.Bind():
            ends = ("exchange", request.destination, request.source)
    arguments = repr(sorted((request.arguments or {}).items(), key=repr))
    return vhost, "binding", *ends, request.routing_key, arguments
