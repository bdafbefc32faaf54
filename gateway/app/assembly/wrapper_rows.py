"""A row of a list of wrappers, and what its wrapper is made from."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol, runtime_checkable

import attrs

from gateway.app.runtime import Runtime
from gateway.config.options import Config
from gateway.pairing.pair import Pair
from gateway.ports import Broker, Service


@attrs.frozen(kw_only=True)
class Wrapping:
    """The parts of a process that its wrappers are made from."""

    stack: AsyncExitStack  # closes what they open
    config: Config
    runtime: Runtime
    namespaces: Mapping[str, Broker] = attrs.field(factory=dict)  # by name, with interceptors
    leads: bool = True  # what a gateway needs once is done here, not by another process
    home: Broker | None = None  # the primary, or the only namespace, with its own wrappers
    pair: Pair | None = None
    both: Sequence[Broker] = ()  # namespaces of the pair


Wrap = Callable[[Wrapping, Broker], Awaitable[tuple[Broker, Sequence[Service]]]]
"""Returns the wrapped broker, or the same one, and the services that must run for it."""


@attrs.frozen
class WrapperRow:
    """A feature that changes messages or entities on their way."""

    name: str
    module: str
    when: str  # the configuration with which it is there
    wrap: Wrap
    in_commands: bool = False  # also around a namespace that a command opens without a gateway


@runtime_checkable
class Reloads(Protocol):
    """A service of a wrapper that takes over what a reload changes."""

    def reload(self, start: Config, fresh: Config) -> None:
        """Use what `fresh` changes. `start` is the configuration of the process's start."""
        ...
