"""The origin of a history: the options of a pair, its producers, and a schedule of faults."""

import enum
import math
import random
from collections.abc import Callable
from typing import Final

import attrs

from gateway.checker.history import Bounds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound, NotAuthorized
from gateway.frontends.options import AmqpOptions
from gateway.pairing.options import OnUnknown, PairOptions, SyphonOptions, shortest_pause
from gateway.pairing.sending import SHORT_WAIT
from gateway.pairing.states import HEARTBEAT
from gateway.pairing.syphon.batch_window import GROWTH
from gateway.pairing.syphon.drain import SCAN_PAUSE
from gateway.pairing.syphon.primary_load import PATIENCE, PROBES
from gateway.pairing.syphon.slow_start import EACH, SLOW, SLOWER
from gateway.wire.storage_queue.fields import is_name
from tests.harness.crash_disk import Ailment
from tests.harness.faults import (
    Fault,
    Hang,
    Late,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    SwallowAnswer,
    busy,
)
from tests.harness.gray import AnswerLate

ENTITIES: Final = tuple(EntityPath(name) for name in ("orders", "Invoices", "audit/log"))
CALM: Final = 10.0  # seconds before the first fault
CHAOS: Final = 110.0  # seconds until all faults are healed
LONGEST_DELAY: Final = 25.0  # seconds that a request is on its way when nobody awaits it any more
LONGEST_BUSY: Final = 15.0  # seconds for which a busy namespace asks senders to wait
LONGEST_LATENCY: Final = 0.6  # seconds: two of them are less than any attempt may take
WHOLE_SECONDS: Final = 2.0  # to which Storage Queue rounds up a delay, and a life
LONGEST_INTERVAL: Final = 30.0  # seconds until an entity fails over
LOOKED: Final = 1.5  # seconds after which a store has seen that its disk is well

NAMES: Final = ("primary", "secondary")
GRAY: Final = "gray"
MISSING: Final = "missing"  # the primary has no such entity
NO_LOGIN: Final = "no login"  # the primary refuses the gateway's credentials
# Errors that the namespace itself answers. They are no outage.
TOLD: Final = frozenset({"busy", MISSING, NO_LOGIN})
# Kinds that scenarios of their own have: a draw would mean another history for each seed.
NOT_DRAWN: Final = frozenset({GRAY, MISSING, NO_LOGIN})
STUCK: Final = "stuck"  # connections that were open when it began take no send any more
FULL: Final = "full"  # a queue refuses that share of the messages of a batch, and takes the others
BENEATH: Final = frozenset({STUCK, FULL})  # faults of connections and queues, not of operations
GRAY_ANSWERS: Final = 3.5, 9.0  # seconds that an answer of a gray namespace takes
FAULTS: Final[dict[str, Callable[[random.Random], Fault]]] = {
    "refuse": lambda rng: Refuse(),
    "hang": lambda rng: Hang(),
    "reset": lambda rng: Reset(),
    "lose answer": lambda rng: LoseAnswer(),
    "swallow answer": lambda rng: SwallowAnswer(),
    "busy": lambda rng: busy(rng.choice([1.0, 5.0, LONGEST_BUSY])),
    "late": lambda rng: Late(rng.uniform(1.0, LONGEST_DELAY)),
    GRAY: lambda rng: AnswerLate(rng.uniform(*GRAY_ANSWERS)),
    MISSING: lambda rng: Refuse(lambda: EntityNotFound("no such queue")),
    NO_LOGIN: lambda rng: Refuse(lambda: NotAuthorized("no such user")),
}
SILENT: Final = frozenset({"hang", "swallow answer", "late"})  # those without an answer in time
CLOCKS: Final = ("client", "gateway", "syphon", "primary", "secondary")


@attrs.frozen(kw_only=True)
class Window:
    """A fault that a share of the operations on one namespace meet from `start` to `end`."""

    namespace: str
    kind: str
    start: float
    end: float
    entities: frozenset[str] | None  # keys; None: all
    operations: frozenset[Operation]
    share: float

    def covers(self, operation: Operation, entity: EntityPath, now: float) -> bool:
        hit = self.entities is None or entity.key in self.entities
        return hit and operation in self.operations and self.start <= now < self.end

    @property
    def is_freeze(self) -> bool:
        """True if the primary answers no send and no probe of any entity."""
        asks = {Operation.SEND, Operation.PROBE} <= self.operations
        all_of_it = self.namespace == "primary" and self.entities is None and self.share == 1.0
        return asks and all_of_it and self.kind in SILENT


