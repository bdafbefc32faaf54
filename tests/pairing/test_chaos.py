"""A thousand installations with faults, each on virtual time, each judged at its end."""

from collections import Counter
from functools import cache

import pytest

from gateway.testing.world import run_world

SEEDS = 1000
CHUNK = 25


@cache
def histories(chunk):
    """What went wrong in those seeds, and how often interesting things happened."""
    problems, seen = [], Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        outcomes = run_world(seed)
        seen.update(outcomes.seen)
        seen.update(outcomes.verdict.counts)
        if not outcomes.passed:
            problems.append(outcomes.describe())
    return problems, seen


@pytest.mark.parametrize("chunk", range(SEEDS // CHUNK))
def test_every_promise_holds(chunk):
    problems, _ = histories(chunk)

    assert problems == []


INTERESTING = {
    "acked": 10_000,
    "failed": 100,
    "unknown": 100,
    "recovered": 50,  # unknown, and it arrived
    "vanished": 20,  # unknown, and it didn't
    "duplicated": 100,
    "redelivered": 50,
    "expired": 50,
    "parked": 20,
    "primary -> suspect": 100,
    "suspect -> primary": 50,
    "suspect -> secondary": 20,
    "primary -> secondary": 100,
    "secondary -> half-open": 100,
    "half-open -> primary": 100,
    "half-open -> secondary": 20,
    "Diverted": 500,
    "Syphoned": 500,
    "SyphonHeld": 200,
    "BusyPause": 100,
    "BacklogQueueFailed": 100,
    "LoopPaused": 20,
    "fault: refuse": 1,
    "fault: hang": 1,
    "fault: reset": 1,
    "fault: lose answer": 1,
    "fault: swallow answer": 1,
    "fault: busy": 1,
    "fault: late": 1,
    "late success after the message was accepted elsewhere": 10,
    "gateway killed with sends under way": 10,
    "syphon ended between accept and complete": 10,
    "a namespace crashed with sends under way": 10,
    "restarted in an outage": 10,
    "a batch was diverted": 50,
    "a scheduled message was diverted": 50,
    "a session was diverted": 50,
}


def test_the_histories_are_worth_judging():
    total = Counter()
    for chunk in range(SEEDS // CHUNK):
        total.update(histories(chunk)[1])

    assert {name: total[name] for name, least in INTERESTING.items() if total[name] < least} == {}


@pytest.mark.parametrize("seed", [1, 3, 16])
def test_a_seed_repeats_its_history(seed):
    first, second = run_world(seed), run_world(seed)

    assert first.trace == second.trace
    assert first.records == second.records


def test_another_seed_gives_another_history():
    assert run_world(1).trace != run_world(3).trace
