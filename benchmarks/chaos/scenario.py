"""
The scenarios of chaos runs, as TOML: the files of `scenarios/`.

    title = "the primary is killed"
    topologies = ["embedded", "rabbitmq"]
    intervals = ["0s", "10s"]             # failover_interval: a run for each

    [[faults]]
    kind = "killed"
    target = "primary"
    at = 3.0                              # seconds after the load began
    lasts = 8.0
"""

import enum
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs
from attrs import validators
from cattrs.v import format_exception

from benchmarks.traffic import DEADLINE
from gateway.checker.history import FaultTarget

FOLDER: Final = Path(__file__).parent / "scenarios"
HEALTHY: Final = 3.0  # seconds of load before the first fault, unless the scenario says otherwise
QUICK: Final = 0.5  # of each time, with --quick


class ScenarioFailed(Exception):
    """A scenario's file is wrong; the text names the file and the key."""


class Topology(enum.Enum):
    """The kinds of the two namespaces."""

    EMBEDDED = "embedded"  # by Service Bus REST
    AMQP = "amqp"  # embedded, by AMQP 1.0
    PIKA = "pika"  # embedded, by the endpoint `rabbitmq`, with pika
    RABBITMQ = "rabbitmq"
    WIRE = "wire-embedded"  # RabbitMQ by the endpoint `rabbitmq`, with pika; and a process of ours
    MIXED = "rabbitmq-embedded"  # RabbitMQ, and a secondary that is embedded in a gateway
    CLUSTER = "cluster-embedded"  # a cluster of three RabbitMQs, and a process of ours
    CLUSTER_SECOND = "embedded-cluster"  # the same the other way round
    AZURITE = "azurite"  # the emulator of Storage Queue, which keeps little when it is killed


class Kind(enum.Enum):
    """The harm to a process, or to the bytes on the way to a namespace."""

    KILLED = "killed"  # SIGKILL, and started again in the end
    NODE_KILLED = "node-killed"  # a node of a cluster, each time the next one
    NODE_RESTARTED = "node-restarted"  # the same by SIGTERM, as for an upgrade
    NODE_CUT_OFF = "node-cut-off"  # the others don't hear it, and it doesn't hear them
    FROZEN = "frozen"  # SIGSTOP, and SIGCONT in the end
    EMPTIED = "emptied"  # SIGKILL, started again without its data, and its queues made in the end
    DISK_FULL = "disk-full"  # no file of the process may grow
    REFUSED = "refused"
    RESET_BEFORE = "reset-before"
    RESET_DURING = "reset-during"
    RESET_AFTER = "reset-after"
    SWALLOWED = "swallowed"  # done, and a reset instead of the answer
    TRUNCATED = "truncated"
    HELD = "held"  # nothing passes, and the held bytes are delivered in the end
    BLACK_HOLE = "black-hole"
    HALF_OPEN = "half-open"  # requests pass, answers don't
    LIMITED = "limited"  # RabbitMQ allows no connection any more, and has closed all
    STUCK = "stuck"  # the open connections answer nothing any more, for ever, and new ones work
    SLOW = "slow"
    LATE = "late"  # each answer arrives some seconds after it was sent
    CORRUPT = "corrupt"  # a byte of an answer is changed
    BUSY = "busy"  # 503 with Retry-After
    PROXY_PAGE = "proxy-page"  # 503 with Retry-After, as a proxy's page and not as the service's
    BUSY_LINKS = "busy-links"  # the same in AMQP: links are ended with server-busy
    THROTTLED = "throttled"  # 429 with Retry-After
    DETACHED = "detached"  # AMQP: each link to send on is ended as soon as it is there
    DETACHED_LATE = "detached-late"  # AMQP: links end instead of an answer
    NO_CREDIT = "no-credit"  # AMQP: links attach, and may never send
    SLOW_SYNC = "slow-sync"  # each sync of the process's files takes 300 ms longer
    CLOCK_AHEAD = "clock-ahead"  # the wall clock of a process jumps, and back in the end
    CLOCK_BEHIND = "clock-behind"
    # Syphons have another secret under the key's id, and dead-letter diverted messages; in the end
    # they get the secret, and `pairgate redrive` is run.
    WRONG_KEY = "wrong-key"


