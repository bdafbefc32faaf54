"""The benchmark of the listener: its figures, and its measurements that need no server."""

import pytest
import trio

from benchmarks.listener import Wakes, lines_of_idle, lines_of_rates, lines_of_wakes, targets_of
from benchmarks.listener_idle import NAIVE, WAYS, measure
from benchmarks.listener_rates import PLAIN, Row, rows
from benchmarks.listener_worker import LOOP, OURS, Taken, in_memory


def taken(seconds: float, requests: int, processor: float) -> Taken:
    return Taken(seconds=seconds, requests=requests, costs={"client": processor})


ROUNDS = [
    {"fast": taken(1.0, 200, 0.01), PLAIN: taken(2.0, 0, 0.1)},
    {"fast": taken(4.0, 100, 0.02), PLAIN: taken(4.0, 0, 0.2)},
    {"fast": taken(2.0, 100, 0.03), PLAIN: taken(6.0, 0, 0.3)},
]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    (row,) = rows("here", 100, ROUNDS)

    assert row == Row(
        namespace="here",
        way="fast",
        ours=50.0,
        plain=25.0,
        ratio=2.0,
        requests=1.0,
        costs={"client": 0.0002},
        plain_costs={"client": 0.002},
    )
    assert lines_of_rates([row])[1:] == [
        "  here, fast: 50, 25, 2.00 times; 1.00 requests for each message;"
        " CPU of a message: client 200 us; of the plain loop's: client 2000 us"
    ]


def test_each_way_of_ours_has_a_row() -> None:
    rounds = [{**each, "other": each["fast"]} for each in ROUNDS]

    assert [row.way for row in rows("here", 100, rounds)] == ["fast", "other"]


def test_of_a_hundred_wakes_the_p99_is_the_longest_but_one() -> None:
    woken = Wakes(from_send=[float(n) for n in range(100)], from_answer=[1.0])

    assert woken.of(0.99, woken.from_send) == 99.0
    assert woken.of(0.5, woken.from_send) == 50.0
    assert "median 1.0 ms, p99 1.0 ms, longest 1.0 ms" in lines_of_wakes(woken, woken)[2]


def test_99_of_100_wakes_are_judged() -> None:
    [reached] = targets_of(Wakes(from_send=[], from_answer=[50.0] * 100 + [1000.0]))
    [missed] = targets_of(Wakes(from_send=[], from_answer=[50.0] * 99 + [1000.0] * 2))

    assert (reached.reached, missed.reached) == (True, False)


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
