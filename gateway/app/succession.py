"""
The succession of gateways: from whom a process gets its listening sockets, and who gets them next.

Extensions have other ways than `NoSuccession`: each names a `SuccessionRow` as `successions`.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import attrs
import trio

from gateway.app.failure import Failure
from gateway.app.given import GivenSockets
from gateway.config.options import Config
from gateway.extensions.listing import parts as parts_of_extensions
from gateway.net.listeners import Listener
from gateway.pairing.state_file import StateFile
from gateway.ports import Observer, Service


class Ends(Protocol):
    """The part of `gateway.app.serving.GatewayShutdown` that a succession needs."""

    @property
    def is_asked(self) -> bool: ...

    def leave(self, reason: str) -> None: ...

    def fail(self, failure: Failure) -> None: ...


@attrs.frozen(kw_only=True)
class Served:
    """The parts of a gateway that a successor takes over, or waits for."""

    listeners: Sequence[tuple[str, Listener]]  # of all endpoints, with the configured addresses
    state: StateFile | None
    has_stores: bool
    ending: Ends
    serving: trio.Event  # set when this process accepts


class Succession(Protocol):
    """The gateways before and after this one."""

    @property
    def given(self) -> GivenSockets | None:
        """The sockets that this process got; None: it binds all itself."""
        ...

    async def wait_free(self) -> None:
        """
        Return when the stores can be opened. Raises `Failure` if the gateway before this one can't
        free them.
        """
        ...

    def services(self, served: Served) -> Sequence[Service]:
        """
        The services that must run while this gateway serves. Raises `Failure` if the gateway before
        this one serves on.
        """
        ...

    async def freed(self) -> GivenSockets | None:
        """
        Note that all parts are closed. Return the sockets with which this process must serve again;
        None: it can end.
        """
        ...


@attrs.frozen
class NoSuccession:
    """The `Succession` of a process that no other one takes over."""

    given: GivenSockets | None

    async def wait_free(self) -> None:
        """Return at once: no other process has the stores."""

    def services(self, served: Served) -> Sequence[Service]:
        return ()

    async def freed(self) -> GivenSockets | None:
        return None


@attrs.frozen(kw_only=True)
class Start:
    """The values that a succession is opened from."""

    stack: AsyncExitStack  # closes it
    config: Config
    observer: Observer
    given: GivenSockets | None  # by systemd
    flags: Collection[str]  # of extensions, without dashes: those that `pairgate serve` was given


@attrs.frozen
class SuccessionRow:
    """A way of succession."""

    is_wanted: Callable[[Start], bool]
    open: Callable[[Start], Awaitable[Succession]]


async def open_succession(start: Start) -> Succession:
    """
    The succession of a gateway that starts.

    Raises:
        Failure: no sockets can be taken over, or none can be handed over later.
    """
    rows: Sequence[SuccessionRow] = parts_of_extensions("successions")
    for row in rows:
        if row.is_wanted(start):
            return await row.open(start)
    return NoSuccession(start.given)
