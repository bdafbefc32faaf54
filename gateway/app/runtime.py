"""
The process's external dependencies: wall clock, random numbers, observer. Nothing else may read
them directly.
"""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from uuid import uuid4

import attrs

from gateway.brokers.meter import Meter
from gateway.domain.envelope import Envelope
from gateway.domain.events.gateway import Event
from gateway.domain.health.send_counters import SendCounters
from gateway.ports import Observer, Service
from gateway.store.embedded.writer import CommitStats
from gateway.telemetry.abilities import AbilityWatch
from gateway.telemetry.audit import AuditLogs
from gateway.telemetry.loop_lag import LoopLag
from gateway.telemetry.service_manager import ServiceManager
from gateway.telemetry.watch import GatewayWatch


class Silence:
    """An observer for commands that print only their result."""

    def report(self, event: Event) -> None:
        """Ignore the event."""


def _now() -> datetime:
    return datetime.now(UTC)


def _watched(observer: Observer) -> GatewayWatch:
    return observer if isinstance(observer, GatewayWatch) else GatewayWatch(observer, _now)


@attrs.frozen(kw_only=True)
class Runtime:
    """
    The runtime of this process.

    Random numbers come from the operating system, so that no lock token can be guessed from others;
    a simulation gives each part a generator with its own seed.
    """

    # The given observer, with a watch before it, so that the process can report its past.
    observer: GatewayWatch = attrs.field(factory=lambda: _watched(Silence()), converter=_watched)
    started: datetime = attrs.field(factory=_now)
    # The meters and abilities of the opened namespaces, by name.
    meters: dict[str, Meter] = attrs.field(factory=dict)
    abilities: dict[str, AbilityWatch] = attrs.field(factory=dict)
    commits: dict[str, CommitStats] = attrs.field(factory=dict)  # of embedded ones
    # By namespace: returns the date at which its access token expires.
    token_expiries: dict[str, Callable[[], datetime | None]] = attrs.field(factory=dict)
    loop_lag: LoopLag = attrs.field(factory=LoopLag)
    audits: AuditLogs = attrs.field(factory=AuditLogs)
    service_manager: ServiceManager = attrs.field(factory=lambda: ServiceManager(Silence()))
    sends: SendCounters = attrs.field(factory=SendCounters)  # of a gateway without a pair
    # The services that extensions have opened for this process, by the name of the extension.
    opened: Mapping[str, Service] = attrs.field(factory=dict)
    # The pair's envelopes, one for each part that writes or reads them, so that a reload reaches
    # all.
    envelopes: list[Envelope] = attrs.field(factory=list)
    # True: missing files are created; only a gateway does that. In a wrong folder, any other
    # command would mistake files that it had created itself for those of an empty gateway.
    makes_stores: bool = False
    generator: Callable[[str], random.Random] = lambda _part: random.SystemRandom()

    def rng(self, part: str) -> random.Random:
        """The random generator of a part, by its name."""
        return self.generator(part)

    def new_id(self) -> str:
        """A new id, for a message or a task: unique, and impossible to guess."""
        return str(uuid4())

    @staticmethod
    def now() -> datetime:
        return _now()
