"""A thousand installations with faults, each on virtual time, each judged at its end."""

from collections import Counter

import pytest

from gateway.testing.sim.world import run_world

SEEDS = 1000
PARTS = 4  # each is one test: it counts, so that all of it runs in one process

# What each part must have seen, and how often, so that it was worth judging.
INTERESTING = {
    "acked": 2500,
    "failed": 25,
    "unknown": 25,
    "recovered": 13,  # unknown, and it arrived
    "vanished": 5,  # unknown, and it didn't
    "duplicated": 25,
    "redelivered": 13,
    "expired": 13,
    "parked": 5,
    "primary -> suspect": 25,
    "suspect -> primary": 13,
    "suspect -> secondary": 5,
    "primary -> secondary": 25,
    "secondary -> half-open": 25,
    "half-open -> primary": 25,
    "half-open -> secondary": 5,
    "Diverted": 125,
    "Syphoned": 125,
    "SyphonHeld": 50,
    "BusyPause": 25,
    "BacklogQueueFailed": 25,
    "LoopPaused": 5,
    "fault: refuse": 1,
    "fault: hang": 1,
    "fault: reset": 1,
    "fault: lose answer": 1,
    "fault: swallow answer": 1,
    "fault: busy": 1,
    "fault: late": 1,
    "late success after the message was accepted elsewhere": 2,
    "gateway killed with sends under way": 2,
    "syphon ended between accept and complete": 2,
    "a namespace crashed with sends under way": 2,
    "restarted in an outage": 2,
    "a batch was diverted": 13,
    "a scheduled message was diverted": 13,
    "a session was diverted": 13,
    # Invariants that a history could have broken, and didn't.
    **{f"{name} holds": 150 for name in ("S1", "S2", "S4", "S5", "S6", "S8", "S11", "S12")},
    **{f"{name} holds": 150 for name in ("L3", "L6")},
    **{f"{name} holds": 25 for name in ("S3", "S9", "S10", "L1", "L4", "L5")},
    "L2 holds": 3,
}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_histories_worth_judging(part):
    problems, seen = [], Counter()
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        outcomes = run_world(seed)
        seen.update(outcomes.seen)
        seen.update(outcomes.verdict.counts)
        for one in outcomes.judgement.decisions:
            seen[f"{one.invariant.name} {one.ruling.value}"] += 1
        if not outcomes.passed:
            problems.append(outcomes.describe())

    assert problems == []
    assert {name: seen[name] for name, least in INTERESTING.items() if seen[name] < least} == {}


@pytest.mark.parametrize("seed", [1, 3, 16])
def test_a_seed_repeats_its_history(seed):
    first, second = run_world(seed), run_world(seed)

    assert first.trace == second.trace
    assert first.records == second.records


def test_another_seed_gives_another_history():
    assert run_world(1).trace != run_world(3).trace
