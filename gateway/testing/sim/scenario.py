"""What a seed stands for: the options of a pair, its producers, and a schedule of faults."""

import enum
import random
from collections.abc import Callable
from typing import Final

import attrs

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.frontends.amqp.options import AmqpOptions
from gateway.pairing.options import OnUnknown, PairOptions, SyphonOptions
from gateway.pairing.standings import BEAT, shortest_pause
from gateway.testing.crash_disk import Ailment
from gateway.testing.faults import (
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
from gateway.wire.amqp.options import why_no_engine
from gateway.wire.storage_queue_fields import is_name

ENTITIES: Final = tuple(EntityPath(name) for name in ("orders", "Invoices", "audit/log"))
CALM: Final = 10.0  # seconds before the first fault
CHAOS: Final = 110.0  # seconds until all faults are healed
LONGEST_HOLD: Final = 25.0  # seconds that a request is on its way when nobody awaits it any more
LONGEST_PAUSE: Final = 60.0  # seconds that something stays down

NAMES: Final = ("primary", "secondary")
OVER_NETWORK: Final = 0.17  # the share of runs whose clients reach the gateway over a network
FAULTS: Final[dict[str, Callable[[random.Random], Fault]]] = {
    "refuse": lambda rng: Refuse(),
    "hang": lambda rng: Hang(),
    "reset": lambda rng: Reset(),
    "lose answer": lambda rng: LoseAnswer(),
    "swallow answer": lambda rng: SwallowAnswer(),
    "busy": lambda rng: busy(rng.choice([1.0, 5.0, 15.0])),
    "late": lambda rng: Late(rng.uniform(1.0, LONGEST_HOLD)),
}
# What a disk of our own may do, beside losing its power.
DISK_FAULTS: Final = (*Ailment, None)  # None: nearly full, so that the store takes nothing in
CRASHES: Final = ("primary", "secondary", "gateway", "syphon", "pause")


@attrs.frozen(kw_only=True)
class Window:
    """From `start` to `end` a share of the operations on one namespace meets a fault."""

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


@attrs.frozen(kw_only=True)
class Crash:
    """
    What is killed, when, and when it is started again.

    `pause`: nothing is killed, but all processes stand still from `at` to `back`.
    """

    what: str
    at: float
    back: float


@attrs.frozen(kw_only=True)
class DiskFault:
    """From `at` to `back` a namespace's disk has that ailment; None: it's nearly full."""

    namespace: str
    ailment: Ailment | None
    at: float
    back: float


class Front(enum.Enum):
    """The front end by which clients reach the gateway."""

    REST = "REST"
    AMQP = "AMQP"
    STORAGE_QUEUE = "Storage Queue"


class Mode(enum.Enum):
    """What is asked of a run in its end."""

    LIVENESS = "liveness"  # all faults are healed, and all must come back
    SAFETY = "safety"  # no healing, no drain: what was done when the faults end must be right


@attrs.frozen(kw_only=True)
class Parts:
    """What the installation is made of, beside pair and syphon."""

    on_disk: bool = False  # both namespaces are stores of our own, and a crash is a power cut
    front: Front | None = None  # None: clients call the pair without a network between
    breaking: float = 0.0  # the share of their connections that the network resets
    listener: bool = False  # consumers are listeners of the library
    failing: float = 0.0  # how many of their handlers' runs fail
    mode: Mode = Mode.LIVENESS


# Without the engine of AMQP its runs are others.
FRONTS: Final = tuple(one for one in Front if one is not Front.AMQP or why_no_engine() is None)


@attrs.frozen(kw_only=True)
class Scenario:
    seed: int
    parts: Parts
    pair: PairOptions
    syphon: SyphonOptions
    syphons: int  # processes, beside the one in the gateway
    producers: int
    sends: int  # of each producer
    latency: float  # seconds, on average, each way
    clients_deadline: float | None
    windows: tuple[Window, ...]
    crashes: tuple[Crash, ...]
    disk_faults: tuple[DiskFault, ...] = ()

    @property
    def faults(self) -> tuple[Window | Crash | DiskFault, ...]:
        return (*self.windows, *self.crashes, *self.disk_faults)

    @property
    def entities(self) -> tuple[EntityPath, ...]:
        """Those that clients send to: Storage Queue has no names for some."""
        if self.parts.front is not Front.STORAGE_QUEUE:
            return ENTITIES
        return tuple(entity for entity in ENTITIES if is_name(entity.key))

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
    def kinds(self) -> frozenset[str]:
        return frozenset(window.kind for window in self.windows)

    @property
    def troubled_namespaces(self) -> frozenset[str]:
        faulty = {window.namespace for window in self.windows}
        return frozenset(faulty) | self.killed.intersection(NAMES)

    @property
    def troubled_entities(self) -> frozenset[str]:
        """Those on the primary that a fault may hit."""
        hit: set[str] = set()
        for window in self.windows:
            if window.namespace == "primary":
                hit |= window.entities or {entity.key for entity in ENTITIES}
        return frozenset(hit)

    @property
    def only_long_pauses(self) -> bool:
        """Nothing goes wrong but that the gateway stands still, for longer than it can miss."""
        paused = not self.windows and self.killed == {"pause"}
        noticed = BEAT + shortest_pause(self.pair)
        return paused and all(crash.back - crash.at >= noticed for crash in self.crashes)

    @property
    def killed(self) -> frozenset[str]:
        """All that goes down; a store whose disk fails does so too, and a full one is as good."""
        killed = {crash.what for crash in self.crashes}
        return frozenset(killed) | {fault.namespace for fault in self.disk_faults}


def draw(seed: int, load: int = 1) -> Scenario:
    """
    The scenario of that seed, with so many times the sends in the same time.

    Swarm testing: each seed allows some kinds of faults only, and some seeds one namespace only,
    so that what one fault does isn't hidden by another.
    """
    rng = random.Random(seed)
    namespaces = rng.choice([("primary",), ("primary",), ("secondary",), NAMES, NAMES])
    kinds = rng.sample(sorted(FAULTS), rng.randint(1, 4))
    crashes = rng.sample(CRASHES, rng.randint(0, 3))
    windows = rng.randint(2, 6)
    latency = rng.choice([0.0, 0.005, 0.2])
    match seed % 10:
        case 0:  # what throttling must never do shows where nothing else happens
            namespaces, kinds, crashes = ("primary",), ["busy"], []
        case 1:  # nothing works for long: sends end with an error
            namespaces, kinds, windows = NAMES, ["hang", "lose answer", "refuse"], 12
        case 2:  # a gateway that stands still mustn't blame others
            windows, crashes, latency = 0, ["pause"] * 4, 0.2
    parts = draw_parts(seed)
    return Scenario(
        seed=seed,
        parts=parts,
        pair=_pair_options(rng),
        syphon=SyphonOptions(
            batch=rng.choice([1, 4, 100]),
            attempt_timeout=rng.choice([3.0, 10.0]),
            hold=Backoff(first=1.0, cap=20.0),
            retry=Backoff(first=1.0, cap=20.0),
            busy_pause=rng.choice([2.0, 10.0]),
            queue_retry=Backoff(first=1.0, cap=20.0),
        ),
        syphons=rng.choice([0, 0, 1]),
        producers=rng.randint(1, 4),
        sends=load * rng.randint(6, 12),
        latency=latency,
        clients_deadline=rng.choice([None, None, None, 4.0]),
        windows=tuple(_window(rng, namespaces, kinds) for _ in range(windows)),
        crashes=tuple(
            _crash(rng, what) for what in crashes if what not in NAMES or what in namespaces
        ),
        disk_faults=_disk_faults(seed, namespaces) if parts.on_disk else (),
    )


def draw_parts(seed: int) -> Parts:
    """By a generator of its own, so that the same seed means the same faults for any parts."""
    rng = random.Random(f"parts {seed}")
    # Where sends end with an error it's for a front end to tell it.
    share = 1.0 if seed % 10 == 1 else OVER_NETWORK
    listener, over_network = rng.random() < 0.3, rng.random() < share
    parts = Parts(
        on_disk=rng.random() < 0.15,
        breaking=rng.choice([0.0, 0.1, 0.4]) if over_network else 0.0,
        listener=listener,
        failing=rng.choice([0.0, 0.2]) if listener else 0.0,
        mode=Mode.SAFETY if rng.random() < 0.15 else Mode.LIVENESS,
    )
    # In turn, so that a few seeds have all of them.
    return attrs.evolve(parts, front=FRONTS[seed % len(FRONTS)]) if over_network else parts


def _disk_faults(seed: int, namespaces: tuple[str, ...]) -> tuple[DiskFault, ...]:
    """By a generator of its own, as well. Throttling and pauses are left alone."""
    if seed % 10 in {0, 2}:
        return ()
    rng = random.Random(f"disk {seed}")
    faults = []
    for _ in range(rng.randint(0, 3)):
        at = rng.uniform(CALM, CHAOS - 20.0)
        faults.append(
            DiskFault(
                namespace=rng.choice(namespaces),
                ailment=rng.choice(DISK_FAULTS),
                at=at,
                back=min(CHAOS, at + rng.uniform(1.0, 30.0)),
            )
        )
    return tuple(faults)


def _pair_options(rng: random.Random) -> PairOptions:
    return PairOptions(
        label="east",
        failover_interval=rng.choice([0.0, 0.0, 5.0, 30.0]),
        send_timeout=rng.choice([10.0, 30.0]),
        attempt_timeout=rng.choice([3.0, 10.0]),
        busy_pause=rng.choice([2.0, 10.0]),
        backlog_queues=rng.randint(1, 3),
        backlog_cooldown=10.0,
        ping_interval=rng.choice([5.0, 20.0]),
        successes_to_return=rng.choice([1, 2, 2, 3]),
        on_unknown=rng.choice([OnUnknown.DIVERT] * 4 + [OnUnknown.RAISE]),
    )


ALL_OPERATIONS: Final = frozenset(Operation)
SENDS_ONLY: Final = frozenset({Operation.SEND})
SETTLES_ONLY: Final = frozenset({Operation.SETTLE})


def _window(rng: random.Random, namespaces: tuple[str, ...], kinds: list[str]) -> Window:
    namespace, kind = rng.choice(namespaces), rng.choice(kinds)
    start = rng.uniform(CALM, CHAOS - 20.0)
    all_entities = namespace == "secondary" or rng.random() < 0.5
    operations = rng.choice([ALL_OPERATIONS, ALL_OPERATIONS, SENDS_ONLY])
    if namespace == "secondary" and rng.random() < 0.3:
        operations = SETTLES_ONLY
    if kind == "late":
        operations = SENDS_ONLY
    return Window(
        namespace=namespace,
        kind=kind,
        start=start,
        end=min(CHAOS, start + rng.choice([2.0, 20.0, 50.0, 80.0]) * rng.uniform(0.5, 1.5)),
        entities=None if all_entities else frozenset({rng.choice(ENTITIES).key}),
        operations=operations,
        share=rng.choice([0.3, 1.0, 1.0]),
    )


def _crash(rng: random.Random, what: str) -> Crash:
    at = rng.uniform(CALM, CHAOS - 20.0)
    return Crash(what=what, at=at, back=min(CHAOS, at + rng.choice([1.0, 10.0, LONGEST_PAUSE])))
