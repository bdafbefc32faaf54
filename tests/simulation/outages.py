"""Outages of the primary that show what is known of an entity's health, and of its namespace's."""

import random
from collections.abc import Callable
from typing import Final

import attrs

from gateway.pairing.options import OnUnknown
from tests.harness.faults import Operation
from tests.simulation.scenario import (
    CALM,
    FULL,
    GRAY,
    LONGEST_INTERVAL,
    MISSING,
    NO_LOGIN,
    STUCK,
    Crash,
    Scenario,
    Window,
)

SENDS: Final = frozenset({Operation.SEND})
SENDS_AND_PROBES: Final = frozenset({Operation.SEND, Operation.PROBE})


def with_slowness(scenario: Scenario) -> Scenario:
    """Add limits for slow calls, and now and then a slow primary, by a generator of their own."""
    rng = random.Random(f"patience {scenario.seed}")
    pair = attrs.evolve(
        scenario.pair,
        slow_call_duration=rng.choice([2.0, 2.0, 3.0, None, None]),
        slow_call_rate=rng.choice([0.5, 0.5, 0.5, None]),
    )
    windows = [
        attrs.evolve(window, kind=GRAY, operations=SENDS_AND_PROBES)
        if window.namespace == "primary" and scenario.seed % 10 != 0 and rng.random() < 0.15
        else window
        for window in scenario.windows
    ]
    return attrs.evolve(scenario, pair=pair, windows=tuple(windows))


def _outage(kind: str, start: float, end: float) -> Window:
    """An outage of the whole primary, for each operation that shows whether an entity is well."""
    return Window(
        namespace="primary",
        kind=kind,
        start=start,
        end=end,
        entities=None,
        operations=SENDS_AND_PROBES,
        share=1.0,
    )


def with_gray_outage(scenario: Scenario) -> Scenario:
    """Replace all faults by a primary that answers late, for longer than the interval."""
    rng = random.Random(f"gray {scenario.seed}")
    start = rng.uniform(CALM, CALM + 20.0)
    return attrs.evolve(
        scenario,
        pair=attrs.evolve(
            scenario.pair,
            failover_interval=rng.choice([5.0, 15.0]),
            slow_call_duration=2.0,
            slow_call_rate=0.5,
        ),
        windows=(_outage(GRAY, start, start + 70.0),),
        crashes=(),
        disk_faults=(),
    )


def with_silence(scenario: Scenario) -> Scenario:
    """The primary is down, for longer than the interval, and hardly anybody sends."""
    rng = random.Random(f"silence {scenario.seed}")
    start = rng.uniform(CALM, CALM + 20.0)
    interval = rng.choice([5.0, 15.0, LONGEST_INTERVAL])
    return attrs.evolve(
        scenario,
        pair=attrs.evolve(scenario.pair, failover_interval=interval),
        windows=(),
        crashes=(Crash(what="primary", at=start, back=start + rng.choice([0.7, 2.5]) * interval),),
        disk_faults=(),
    )


def with_flapping(scenario: Scenario) -> Scenario:
    """The primary comes and goes, and each time long enough to be believed."""
    rng = random.Random(f"flapping {scenario.seed}")
    starts = [CALM + number * 20.0 for number in range(5)]
    return attrs.evolve(
        scenario,
        pair=attrs.evolve(scenario.pair, failover_interval=0.0, ping_interval=5.0),
        sends=3 * scenario.sends,
        windows=tuple(_outage("refuse", start, start + rng.uniform(3.0, 6.0)) for start in starts),
        crashes=(),
        disk_faults=(),
    )


def with_throttling(scenario: Scenario) -> Scenario:
    """The primary is busy, and sends have the time to wait until it isn't."""
    rng = random.Random(f"throttling {scenario.seed}")
    starts = [rng.uniform(CALM, CALM + 20.0) + number * 30.0 for number in range(3)]
    return attrs.evolve(
        scenario,
        pair=attrs.evolve(scenario.pair, send_timeout=30.0, busy_pause=2.0),
        sends=2 * scenario.sends,
        clients_deadline=None,
        windows=tuple(_outage("busy", start, start + 8.0) for start in starts),
        crashes=(),
        disk_faults=(),
    )


def with_killed_syphon(scenario: Scenario) -> Scenario:
    """A syphon is killed with what it couldn't move; the primary and it are back soon."""
    rng = random.Random(f"killed syphon {scenario.seed}")
    start = rng.uniform(CALM, CALM + 20.0)
    killed = start + rng.uniform(15.0, 30.0)
    return attrs.evolve(
        scenario,
        syphon=attrs.evolve(scenario.syphon, batch=100, attempt_timeout=3.0),
        syphons=1,
        sends=3 * scenario.sends,
        clients_deadline=None,
        windows=(_outage("refuse", start, killed + 1.0),),
        crashes=(Crash(what="syphon", at=killed, back=killed + 2.0),),
        disk_faults=(),
    )


