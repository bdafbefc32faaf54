"""The benchmark of the listener: its figures, and what it measures where that needs no server."""

import pytest
import trio

from benchmarks.listener import Wakes, lines_of_idle, lines_of_rates, lines_of_wakes
from benchmarks.listener_idle import NAIVE, WAYS, measure
from benchmarks.listener_rates import PLAIN, Row, rows
from benchmarks.listener_worker import LOOP, OURS, Taken, in_memory

ROUNDS = [
    {"fast": Taken(seconds=1.0, requests=200), PLAIN: Taken(seconds=2.0)},
    {"fast": Taken(seconds=4.0, requests=100), PLAIN: Taken(seconds=4.0)},
    {"fast": Taken(seconds=2.0, requests=100), PLAIN: Taken(seconds=6.0)},
]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    (row,) = rows("here", 100, ROUNDS)

    assert row == Row(namespace="here", way="fast", ours=50.0, plain=25.0, ratio=2.0, requests=1.0)
    assert lines_of_rates([row])[1:] == [
        "  here, fast: 50, 25, 2.00 times; 1.00 requests for each message"
    ]


def test_each_way_of_ours_has_a_row() -> None:
    rounds = [{**each, "other": each["fast"]} for each in ROUNDS]

    assert [row.way for row in rows("here", 100, rounds)] == ["fast", "other"]


def test_of_a_hundred_wakes_the_p99_is_the_longest_but_one() -> None:
    woken = Wakes(from_send=[float(n) for n in range(100)], from_answer=[1.0])

    assert woken.of(0.99, woken.from_send) == 99.0
    assert woken.of(0.5, woken.from_send) == 50.0
    assert "median 1.0 ms, p99 1.0 ms, longest 1.0 ms" in lines_of_wakes(woken, woken)[2]


@pytest.mark.slow
def test_idle_hours_cost_what_the_page_says() -> None:
    idle = {each.name: each for each in map(measure, WAYS)}

    assert NAIVE == 79_200
    assert idle["polling"].requests <= 22 * 100
    assert idle["with triggers"].requests < 20
    assert idle["where the namespace pushes"].requests == 0
    assert "79200" in lines_of_idle(list(idle.values()))[0]


@pytest.mark.parametrize("kind", [OURS, LOOP])
def test_both_take_all_messages(kind: str) -> None:
    taken = trio.run(in_memory, kind, 100)

    assert taken.seconds > 0
    assert (taken.requests > 100) is (kind == OURS)
