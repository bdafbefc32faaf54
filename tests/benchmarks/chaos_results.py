"""Parts of the tests of chaos results that other tests need, too."""

import attrs

from benchmarks.chaos import checker
from benchmarks.chaos.figures import Recovery, Service
from benchmarks.chaos.results import Move, Result, Shade, Target, Timeline

SERVED = Service(
    sent=1000,
    acknowledged=999,
    windows=1.0,
    stall=0.25,
    p50=0.005,
    p99=0.05,
    p999=float("nan"),
    worst=0.3,
)
RESULT = Result(
    name="primary-killed-embedded-0s",
    scenario="primary-killed",
    title="The primary <is killed>",
    topology="embedded",
    interval="0s",
    rate=40.0,
    seed=1,
    proxied=False,
    exit=checker.PASSED,
    undecided=(),
    problems=(),
    messages={"lost": 0, "acked": 999, "duplicated": 3, "amplification": 0.5},
    gateway=SERVED,
    baseline=attrs.evolve(SERVED, acknowledged=500),
    healthy=attrs.evolve(SERVED, p50=0.0031),
    baseline_healthy=attrs.evolve(SERVED, p50=0.0012),
    baseline_lost=0,
    recovery=Recovery(
        failover=0.1,
        good_again=0.0,
        failback=1.5,
        drain=None,
        drain_rate=None,
        diverted=400,
        detour_p50=None,
        detour_p99=None,
        detour_worst=None,
    ),
    baseline_recovery=Recovery(
        failover=None,
        good_again=None,
        failback=2.5,
        drain=None,
        drain_rate=None,
        diverted=0,
        detour_p50=None,
        detour_p99=None,
        detour_worst=None,
    ),
    memory=2**26,
    files=50,
    deepest=321,
    targets=(Target(name="lost", wanted="0", found="0", met=True),),
    timeline=Timeline(
        primary=((0, 80), (1, 0), (2, 80)),
        backlog=((0, 0), (1, 80)),
        baseline=((0, 20), (1, 0), (2, 20)),
        depth=((0.0, 0), (1.5, 80), (2.5, 0)),
        moves=(
            Move(at=1.0, process="gateway", entity="orders", state="secondary"),
            Move(at=2.0, process="gateway", entity="orders", state="primary"),
        ),
        faults=(Shade(kind="killed", target="primary", begin=1.0, end=2.0),),
        healed=2.0,
    ),
    histories=("nemesis.jsonl", "baseline/producer and auditor.jsonl"),
    facts={"processor": "2 x <fast>"},
)
MISSING = (Target(name="longest stall", wanted="at most 4 s", found="9.00 s", met=False),)