HARMS_PROCESSES: Final = frozenset({Kind.KILLED, Kind.FROZEN, Kind.DISK_FULL, Kind.SLOW_SYNC})
ON_NODES: Final = frozenset({Kind.NODE_KILLED, Kind.NODE_RESTARTED, Kind.NODE_CUT_OFF})
ON_PROCESSES: Final = HARMS_PROCESSES | ON_NODES | {Kind.EMPTIED, Kind.WRONG_KEY}
ON_CLOCKS: Final = frozenset({Kind.CLOCK_AHEAD, Kind.CLOCK_BEHIND})
_COSTS_DATA: Final = HARMS_PROCESSES - {Kind.FROZEN}
_IN_AMQP: Final = frozenset({Kind.BUSY_LINKS, Kind.DETACHED, Kind.DETACHED_LATE, Kind.NO_CREDIT})
_IN_HTTP: Final = frozenset({Kind.BUSY, Kind.PROXY_PAGE, Kind.THROTTLED})
_SPEAKS_HTTP: Final = frozenset({Topology.EMBEDDED, Topology.AZURITE})
_CLUSTERS: Final[Mapping[FaultTarget, frozenset[Topology]]] = {
    FaultTarget.PRIMARY: frozenset({Topology.CLUSTER}),
    FaultTarget.SECONDARY: frozenset({Topology.CLUSTER_SECOND}),
}
_NAMESPACES: Final = frozenset({FaultTarget.PRIMARY, FaultTarget.SECONDARY})


@attrs.frozen(kw_only=True)
class Fault:
    """
    A kind of harm to a target. Times are seconds after the load began.

    With `repeat` the fault comes again every `every` seconds; `probability` is the share of the
    passing pieces of bytes that it hits. `late`: the delay of answers, at least and at most.
    `step`: by how much a clock jumps; that of the host is the clock of all processes.
    """

    kind: Kind
    target: FaultTarget
    lasts: float = attrs.field(validator=validators.gt(0.0))
    at: float = attrs.field(default=HEALTHY, validator=validators.ge(0.0))
    repeat: int = attrs.field(default=1, validator=validators.ge(1))
    every: float = 0.0
    probability: float = attrs.field(
        default=1.0, validator=[validators.gt(0.0), validators.le(1.0)]
    )
    late: tuple[float, float] | None = None
    step: float = attrs.field(default=1800.0, validator=validators.gt(0.0))

    def __attrs_post_init__(self) -> None:
        if self.target is FaultTarget.HOST and self.kind not in ON_CLOCKS:
            raise ValueError("target: host expected for clocks, and for nothing else")
        if self.kind not in ON_PROCESSES | ON_CLOCKS and self.target not in _NAMESPACES:
            raise ValueError(f"target: {self.kind.value} hits the way to a namespace only")
        if self.kind is Kind.WRONG_KEY and self.target is not FaultTarget.SYPHON:
            raise ValueError("target: syphon expected for wrong-key")
        if self.kind is Kind.EMPTIED and self.target is not FaultTarget.PRIMARY:
            raise ValueError("target: primary expected for emptied: a secondary keeps its volume")
        if self.repeat > 1 and self.every <= self.lasts:
            raise ValueError("every: more than lasts expected, so that the target recovers")
        if (self.kind is Kind.LATE) != (self.late is not None):
            raise ValueError("late: least and most seconds expected for late, and for nothing else")
        if self.probability < 1.0 and self.kind in ON_PROCESSES:
            raise ValueError(f"probability: a process is {self.kind.value}, or it isn't")

    @property
    def spans(self) -> list[tuple[float, float]]:
        """The begin and the end of each occurrence."""
        begins = [self.at + number * self.every for number in range(self.repeat)]
        return [(begin, begin + self.lasts) for begin in begins]


