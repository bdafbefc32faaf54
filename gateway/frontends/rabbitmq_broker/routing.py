"""
Exchanges and bindings: which queues get a message.

They are kept in the gateway, not as topics of the namespace. A topic gives each subscription a
copy, RabbitMQ each queue one, however many bindings match; a filter has no `*` and `#`; and
`mandatory` must know the queues before the send. So every namespace will do, also one without
topics. A topic that the namespace has already is an exchange whose subscriptions are the
namespace's own: it gets each message, and nothing is bound to it here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import or_
from typing import Any, Final

import attrs

from gateway.frontends.rabbitmq.known_topology import ALTERNATE

DIRECT: Final = "direct"
FANOUT: Final = "fanout"
TOPIC: Final = "topic"
HEADERS: Final = "headers"
KINDS: Final = frozenset({DIRECT, FANOUT, TOPIC, HEADERS})
OF_NAMESPACE: Final = "topic of the namespace"  # the kind of such an exchange
_X_MATCH: Final = "x-match"
_WITH_X: Final = "-with-x"
Headers = Callable[[], Mapping[str, Any]]  # those of a message, which are seldom read


@attrs.define(eq=False)
class RoutingExchange:
    name: str
    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def alternate(self) -> str | None:
        """The exchange for what this one has no queue for."""
        name = self.arguments.get(ALTERNATE)
        return name if isinstance(name, str) else None


@attrs.frozen(eq=False)
class Binding:
    source: str
    destination: str
    to_queue: bool  # else to an exchange
    key: str
    arguments: Mapping[str, Any]
    words: tuple[str, ...] = ()  # of the key

    @property
    def identity(self) -> tuple[str, str, bool, str, str]:
        """The same for a binding that was made twice."""
        arguments = repr(sorted(self.arguments.items(), key=repr))
        return self.source, self.destination, self.to_queue, self.key, arguments


_Bindings = dict[tuple[str, str, bool, str, str], Binding]  # by identity


def binding(
    source: str, destination: str, key: str, arguments: Mapping[str, Any] | None, *, to_queue: bool
) -> Binding:
    return Binding(source, destination, to_queue, key, arguments or {}, _words(key))


@attrs.define(eq=False)
class RoutingTable:
    """The exchanges of a vhost, and their bindings."""

    exchanges: dict[str, RoutingExchange] = attrs.field(init=False)
    _by_identity: _Bindings = attrs.field(factory=dict, init=False)
    # To each queue (True) and exchange.
    _by_end: dict[tuple[bool, str], _Bindings] = attrs.field(factory=dict, init=False)
    # Removed since `drain_removed`.
    _removed: list[Binding | RoutingExchange] = attrs.field(factory=list, init=False)
    # Of each exchange, by key: a direct exchange looks up one key alone.
    _by_source: dict[str, dict[str, _Bindings]] = attrs.field(factory=dict, init=False)
    _unused: list[str] = attrs.field(factory=list, init=False)  # exchanges

    @exchanges.default
    def _in_each_vhost(self) -> dict[str, RoutingExchange]:
        kinds = {f"amq.{kind}": kind for kind in sorted(KINDS)} | {"amq.match": HEADERS, "": DIRECT}
        return {name: RoutingExchange(name, kind) for name, kind in kinds.items()}

    def __len__(self) -> int:
        """The number of bindings."""
        return len(self._by_identity)

    def bind(self, new: Binding) -> None:
        if new.identity not in self._by_identity:
            self._by_identity[new.identity] = new
            self._by_end.setdefault((new.to_queue, new.destination), {})[new.identity] = new
            keys = self._by_source.setdefault(new.source, {})
            keys.setdefault(new.key, {})[new.identity] = new

    def unbind(self, old: Binding) -> None:
        """Remove the binding, and an exchange that goes with its last one."""
        self._remove(old)
        self._delete_unused()

    def is_used(self, exchange: str) -> bool:
        """True if something is bound to it."""
        return exchange in self._by_source

    def delete_exchange(self, name: str) -> None:
        """Remove the exchange with its bindings."""
        self._remove_exchange(name)
        self._delete_unused()

    def delete_queue(self, name: str) -> None:
        """Remove the bindings of a queue."""
        for each in list(self._by_end.get((True, name), {}).values()):
            self._remove(each)
        self._delete_unused()

    def _remove(self, old: Binding) -> None:
        found = self._by_identity.pop(old.identity, None)
        if found is None:
            return
        self._removed.append(found)
        end = found.to_queue, found.destination
        del self._by_end[end][found.identity]
        if not self._by_end[end]:
            del self._by_end[end]
        keys = self._by_source[found.source]
        del keys[found.key][found.identity]
        if not keys[found.key]:
            del keys[found.key]
        if not keys:
            del self._by_source[found.source]
            self._unused.append(found.source)

    def _remove_exchange(self, name: str) -> None:
        if (exchange := self.exchanges.pop(name, None)) is not None:
            self._removed.append(exchange)
        from_it = [
            each for some in self._by_source.get(name, {}).values() for each in some.values()
        ]
        for each in (*from_it, *self._by_end.get((False, name), {}).values()):
            self._remove(each)

    def _delete_unused(self) -> None:
        """Delete the exchanges that go with their last binding, also one after the other."""
        while self._unused:
            exchange = self.exchanges.get(self._unused.pop())
            if exchange is not None and exchange.auto_delete and not self.is_used(exchange.name):
                self._remove_exchange(exchange.name)

    def drain_removed(self) -> Sequence[Binding | RoutingExchange]:
        """The exchanges and bindings that were removed since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def route(self, exchange: str, keys: Sequence[str], headers: Headers) -> Sequence[str]:
        """
        The queues for a message, each once, and the topics of the namespace. The default exchange
        has one for each key. `headers` is called where an exchange on the way asks for them.
        """
        queues: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [exchange]
        while waiting:
            name = waiting.pop()
            found = self.exchanges.get(name)
            if name in seen or found is None:
                continue
            seen.add(name)
            if not name or found.kind == OF_NAMESPACE:
                queues.update(dict.fromkeys([name] if name else keys))
                continue
            matching = list(self._matching(found, keys, headers))
            queues.update(dict.fromkeys(each.destination for each in matching if each.to_queue))
            waiting += [each.destination for each in matching if not each.to_queue]
            if not matching and found.alternate is not None:
                waiting.append(found.alternate)
        return list(queues)

    def _matching(
        self, exchange: RoutingExchange, keys: Sequence[str], headers: Headers
    ) -> Iterator[Binding]:
        bindings = self._by_source.get(exchange.name, {})
        there = headers() if exchange.kind == HEADERS else {}
        if exchange.kind == DIRECT:
            for key in keys:
                yield from bindings.get(key, {}).values()
            return
        words = [_words(key) for key in keys] if exchange.kind == TOPIC else []
        for some in bindings.values():
            for each in some.values():
                if (
                    exchange.kind == FANOUT
                    or (exchange.kind == TOPIC and any(_fits(each.words, one) for one in words))
                    or (exchange.kind == HEADERS and _has_headers(each.arguments, there))
                ):
                    yield each


def _words(key: str) -> tuple[str, ...]:
    return tuple(key.split(".")) if key else ()


def _fits(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """
    True if the words fit: `*` stands for one, `#` for any number. Takes as many steps as their
    lengths multiplied, whatever the pattern.
    """
    fits = [True, *[False] * len(words)]  # up to each word
    for part in pattern:
        if part == "#":
            fits = list(accumulate(fits, or_))
        else:
            pairs = zip(fits, words, strict=False)
            fits = [False, *(before and part in {"*", word} for before, word in pairs)]
    return fits[-1]


def _has_headers(wanted: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    how = str(wanted.get(_X_MATCH, "all"))
    of_x = how.endswith(_WITH_X)
    tests = [
        name in headers and (each is None or headers[name] == each)
        for name, each in wanted.items()
        if name != _X_MATCH and (of_x or not name.startswith("x-"))
    ]
    return any(tests) if how.startswith("any") else all(tests)
