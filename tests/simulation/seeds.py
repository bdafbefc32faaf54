"""Draws the scenario of each seed."""

import random
from math import inf
from typing import Final

import attrs

from gateway.domain.backoff import Backoff
from gateway.pairing.options import OnUnknown, PairOptions, SyphonOptions
from tests.harness.crash_disk import Ailment
from tests.harness.faults import Operation
from tests.harness.options import changed
from tests.simulation.outages import OUTAGES, with_comeback, with_full_queues, with_slowness
from tests.simulation.scenario import (
    CALM,
    CHAOS,
    CLOCKS,
    ENTITIES,
    FAULTS,
    LONGEST_INTERVAL,
    NAMES,
    NOT_DRAWN,
    ClockStep,
    Crash,
    DiskFault,
    Front,
    Mode,
    Parts,
    Scenario,
    Window,
)

LONGEST_PAUSE: Final = 60.0  # seconds that something stays down
OVER_NETWORK: Final = 0.17  # the share of runs whose clients reach the gateway over a network
# The faults of an embedded broker's disk, beside the loss of its power.
DISK_FAULTS: Final = (*Ailment, None)  # None: nearly full, so that the store takes nothing in
STEPS: Final = (2.5, 30.0, 90.0, 1800.0, 10800.0)  # seconds by which a wall clock is off, about
LASTING_STEP: Final = 1800.0  # tokens of an hour are good on both sides of it
CRASHES: Final = ("primary", "secondary", "gateway", "syphon", "pause")
# Front ends that are drawn; one more would mean another history for each seed.
FRONTS: Final = (Front.REST, Front.AMQP, Front.STORAGE_QUEUE)
PIPELINED: Final = (None, Front.AMQP)  # where a client has several batches in flight
# From here on, the seeds of histories in which some entities keep the order of their sends.
ORDERED: Final = 10_000_000_000
# From here on, the seeds of a primary that comes back, and lacks what it had before.
COMEBACK: Final = 20_000_000_000
# From here on, the seeds of a primary that takes some messages of a batch, and refuses others.
IN_PIECES: Final = 30_000_000_000
# From here on, the seeds of publishers of RabbitMQ's own protocol.
BY_RABBITMQ: Final = 40_000_000_000
# By the seed, and not by a draw, so that no seed that is remembered means another history.
WITH_PIPELINES: Final = frozenset({19, 24, 29, 45, 47, 48})
WITH_CROWDS: Final = frozenset({2, 6, 8, 9, 22, 26, 35})
# Of 500: clients reach the gateway over a network, and their tokens are old by its clock.
WITH_OLD_TOKENS: Final = frozenset({51, 331, 401})


