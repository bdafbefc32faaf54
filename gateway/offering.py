"""
Capabilities: a broker or receiver offers them, and its user asks for them.

`offered` and `required` are the way to ask. An adapter offers each capability that it has the
methods of; a `Wrapper` offers those of the broker or receiver inside it. So nobody gets a
capability that isn't there, and a front end says in its protocol's own form what is missing. The
capabilities themselves are in `capabilities`.
"""

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar, cast

import attrs

from gateway.domain.errors import NotSupported
from gateway.ports import Broker, Receiver

C = TypeVar("C")
_Protocol = TypeVar("_Protocol", bound=type)


@attrs.frozen
class _Entry:
    owner: type  # Broker or Receiver
    missing: str  # the text for a client, if the capability is missing
    members: tuple[str, ...]
    # By class of broker or receiver, True if it has the capability: every send asks for several.
    known: dict[type, bool] = attrs.field(factory=dict, init=False)


_CAPABILITIES: Final[dict[type, _Entry]] = {}


def capability(
    owner: type[Broker] | type[Receiver], missing: str
) -> Callable[[_Protocol], _Protocol]:
    """The protocol below is a capability of some brokers or of some receivers."""

    def register(protocol: _Protocol) -> _Protocol:
        names = {name for base in protocol.__mro__ for name in vars(base)}
        members = tuple(name for name in names if not name.startswith("_"))
        _CAPABILITIES[protocol] = _Entry(owner, missing, members)
        return protocol

    return register


def capabilities_of(owner: type[Broker] | type[Receiver]) -> Sequence[type]:
    """All capabilities that a broker, or that a receiver, may have."""
    return [each for each, entry in _CAPABILITIES.items() if entry.owner is owner]


def offered(part: object, capability: type[C]) -> C | None:
    """The capability of a broker or receiver; None: it doesn't have the capability."""
    if isinstance(part, Wrapper):
        return part.offer(capability)
    return cast(C, part) if _has(part, capability) else None


def required(part: object, capability: type[C]) -> C:
    """
    The capability of a broker or receiver, as `offered`; an error if it is missing.

    Raises:
        NotSupported: the broker or receiver doesn't have the capability.
    """
    found = offered(part, capability)
    if found is None:
        raise NotSupported(_CAPABILITIES[capability].missing)
    return found


def _has(part: object, capability: type) -> bool:
    entry = _CAPABILITIES[capability]
    has = entry.known.get(type(part))
    if has is None:
        has = entry.known[type(part)] = all(hasattr(part, name) for name in entry.members)
    return has


class Wrapper(abc.ABC):
    """
    A broker or receiver around another one, `inner`.

    It offers no capability that `inner` doesn't offer, but those that it `adds`. Of `inner`'s
    capabilities a wrapper offers, as itself, each that it has the methods of; it hands out
    `inner`'s own where `forwards` names the capability; it withholds all others, so that a
    capability which a wrapper doesn't know can't be used past it.
    """

    adds: ClassVar[frozenset[type]] = frozenset()
    forwards: ClassVar[frozenset[type]] = frozenset()

    @property
    @abc.abstractmethod
    def inner(self) -> object:
        """The broker or receiver that this one is made of."""

    def offer(self, capability: type[C]) -> C | None:
        """As `offered`, of this wrapper."""
        adds = capability in self.adds
        if adds and _has(self, capability):
            return cast(C, self)  # whatever `inner` offers: every send comes here
        theirs = offered(self.inner, capability)
        if theirs is None and not adds:
            return None
        if _has(self, capability):
            return cast(C, self)
        return theirs if capability in self.forwards else None
