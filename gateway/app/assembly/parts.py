"""The parts of a process, as `building` and `syphoning` put them together. None runs yet."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs

from gateway.app.assembly.opening import Opened, Opening
from gateway.app.assembly.others import HeldParts, Others
from gateway.app.assembly.records import ReadWorkers, RecordParts, no_workers
from gateway.app.assembly.roles import Role
from gateway.app.assembly.wrapper_rows import Reloads
from gateway.app.certificates import CertificateWatch
from gateway.app.operations.control_calls import Executors
from gateway.app.process_control import ProcessControl
from gateway.app.runtime import Runtime
from gateway.app.spooling import SpoolGauge
from gateway.capabilities import Visibility
from gateway.config.options import Config
from gateway.domain.identity import Identity
from gateway.domain.status.sections import Readings
from gateway.extensions.listing import extensions
from gateway.frontends.admin.announcements import Announcements
from gateway.frontends.admin.readiness import Readiness
from gateway.frontends.issuers import Issuers
from gateway.frontends.leases import Leases
from gateway.frontends.leasing import Leasing
from gateway.frontends.refusals import Refusals
from gateway.net.clients import Clients
from gateway.pairing.control import Control
from gateway.pairing.pair import Pair
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Service

if TYPE_CHECKING:  # it needs the codec of RabbitMQ, which few processes do
    from gateway.frontends.rabbitmq.topology_file import TopologyFile
    from gateway.frontends.rabbitmq_broker.upkeep import QueueUpkeep


@attrs.frozen(kw_only=True)
class ProcessPlan:
    """The values that the parts of a process are made from."""

    role: Role
    stack: AsyncExitStack  # closes what the parts open
    config: Config
    runtime: Runtime
    opening: Opening
    others: Others = attrs.field(factory=Others)
    adopted: Collection[str] = ()  # fingerprints of primaries that the primary replaces
    identity: Identity | None = None  # the primary's, in a worker: as the parent knows it


@attrs.frozen(kw_only=True)
class ProcessParts:
    """The parts of a process that opens namespaces."""

    plan: ProcessPlan
    opened: Opened
    announcements: Announcements | None  # None: listeners aren't informed of new messages
    namespaces: Mapping[str, Broker]  # by name, each with its interceptors
    for_wrappers: Sequence[Service] = ()  # services of wrappers
    syphons: Sequence[Syphon] = ()
    control: Control | None = None  # of the pair and its syphons; None in a worker
    records: RecordParts | None = None  # None: the process doesn't know the pair's other processes

    def reload(self, start: Config, fresh: Config) -> None:
        """Let wrappers use what `fresh` changes; `start` is the configuration of the start."""
        for service in self.for_wrappers:
            if isinstance(service, Reloads):
                service.reload(start, fresh)


@runtime_checkable
class OffersCalls(Protocol):
    """A service that an extension has opened for a process, with control calls of its own."""

    def executors(self, parts: ProcessParts) -> Executors:
        """The executors of its control calls, in a process that operators ask."""
        ...


def executors_of_opened(parts: ProcessParts) -> Executors:
    """The executors of the services that extensions have opened for this process."""
    opened = parts.plan.runtime.opened.values()
    return [
        executor
        for service in opened
        if isinstance(service, OffersCalls)
        for executor in service.executors(parts)
    ]


class Feature:
    """The part of an extension in one process of a gateway. These defaults do nothing."""

    def executors(self, parts: "Parts") -> Executors:
        """The executors of its control calls, in a process that leads."""
        return ()

    def visibility(self, own: Visibility) -> Visibility:
        """The queues as clients of the Queue service see them, or the same ones."""
        return own

    def readings(self) -> Readings:
        """The readings of its sections of the status, in a process that leads."""
        return {}

    def in_force(self) -> Sequence[str]:
        """The operators' orders to it that are in force, for people, in a process that leads."""
        return ()

    def greeting(self) -> Mapping[str, Any]:
        """In a parent: the message that a new worker begins with."""
        return {}

    def follow(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        """In a parent: from now on give each message for the workers to `send`."""

    def receive(self, message: Mapping[str, Any]) -> None:
        """In a worker: act on a message of the parent's, which may be another feature's."""


def make_features(plan: ProcessPlan) -> Mapping[str, Feature]:
    """The features of this process, by the names of their extensions."""
    return {
        extension.name: feature
        for extension in extensions()
        for make in extension.load("features")
        if (feature := make(plan)) is not None
    }


@attrs.frozen(kw_only=True)
class Parts(ProcessParts):
    """The parts of a gateway, except its endpoints."""

    announcements: Announcements
    broker: Broker  # as clients see it
    leases: Leasing
    own_leases: Leases  # without those that other processes hold
    visibility: Visibility  # of the primary, if there is a pair
    held: Visibility  # as `visibility`, without the messages that other processes hold
    numbers_puts: bool  # a put of `visibility` returns the message's sequence number
    refusals: Refusals
    clients: Clients
    issuers: Issuers
    pair: Pair | None = None
    features: Mapping[str, Feature] = attrs.field(factory=dict)  # by the extension's name
    spool: SpoolGauge | None = None
    # Of the primary, or of what clients declare; None: no endpoint `rabbitmq`.
    topology: "TopologyFile | None" = None
    upkeep: "QueueUpkeep | None" = None  # None, too: the primary is in RabbitMQ
    executors: Executors = ()  # of control calls, but those of the process as a whole
    workers: ReadWorkers = no_workers  # the status of each
    sections: Readings = attrs.field(factory=dict)  # of the status
    readiness: Readiness = attrs.field(factory=Readiness)
    process: ProcessControl | None = None  # None in a worker
    certificates: CertificateWatch | None = None  # None in a worker

    @property
    def others(self) -> Others:
        return self.plan.others

    @property
    def held_parts(self) -> HeldParts:
        """The parts that other processes may ask."""
        return HeldParts(
            own=self.own_leases, leases=self.leases, visibility=self.held, pair=self.pair
        )


def make_issuers(config: Config, runtime: Runtime) -> Issuers:
    """The identity providers of a process; a service reads their keys."""
    issuers = Issuers(observer=runtime.observer, wall_clock=runtime.now)
    issuers.replace(config.issuers)
    return issuers
