"""From measurements to ratios and verdicts."""

from benchmarks.closed_loop import AZURITE, HTTP, IN_PROCESS, Measured
from benchmarks.figures import Pair, report
from benchmarks.sizes import Cost, Growth, Round


def pair(send: int, receive: int) -> Pair:
    return Pair(
        send=Measured(messages=send, seconds=1.0, busy=0.5),
        receive=Measured(messages=receive, seconds=1.0, busy=0.25),
    )


def round_of(send: float, receive: float) -> Round:
    return Round(
        send=Cost(wall=send, processor=send / 2),
        receive=Cost(wall=receive, processor=receive / 2),
    )


def test_only_measurements_of_one_round_are_compared() -> None:
    # The machine was ten times as slow in the second round.
    rounds = {
        (HTTP, 8): [pair(3000, 600), pair(300, 60), pair(3000, 600)],
        (AZURITE, 8): [pair(1000, 300), pair(100, 30), pair(900, 300)],
    }

    [ratio] = report({}, rounds, []).ratios

    assert (ratio.way, ratio.baseline, ratio.clients) == (HTTP, AZURITE, 8)
    assert (ratio.send, ratio.receive) == (3.0, 2.0)


def test_the_least_ratio_to_azurite_decides() -> None:
    rounds = {
        (HTTP, 1): [pair(4000, 4000)],
        (AZURITE, 1): [pair(1000, 1000)],
        (HTTP, 64): [pair(4000, 2900)],
        (AZURITE, 64): [pair(1000, 1000)],
    }

    [target] = report({}, rounds, []).targets

    assert not target.reached
    assert target.found == "2.90 times where it is least"


def test_sends_in_process_are_judged_with_the_most_senders() -> None:
    rounds = {(IN_PROCESS, 64): [pair(20_000, 1)], (IN_PROCESS, 1): [pair(1000, 1)]}

    [target] = report({}, rounds, []).targets

    assert target.reached
    assert target.found == "20000"


def test_the_cost_among_many_is_divided_by_the_cost_among_few() -> None:
    rounds = [
        (round_of(1.0, 2.0), round_of(1.0, 3.0)),
        (round_of(10.0, 20.0), round_of(11.0, 30.0)),
        (round_of(1.0, 2.0), round_of(1.2, 3.0)),
    ]
    growth = Growth(kind="messages", few=10, many=1000, rounds=rounds)

    found = report({}, {}, [growth])

    assert [one.ratio for one in found.growths] == [1.1, 1.5]
    assert [target.reached for target in found.targets] == [True, False]
