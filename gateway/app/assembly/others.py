"""
The other processes before the same namespaces: those of the own gateway, and other gateways.

Each settles for its clients what another one holds. An extension with a way to do that names a
`MakeOthers` as `others`; without one, a gateway is a single process that knows no other.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.given import GivenSockets
from gateway.app.runtime import Runtime
from gateway.capabilities import Visibility
from gateway.config.options import Config
from gateway.extensions.listing import parts
from gateway.frontends.client_tokens import ClientTokens, OpenTokens
from gateway.frontends.lease_table import NewToken
from gateway.frontends.leases import Leases
from gateway.frontends.leasing import Leasing
from gateway.frontends.storage_queue.messages import Marks
from gateway.net.listeners import ConnectionHandler, Listener
from gateway.pairing.additions import PairPeers
from gateway.pairing.pair import Pair
from gateway.ports import Service

PARENT: Final = 0  # the number of the parent, or of a gateway's only process; workers count from 1

Dial = Callable[[int], Awaitable[trio.abc.Stream]]
"""Connects to a process of this gateway by its number; raises OSError if that doesn't run."""


@attrs.frozen(kw_only=True)
class HeldParts:
    """The parts of a process that other processes may ask."""

    own: Leases
    leases: Leasing  # with those that other processes hold
    visibility: Visibility  # of this process alone
    pair: Pair | None = None


class PeerPort(Service, Protocol):
    """A bound port for other gateways. `run` answers them."""

    @property
    def bind(self) -> str:
        """The address as configured."""
        ...

    @property
    def listener(self) -> Listener: ...


@attrs.frozen(kw_only=True)
class PortPlan:
    """The values that a process binds its ports with."""

    stack: AsyncExitStack  # closes them
    offset: int  # is added to each port except 0
    given: GivenSockets | None  # from another process, which has bound them already
    # Called with the scope of each port's acceptor; its end makes the port accept no more.
    on_open: Callable[[trio.CancelScope], None]


class Others:
    """The other processes, as one of them knows them. These defaults know none."""

    def new_token(self) -> NewToken | None:
        """The way to make lock tokens; None: deliveries have those of the namespace."""
        return None

    def client_tokens(self) -> ClientTokens:
        """The form in which clients have the namespace's own tokens."""
        return OpenTokens()

    def leases(self, own: Leases) -> Leasing:
        """The leases with those that the others hold, as clients see them."""
        return own

    def peers(self) -> PairPeers:
        """The other gateways with the same pair."""
        return PairPeers()

    def visibility(self, own: Visibility) -> Visibility:
        """The `Visibility` with the messages that the others hold, as clients see it."""
        return own

    def marks(self, of_accounts: Marks) -> Marks:
        """Signs the receipts of clients, which `of_accounts` does for a single process."""
        return of_accounts

    def services(self) -> Sequence[Service]:
        return ()

    async def open_ports(self, plan: PortPlan, held: HeldParts) -> Sequence[PeerPort]:
        """
        Bind the ports at which other gateways ask this one.

        Raises:
            Failure: a port is in use.
        """
        return ()

    def greeting(self) -> Mapping[str, Any]:
        """In a parent: a part of the message that a new worker begins with."""
        return {}

    def answering(self, held: HeldParts) -> ConnectionHandler | None:
        """Answers the other processes of this gateway; None: there are none."""
        return None


@attrs.frozen(kw_only=True)
class ProcessPlace:
    """A process among those of its gateway."""

    config: Config
    runtime: Runtime
    number: int = PARENT
    dial: Dial | None = None  # None: the process is alone
    told: Mapping[str, Any] = attrs.field(factory=dict)  # in a worker: the parent's greeting


MakeOthers = Callable[[ProcessPlace], Others | None]
"""None: a process there knows no other one."""


def others_of(place: ProcessPlace) -> Others:
    """
    The other processes of that one.

    Raises:
        Failure: the gateway has several, and there is no way in which they settle for each other.
    """
    made = (make(place) for make in parts("others"))
    found = next((others for others in made if others is not None), None)
    if found is None and place.config.serving_processes > 1:
        text = "workers: the processes of this installation can't settle for each other"
        raise Failure(text, ExitCode.WRONG)
    return found or Others()
