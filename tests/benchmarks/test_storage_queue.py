"""The benchmark of Storage Queue reports its measurements, and fails if a message is missing."""

from pathlib import Path

import attrs
import pytest

from benchmarks import storage_queue
from benchmarks.closed_loop import MessagesMissing
from benchmarks.storage_figures import (
    AZURITE,
    PAIRGATE,
    SHALLOW,
    THROUGH,
    Flight,
    Pair,
    Place,
    flight,
    report,
)

AT_100 = Place(PAIRGATE, SHALLOW, 8)


def one(rate: float) -> Flight:
    return Flight(messages=int(rate), seconds=1.0, p50=0.001, p99=0.01, client=1e-4)


def pair(put: float, get: float) -> Pair:
    return Pair(put=one(put), get=one(get))


def test_only_measurements_of_one_round_are_compared() -> None:
    # The machine was ten times as slow in the second round.
    rounds = {
        AT_100: [pair(3000, 600), pair(300, 60), pair(3000, 600)],
        attrs.evolve(AT_100, way=AZURITE): [pair(1000, 300), pair(100, 30), pair(900, 300)],
    }

    [ratio] = report({}, rounds).ratios

    assert (ratio.baseline.way, ratio.put, ratio.get) == (AZURITE, 3.0, 2.0)


def test_the_least_ratio_to_azurite_decides() -> None:
    rounds = {
        AT_100: [pair(4000, 4000)],
        attrs.evolve(AT_100, way=AZURITE): [pair(1000, 1000)],
        attrs.evolve(AT_100, connections=1): [pair(2900, 4000)],
        attrs.evolve(AT_100, connections=1, way=AZURITE): [pair(1000, 1000)],
    }

    [target] = report({}, rounds).targets

    assert not target.reached
    assert target.found == "puts 2.90 times, gets and deletes 4.00, at depth 100, 1 connections"


def test_other_depths_are_compared_with_the_least_one() -> None:
    rounds = {
        AT_100: [pair(1000, 1000)],
        attrs.evolve(AT_100, depth=1_000_000): [pair(950, 920)],
    }

    [target] = report({}, rounds).targets

    assert target.reached
    assert "gets and deletes 0.92, at depth 1000000" in target.found


def test_the_way_through_the_gateway_is_judged_beside_the_direct_way() -> None:
    rounds = {
        attrs.evolve(AT_100, way=THROUGH): [pair(790, 990)],
        attrs.evolve(AT_100, way=AZURITE): [pair(1000, 1000)],
    }

    [target] = report({}, rounds).targets

    assert not target.reached
    assert target.found.startswith("puts 0.79 times")


def test_latencies_are_of_all_turns_together() -> None:
    found = flight([0.3, 0.1, 0.2], seconds=2.0, client=0.6, servers={"Azurite": 0.9})

    assert (found.rate, found.p50, found.p99) == (1.5, 0.2, 0.3)
    assert (found.client, found.servers["Azurite"]) == pytest.approx((0.2, 0.3))


@pytest.mark.slow
async def test_a_run_ends_with_all_that_has_to_stay(tmp_path: Path) -> None:
    effort = attrs.evolve(storage_queue.QUICK, seconds=0.01, turn=5)

    found = await storage_queue.measure(tmp_path, [PAIRGATE], [SHALLOW], [2], effort)

    assert [(cell.place.depth, cell.operation) for cell in found.cells] == [
        (SHALLOW, "put"),
        (SHALLOW, "get, delete"),
    ]


@pytest.mark.slow
async def test_a_run_in_which_a_message_is_missing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = storage_queue.fill
    monkeypatch.setattr(storage_queue, "fill", lambda path, depth: filled(path, depth - 1))
    effort = attrs.evolve(storage_queue.QUICK, seconds=0.01, turn=5)

    missing = pytest.RaisesExc(MessagesMissing, match="100 messages stay, 99 are there")
    with pytest.RaisesGroup(missing, flatten_subgroups=True):
        await storage_queue.measure(tmp_path, [PAIRGATE], [SHALLOW], [1], effort)
