"""Ratios and verdicts are made of measurements."""

from benchmarks.closed_loop import AZURITE, FLOOR, HTTP, IN_PROCESS, Measured, total
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


def test_receives_are_compared_to_azurite_where_there_are_several_clients() -> None:
    rounds = {
        (HTTP, 1): [pair(1, 1)],
        (AZURITE, 1): [pair(1000, 1000)],
        (HTTP, 8): [pair(1, 3000)],
        (AZURITE, 8): [pair(1000, 1000)],
        (HTTP, 64): [pair(1, 2900)],
        (AZURITE, 64): [pair(1000, 1000)],
    }

    targets = report({}, rounds, []).targets

    assert [(target.reached, target.found) for target in targets] == [
        (True, "3.00 times"),
        (False, "2.90 times"),
    ]


def test_a_send_of_one_client_is_compared_to_the_floor() -> None:
    rounds = {
        (HTTP, 1): [pair(1000, 1)],
        (FLOOR, 1): [pair(1600, 1)],
        (HTTP, 8): [pair(1, 1)],
        (FLOOR, 8): [pair(1000, 1)],
    }

    [target] = report({}, rounds, []).targets

    assert not target.reached
    assert target.found == "1.60 times"


def test_operations_in_process_are_judged_with_the_most_clients() -> None:
    rounds = {(IN_PROCESS, 64): [pair(50_000, 24_999)], (IN_PROCESS, 1): [pair(1000, 30_000)]}

    targets = report({}, rounds, []).targets

    assert [(target.reached, target.found) for target in targets] == [
        (True, "50000"),
        (False, "24999"),
    ]


def test_the_processor_time_of_a_message_is_told_of_each_process() -> None:
    sent = Measured(messages=100, seconds=2.0, busy=0.25, server=0.6)
    rounds = {(HTTP, 8): [Pair(send=sent, receive=total([sent, sent]))]}

    [cell] = report({}, rounds, []).cells

    assert cell.send_processor == cell.receive_processor == (0.005, 0.006)


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