def draw(seed: int, load: int = 1) -> Scenario:
    """
    The scenario of that seed, with so many times the sends in the same time.

    Swarm testing: each seed allows some kinds of faults only, and some seeds one namespace only,
    so that what one fault does isn't hidden by another.
    """
    if seed >= BY_RABBITMQ:
        return _by_rabbitmq(draw(seed - BY_RABBITMQ, load))
    if seed >= IN_PIECES:
        return attrs.evolve(with_full_queues(draw(seed - IN_PIECES, load)), seed=seed)
    if seed >= COMEBACK:
        return attrs.evolve(with_comeback(draw(seed - COMEBACK, load)), seed=seed)
    if seed >= ORDERED:
        return _in_order(draw(seed - ORDERED, load))
    rng = random.Random(seed)
    namespaces = rng.choice([("primary",), ("primary",), ("secondary",), NAMES, NAMES])
    kinds = rng.sample(sorted(FAULTS.keys() - NOT_DRAWN), rng.randint(1, 4))
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
    scenario = Scenario(
        seed=seed,
        parts=parts,
        pair=_pair_options(rng),
        syphon=SyphonOptions(
            batch=rng.choice([1, 4, 100]),
            attempt_timeout=rng.choice([3.0, 10.0]),
            unknown_retry=Backoff(first=1.0, cap=20.0),
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
    if seed % 10 == 4:  # two syphons compete for one backlog
        scenario = attrs.evolve(scenario, syphons=2)
    scenario = with_slowness(scenario)
    if seed % 25 == 8:
        return _with_handover(scenario)
    if seed % 25 in OUTAGES:
        return OUTAGES[seed % 25](scenario)
    return _with_clocks(scenario)


def _in_order(scenario: Scenario) -> Scenario:
    """The same faults, while some entities keep the order of their sends."""
    rng = random.Random(f"order {scenario.seed}")
    return attrs.evolve(
        scenario,
        seed=ORDERED + scenario.seed,
        parts=attrs.evolve(scenario.parts, ordered=True, remembers=False),
        pair=changed(scenario.pair, ordered=rng.choice([("*",), ("orders", "audit/*")])),
        sends=rng.choice([2, 5]) * scenario.sends,
    )


def _by_rabbitmq(scenario: Scenario) -> Scenario:
    """The same faults, while all clients are publishers of RabbitMQ."""
    parts = attrs.evolve(scenario.parts, front=Front.RABBITMQ, pipelines=False, crowds=False)
    return attrs.evolve(scenario, seed=BY_RABBITMQ + scenario.seed, parts=parts)


def draw_parts(seed: int) -> Parts:
    """Draw the parts by a generator of their own, so that a seed's faults don't depend on them."""
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
        encrypts=seed % 4 == 3,
    )
    # In turn, so that a few seeds have all of them.
    front = FRONTS[seed % len(FRONTS)] if over_network else None
    pipelines = front in PIPELINED and seed % 50 in WITH_PIPELINES
    crowds = front is not Front.AMQP and seed % 50 in WITH_CROWDS
    return attrs.evolve(parts, front=front, pipelines=pipelines, crowds=crowds)


def _disk_faults(seed: int, namespaces: tuple[str, ...]) -> tuple[DiskFault, ...]:
    """
    Draw the faults of disks by a generator of their own. Throttling and pauses are left alone.
    """
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


def _with_clocks(scenario: Scenario) -> Scenario:
    """
    Add steps of clocks, by a generator of their own; throttling and pauses are left alone.

    So is Storage Queue, whose dates are delays: they come to what two clocks make of them.
    """
    rng = random.Random(f"time {scenario.seed}")
    with_delays = scenario.parts.front is Front.STORAGE_QUEUE
    if not with_delays and scenario.seed % 500 in WITH_OLD_TOKENS:
        return attrs.evolve(scenario, clock_steps=(_old_tokens(rng),))
    if with_delays or scenario.seed % 10 in {0, 2} or rng.random() >= 0.5:
        return scenario
    match rng.randrange(6):
        case 0:  # nothing else goes wrong: nothing may move
            scenario = attrs.evolve(scenario, windows=(), crashes=(), disk_faults=())
        case 1:  # the gateway's clock is set while it waits for the interval to be over
            scenario = _with_outage(scenario, rng)
            begin, end = scenario.windows[0].start, scenario.windows[0].start + 30.0
            steps = (_clock_step(rng, "gateway", begin, end) for _ in range(2))
            return attrs.evolve(scenario, clock_steps=tuple(steps))
        case 2:  # one clock of those by which the syphon tells what is left is set in an outage
            scenario = _with_outage(scenario, rng)
            begin, end = scenario.windows[0].start, scenario.windows[0].end
            process = rng.choice(
                ["gateway", "syphon" if scenario.syphons else "gateway", "secondary"]
            )
            return attrs.evolve(scenario, clock_steps=(_clock_step(rng, process, begin, end),))
        case 3:  # the primary's clock is set while it has messages that are due later
            steps = (_clock_step(rng, "primary", CALM, CHAOS - 20.0) for _ in range(3))
            return attrs.evolve(scenario, windows=(), clock_steps=tuple(steps))
    steps = (
        _clock_step(rng, rng.choice(CLOCKS), CALM, CHAOS - 20.0) for _ in range(rng.randint(1, 6))
    )
    return attrs.evolve(scenario, clock_steps=tuple(steps))


def _old_tokens(rng: random.Random) -> ClockStep:
    """The gateway's clock is ahead by longer than a token lives."""
    at = rng.uniform(CALM, CHAOS - 40.0)
    ahead = STEPS[-1] * rng.uniform(0.5, 1.5)
    return ClockStep(process="gateway", ahead=ahead, drift=0.0, at=at, back=at + 30.0)


def _with_outage(scenario: Scenario, rng: random.Random) -> Scenario:
    """Replace all faults by a primary that doesn't answer, for longer than the interval."""
    start = rng.uniform(CALM, CALM + 20.0)
    outage = Window(
        namespace="primary",
        kind=rng.choice(["refuse", "hang"]),
        start=start,
        end=start + 2 * LONGEST_INTERVAL,
        entities=None,
        operations=ALL_OPERATIONS,
        share=1.0,
    )
    return attrs.evolve(
        scenario,
        pair=attrs.evolve(scenario.pair, failover_interval=LONGEST_INTERVAL),
        sends=3 * scenario.sends,  # only a failure can fail over
        windows=(outage,),
        crashes=(),
        disk_faults=(),
    )


def _with_handover(scenario: Scenario) -> Scenario:
    """The primary is down, and is well again for a moment before the secondary goes down."""
    rng = random.Random(f"handover {scenario.seed}")
    start = rng.uniform(CALM, CALM + 20.0)
    back = start + rng.uniform(8.0, 30.0)
    spans = {"primary": (start, back), "secondary": (back + 0.6, back + 20.0)}
    return attrs.evolve(
        scenario,
        parts=attrs.evolve(scenario.parts, on_disk=False, breaking=0.0, remembers=True),
        pair=attrs.evolve(scenario.pair, on_unknown=OnUnknown.DIVERT),
        sends=20 * scenario.sends,  # some must come soon after the handover
        clients_deadline=None,
        windows=tuple(
            Window(
                namespace=name,
                kind="refuse",
                start=begin,
                end=end,
                entities=None,
                operations=ALL_OPERATIONS,
                share=1.0,
            )
            for name, (begin, end) in spans.items()
        ),
        crashes=(),
        disk_faults=(),
    )


def _clock_step(rng: random.Random, process: str, begin: float, end: float) -> ClockStep:
    at, span = rng.uniform(begin, end), rng.choice([2.0, 20.0, 80.0, inf])
    off = rng.choice(STEPS) * rng.uniform(0.5, 1.5)
    return ClockStep(
        process=process,
        ahead=rng.choice([-1.0, 1.0]) * (min(off, LASTING_STEP) if span == inf else off),
        drift=rng.choice([0.0, 0.0, -0.001, 0.01]),
        at=at,
        back=inf if span == inf else min(CHAOS, at + span * rng.uniform(0.5, 1.5)),
    )


def _pair_options(rng: random.Random) -> PairOptions:
    return PairOptions(
        label="east",
        failover_interval=rng.choice([0.0, 0.0, 5.0, LONGEST_INTERVAL]),
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