@attrs.frozen(kw_only=True)
class Crash:
    """
    Kills `what` at `at`, and starts it again at `back`.

    `pause`: nothing is killed, but all processes stand still from `at` to `back`.
    """

    what: str
    at: float
    back: float


@attrs.frozen(kw_only=True)
class DiskFault:
    """An ailment of a namespace's disk from `at` to `back`; None: the disk is nearly full."""

    namespace: str
    ailment: Ailment | None
    at: float
    back: float


@attrs.frozen(kw_only=True)
class ClockStep:
    """
    A step of a process's wall clock: at `at` it is set `ahead` seconds off, and drifts by `drift`.

    It is put right at `back`; infinite: never.
    """

    process: str
    ahead: float
    drift: float
    at: float
    back: float


class Front(enum.Enum):
    """The front end by which clients reach the gateway."""

    REST = "REST"
    AMQP = "AMQP"
    STORAGE_QUEUE = "Storage Queue"
    RABBITMQ = "RabbitMQ"  # its own clients, before another namespace


class Mode(enum.Enum):
    """The question that a run must answer in its end."""

    LIVENESS = "liveness"  # all faults are healed, and all must come back
    SAFETY = "safety"  # no healing, no drain: what was done when the faults end must be right


@attrs.frozen(kw_only=True)
class Parts:
    """The parts of the installation, beside pair and syphon."""

    on_disk: bool = False  # both namespaces are stores of our own, and a crash is a power cut
    front: Front | None = None  # None: clients call the pair without a network between
    breaking: float = 0.0  # the share of their connections that the network resets
    listener: bool = False  # consumers are listeners of the library
    failing: float = 0.0  # how many of their handlers' runs fail
    mode: Mode = Mode.LIVENESS
    pipelines: bool = False  # producers send several batches at once, too
    crowds: bool = False  # several tasks of a producer send at once, too, each for itself
    remembers: bool = False  # the gateway reaches each namespace over one connection, as by AMQP
    encrypts: bool = False  # what is diverted
    ordered: bool = False  # some entities keep the order of their sends