@attrs.frozen(kw_only=True)
class Wanted:
    """
    Targets of a scenario beyond those of every run. Times are seconds; None: without a target.
    """

    stall: float | None = None  # the longest time without an answer for an entity
    median: float | None = None  # of sends due in a fault, after its first `failover_interval`
    waited: float | None = None  # for answers in faults, per entity, beyond one `attempt_timeout`
    failovers: int | None = None  # of each entity
    shorter: float | None = None  # by so much a message may live shorter than it was sent to
    longer: float | None = None
    unanswered: int | None = None  # sends that weren't accepted within the producer's `deadline`
    twice_by_syphon: int | None = None  # messages that a syphon sent without an answer
    redriven: int | None = None  # dead letters, at least, that `pairgate redrive` has moved


@attrs.frozen(kw_only=True)
class Scenario:
    """
    A scenario's file. `rate`: messages/s to each entity; half of it goes to the primary directly.

    `entities`: how many queues are sent to; the first two have a consumer.
    """

    name: str
    title: str
    faults: tuple[Fault, ...] = attrs.field(validator=validators.min_len(1))
    topologies: tuple[Topology, ...] = attrs.field(
        default=(Topology.EMBEDDED,), validator=validators.min_len(1)
    )
    intervals: tuple[str, ...] = attrs.field(default=("0s",), validator=validators.min_len(1))
    time_to_live: float | None = attrs.field(  # seconds, of all messages
        default=None, validator=validators.optional(validators.gt(0.0))
    )
    scheduled: float | None = attrs.field(  # seconds after which every tenth message is due
        default=None, validator=validators.optional(validators.gt(0.0))
    )
    rate: float = attrs.field(default=40.0, validator=validators.gt(0.0))
    seed: int = 1
    syphons: int = attrs.field(default=0, validator=validators.ge(0))  # processes; 0: inside
    promised: bool = True  # whether the targets of availability and stall apply
    on_unknown: str = attrs.field(default="divert", validator=validators.in_(("divert", "raise")))
    entities: int = attrs.field(default=2, validator=validators.ge(2))
    sessions: int = attrs.field(default=0, validator=validators.ge(0))  # of each queue; 0: none
    send_timeout: float = attrs.field(default=10.0, validator=validators.gt(0.0))  # seconds
    attempt_timeout: float = attrs.field(default=3.0, validator=validators.gt(0.0))  # seconds
    deadline: float = attrs.field(  # seconds that a producer waits for an answer
        default=DEADLINE, validator=validators.gt(0.0)
    )
    pairing: Mapping[str, Any] = attrs.field(factory=dict)  # further options of the pair
    wanted: Wanted = attrs.field(factory=Wanted)
    # Another pair, with a primary of its own, has the same label, key and secondary.
    neighbour: bool = False

    def __attrs_post_init__(self) -> None:
        if self.sessions and set(self.topologies) != {Topology.AMQP}:
            raise ValueError(f"topologies: only {Topology.AMQP.value} has sessions")
        if self.sessions and (self.entities > 2 or not self.receives_in_outage):
            raise ValueError("sessions: expected with two queues that are received from in outages")
        syphon_hit = any(fault.target is FaultTarget.SYPHON for fault in self.faults)
        if syphon_hit and not self.syphons:
            raise ValueError("syphons: 1 or more expected, where a fault hits the syphon")
        for fault in self.faults:
            self._check_protocol(fault.kind)
            if fault.kind in ON_NODES and not self._is_cluster(fault.target):
                raise ValueError(f"topologies: {fault.kind.value} is for the nodes of a cluster")
        for target, of_clocks in product(FaultTarget, (False, True)):
            spans = sorted(
                span
                for one in self.faults
                if one.target is target and (one.kind in ON_CLOCKS) is of_clocks
                for span in one.spans
            )
            if any(begin < ended for (_, ended), (begin, _) in pairwise(spans)):
                raise ValueError(f"faults: two hit the {target.value} at the same time")

    def rate_at(self, topology: Topology) -> float:
        """Azurite is slow, and the slower the more messages it holds."""
        return self.rate / 4 if topology is Topology.AZURITE else self.rate

    @property
    def ends(self) -> float:
        """The end of the last fault."""
        return max(ended for fault in self.faults for _, ended in fault.spans)

    @property
    def receives_in_outage(self) -> bool:
        """True if consumers are before the gateway, and get messages of the backlog."""
        return "receive_in_outage" in self.pairing

    @property
    def proxied(self) -> bool:
        """
        True if a proxy stands before the namespaces.

        Scenarios whose faults hit only processes have no proxy: it would accept connections for a
        process that is gone.
        """
        return any(fault.kind not in ON_PROCESSES | ON_CLOCKS for fault in self.faults)

    @property
    def clocked(self) -> bool:
        """True if the processes have a wall clock that can be set."""
        return any(fault.kind in ON_CLOCKS for fault in self.faults)

    @property
    def kills_a_syphon(self) -> bool:
        """True if a syphon is started again, a process of its own or the gateway's."""
        syphons = FaultTarget.SYPHON if self.syphons else FaultTarget.GATEWAY
        ends = {Kind.KILLED, Kind.WRONG_KEY}
        killed = {fault.target for fault in self.faults if fault.kind in ends}
        return syphons in killed

    def _is_cluster(self, target: FaultTarget) -> bool:
        return set(self.topologies) <= _CLUSTERS.get(target, frozenset())

    def _check_protocol(self, kind: Kind) -> None:
        if kind in _IN_AMQP and set(self.topologies) != {Topology.AMQP}:
            raise ValueError(f"topologies: {kind.value} is for {Topology.AMQP.value} only")
        if kind in _IN_HTTP and not set(self.topologies) <= _SPEAKS_HTTP:
            raise ValueError(f"topologies: {kind.value} is for those that speak HTTP")
        if kind is Kind.LIMITED and set(self.topologies) != {Topology.RABBITMQ}:
            raise ValueError(f"topologies: {kind.value} is for {Topology.RABBITMQ.value} only")
        is_cluster = bool(set(self.topologies) & {Topology.CLUSTER, Topology.CLUSTER_SECOND})
        if kind not in ON_PROCESSES | ON_CLOCKS and is_cluster:
            raise ValueError("topologies: no proxy stands before a cluster")
        if kind in _COSTS_DATA and Topology.AZURITE in self.topologies:
            raise ValueError(f"topologies: azurite keeps little when its process is {kind.value}")

    def quick(self) -> "Scenario":
        """The same in less time: one topology, one interval."""
        faults = [
            attrs.evolve(one, at=QUICK * one.at, lasts=QUICK * one.lasts, every=QUICK * one.every)
            for one in self.faults
        ]
        return attrs.evolve(
            self,
            faults=tuple(faults),
            topologies=self.topologies[:1],
            intervals=self.intervals[:1],
        )


def read(path: Path) -> Scenario:
    """
    The scenario in that file.

    Raises:
        ScenarioFailed: it can't be read, or has a key or a value that it may not have.
    """
    try:
        fields: dict[str, Any] = tomllib.loads(path.read_text())
        return _CONVERTER.structure({"name": path.stem, **fields}, Scenario)
    except (OSError, ValueError) as error:
        raise ScenarioFailed(f"{path}: {error}") from error
    except cattrs.BaseValidationError as error:
        reasons = "; ".join(cattrs.transform_error(error, format_exception=_told))
        raise ScenarioFailed(f"{path}: {reasons}") from error


def find(names: Sequence[str]) -> list[Scenario]:
    """
    Read the scenarios of the given names or paths; without any, all scenarios.

    Raises:
        ScenarioFailed: see `read`.
    """
    paths = [
        Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml" for name in names
    ] or sorted(FOLDER.glob("*.toml"))
    return [read(path) for path in paths]


def _told(error: BaseException, kind: type | None) -> str:
    """Return the text of a rule of this file, in its own words."""
    return str(error) if isinstance(error, ValueError) else format_exception(error, kind)


_CONVERTER: Final = cattrs.Converter(forbid_extra_keys=True)