def with_silent_entity(scenario: Scenario) -> Scenario:
    """An entity gets no answers, and sends to the others are rare, so that it speaks for them."""
    rng = random.Random(f"silent entity {scenario.seed}")
    outage = _outage("hang", CALM, CALM + 80.0)
    silent = frozenset({rng.choice(scenario.entities).key})
    return attrs.evolve(
        scenario,
        pair=attrs.evolve(
            scenario.pair,
            failover_interval=rng.choice([5.0, LONGEST_INTERVAL]),
            slow_call_duration=2.0,
            slow_call_rate=0.5,
        ),
        latency=0.005,
        producers=2,
        sends=3 * scenario.sends,
        clients_deadline=None,
        windows=(attrs.evolve(outage, entities=silent),),
        crashes=(),
        disk_faults=(),
    )


def with_short_freeze(scenario: Scenario) -> Scenario:
    """The primary freezes for less than the time that a syphon waits for an answer to its send."""
    rng = random.Random(f"short freeze {scenario.seed}")
    start = rng.uniform(CALM, CALM + 20.0)
    return attrs.evolve(
        scenario,
        pair=attrs.evolve(scenario.pair, failover_interval=LONGEST_INTERVAL),
        syphon=attrs.evolve(scenario.syphon, attempt_timeout=10.0),
        syphons=max(1, scenario.syphons),
        sends=12 * scenario.sends,
        clients_deadline=None,
        windows=(_outage("hang", start, start + 12.0),),
        crashes=(),
        disk_faults=(),
    )


def with_comeback(scenario: Scenario) -> Scenario:
    """
    The primary is killed, and comes back within the interval without its queues or its users, which
    are made again before the interval ends. In some histories it isn't killed at all.
    """
    rng = random.Random(f"comeback {scenario.seed}")
    start, down = rng.uniform(CALM, CALM + 20.0) + 15.0, rng.uniform(1.0, 8.0)
    back = start + down
    lacks = _outage(rng.choice([MISSING, NO_LOGIN]), back, back + rng.uniform(5.0, 15.0))
    killed = rng.random() < 0.7
    return attrs.evolve(
        scenario,
        parts=attrs.evolve(scenario.parts, breaking=0.0),
        pair=attrs.evolve(
            scenario.pair, failover_interval=LONGEST_INTERVAL, on_unknown=OnUnknown.DIVERT
        ),
        # Each entity is sent to before the outage.
        producers=4,
        sends=4 * scenario.sends,
        clients_deadline=None,
        windows=(lacks,),
        crashes=(Crash(what="primary", at=start, back=back),) if killed else (),
        disk_faults=(),
        clock_steps=(),
    )


def with_full_queues(scenario: Scenario) -> Scenario:
    """
    A primary that stores batches message by message, as RabbitMQ does, is back after an outage, and
    its queues refuse some messages of what the syphon brings.
    """
    rng = random.Random(f"full queues {scenario.seed}")
    start = rng.uniform(CALM, CALM + 20.0)
    back = start + rng.uniform(10.0, 30.0)
    full = attrs.evolve(_outage(FULL, back, back + 40.0), operations=SENDS, share=0.5)
    return attrs.evolve(
        scenario,
        parts=attrs.evolve(scenario.parts, on_disk=False, breaking=0.0, ordered=False),
        pair=attrs.evolve(
            scenario.pair, failover_interval=rng.choice([0.0, 5.0]), divert_on_quota=True
        ),
        syphon=attrs.evolve(scenario.syphon, batch=100),
        producers=4,
        sends=4 * scenario.sends,
        clients_deadline=None,
        windows=(_outage("refuse", start, back), full),
        crashes=(),
        disk_faults=(),
        clock_steps=(),
    )


def with_stuck_connection(scenario: Scenario) -> Scenario:
    """
    The open connections to the primary take no sends any more, for ever, and new ones work; or one
    entity gets no answers, and a connection on which others do must stay.
    """
    rng = random.Random(f"stuck {scenario.seed}")
    start = rng.uniform(CALM, CALM + 20.0)
    window = attrs.evolve(_outage(STUCK, start, start + 10.0), operations=SENDS)
    if rng.random() < 0.5:
        silent = frozenset({rng.choice(scenario.entities).key})
        window = attrs.evolve(_outage("hang", start, start + 40.0), entities=silent)
    return attrs.evolve(
        scenario,
        parts=attrs.evolve(scenario.parts, remembers=True, ordered=False),
        pair=attrs.evolve(
            scenario.pair,
            failover_interval=rng.choice([0.0, 5.0]),
            slow_call_duration=2.0,
            ping_interval=5.0,
        ),
        sends=10 * scenario.sends,
        clients_deadline=None,
        windows=(window,),
        crashes=(),
        disk_faults=(),
    )


# By the seed's rest when it is divided by 25.
OUTAGES: Final[dict[int, Callable[[Scenario], Scenario]]] = {
    4: with_stuck_connection,
    13: with_gray_outage,
    16: with_short_freeze,
    18: with_silence,
    20: with_throttling,
    22: with_killed_syphon,
    23: with_flapping,
    24: with_silent_entity,
}