@attrs.frozen(kw_only=True)
class Scenario:
    seed: int
    parts: Parts
    pair: PairOptions
    syphon: SyphonOptions
    syphons: int  # processes; 0: there is one inside the gateway
    producers: int
    sends: int  # of each producer
    latency: float  # seconds, on average, each way
    clients_deadline: float | None
    windows: tuple[Window, ...]
    crashes: tuple[Crash, ...]
    disk_faults: tuple[DiskFault, ...] = ()
    clock_steps: tuple[ClockStep, ...] = ()

    @property
    def faults(self) -> tuple[Window | Crash | DiskFault | ClockStep, ...]:
        return (*self.windows, *self.crashes, *self.disk_faults, *self.clock_steps)

    @property
    def entities(self) -> tuple[EntityPath, ...]:
        """The entities that clients send to: some have names that Storage Queue doesn't allow."""
        if self.parts.front is not Front.STORAGE_QUEUE:
            return ENTITIES
        return tuple(entity for entity in ENTITIES if is_name(entity.key))

    @property
    def late(self) -> float:
        """Seconds from which an answer speaks against its entity."""
        duration, rate = self.pair.slow_call_duration, self.pair.slow_call_rate
        return math.inf if duration is None or rate is None else duration

    @property
    def front_wait(self) -> float:
        """
        Seconds, at most, that a front end lets a send wait, beside the pair.

        A link of AMQP waits for a probe before it is attached. What the pair raises as unknown
        at once, instead of diverting it, Storage Queue tries again for as long as it may hold it.
        """
        match self.parts.front, self.pair.on_unknown:
            case Front.AMQP, _:
                return AmqpOptions().probe_timeout
            case Front.STORAGE_QUEUE, OnUnknown.RAISE:
                return self.pair.send_timeout
        return 0.0

    @property
    def stuck_at(self) -> float:
        """The moment from which on no older connection to the primary takes a send; inf: none."""
        return min((one.start for one in self.windows if one.kind == STUCK), default=math.inf)

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(window.kind for window in self.windows)

    @property
    def troubled_namespaces(self) -> frozenset[str]:
        faulty = {window.namespace for window in self.windows}
        return frozenset(faulty) | self.killed.intersection(NAMES)

    @property
    def troubled_entities(self) -> frozenset[str]:
        """The keys of the entities on the primary that a fault may hit."""
        hit: set[str] = set()
        for window in self.windows:
            if window.namespace == "primary":
                hit |= window.entities or {entity.key for entity in ENTITIES}
        return frozenset(hit)

    def one_well(self, began: float, ended: float) -> bool:
        """True if at least one namespace was well in all that time."""
        troubles = [
            *((one.namespace, one.start, one.end) for one in self.windows),
            *((one.what, one.at, one.back) for one in self.crashes),
            *((one.namespace, one.at, one.back + LOOKED) for one in self.disk_faults),
        ]
        hit = {name for name, begin, end in troubles if begin <= ended and began <= end}
        return not hit.issuperset(NAMES)

    @property
    def only_told(self) -> bool:
        """True if the primary is well all the time, and refuses what it is asked."""
        return bool(self.kinds) and self.kinds <= TOLD and not self.killed

    @property
    def only_long_pauses(self) -> bool:
        """True if the only fault is that the gateway stands still, for longer than it can miss."""
        paused = not self.windows and self.killed == {"pause"}
        noticed = HEARTBEAT + shortest_pause(self.pair)
        return paused and all(crash.back - crash.at >= noticed for crash in self.crashes)

    @property
    def answer(self) -> float:
        """Seconds that a namespace takes, at most, while it's well."""
        return 2 * LONGEST_LATENCY if self.latency else 0.0

    def freeze_at(self, began: float) -> Window | None:
        """
        The freeze of the primary in which a request began, if it did in one, and no other fault of
        the primary overlaps that: another fault may answer meanwhile.
        """
        faults = [each for each in self.windows if each.namespace == "primary"]
        found = (each for each in faults if each.is_freeze and each.start <= began < each.end)
        freeze = next(found, None)
        if freeze is None:
            return None
        others = (each for each in faults if each is not freeze)
        overlap = any(each.start < freeze.end and freeze.start < each.end for each in others)
        return None if overlap else freeze

    @property
    def lone_freeze(self) -> Window | None:
        """The one fault of the run, if that is a freeze of the primary."""
        only = self.windows[0] if len(self.faults) == len(self.windows) == 1 else None
        return only if only is not None and only.is_freeze else None

    @property
    def resumed(self) -> float:
        """Seconds, at most, from a return of the primary until a syphon sends to it again."""
        return (1.0 + PROBES.jitter) * PROBES.cap + 4.0 * self.answer + 2.0 * SCAN_PAUSE

    @property
    def doubted(self) -> float:
        """Seconds, at most, after which a syphon knows that a primary doesn't answer its send."""
        return PATIENCE + max(SLOW + EACH * GROWTH * self.syphon.batch, SLOWER * self.answer)

    @property
    def busy_pause(self) -> float:
        """Seconds that a send waits, at most, as the pair or a namespace asks, with its spread."""
        return 1.2 * max(self.pair.busy_pause, LONGEST_BUSY)

    @property
    def drain_rate(self) -> float:
        """Messages a second: they are completed one by one, each with its way there and back."""
        ways = 4.0 if self.parts.ordered else 2.0  # one is completed before the next is sent
        far = 1.0 / (ways * self.latency) if self.latency else math.inf
        return min(far, Bounds().drain_rate)

    @property
    def longest_way(self) -> float:
        """
        Seconds that a message may be on its way to the gateway and from there: what it waits in the
        gateway, and on the backlog, is taken from its life.

        A link of AMQP keeps its order: what its client doesn't await any more is sent all the same,
        and what comes next waits for that.
        """
        held = 2 * LONGEST_DELAY if "late" in self.kinds else 0.0
        pauses = [crash for crash in self.crashes if crash.what == "pause"]
        paused = sum(crash.back - crash.at for crash in pauses)  # one may follow on the other
        way = self.answer + SHORT_WAIT
        if self.parts.ordered:  # it lives as long as a send that went along with it
            way += SHORT_WAIT
        match self.parts.front:
            case Front.AMQP:
                way += self.pair.send_timeout + self.front_wait
            case Front.STORAGE_QUEUE:
                way += self.pair.send_timeout + WHOLE_SECONDS  # a put is tried again
            case Front.RABBITMQ:  # a channel is one order, too
                way += self.pair.send_timeout
        return way + held + paused

    @property
    def killed(self) -> frozenset[str]:
        """All that goes down; a store whose disk fails does so too, and a full one is as good."""
        killed = {crash.what for crash in self.crashes}
        return frozenset(killed) | {fault.namespace for fault in self.disk_faults}
