"""The benchmark of the AMQP engine measures every shape, and judges the costs."""

import pytest

from benchmarks.amqp_engine import (
    CLIENT,
    MAKE,
    OWN,
    PROTON,
    QUICK,
    SERVER,
    Shape,
    connect,
    measure,
    report,
    shapes,
)

ONE = Shape(1, 1, CLIENT)
OTHER = Shape(1, 100, CLIENT)


def test_only_measurements_of_one_round_are_compared() -> None:
    # The machine was ten times as slow in the second round.
    rounds = {
        ONE: [{OWN: 2.0, PROTON: 4.0}, {OWN: 30.0, PROTON: 40.0}, {OWN: 4.0, PROTON: 4.0}],
        OTHER: [{OWN: 1.0, PROTON: 2.0}] * 3,
    }

    found = report({}, rounds)

    assert [(each.own, each.proton, each.ratio) for each in found.cells] == [
        (4.0, 4.0, 0.75),
        (1.0, 2.0, 0.5),
    ]
    assert found.target.reached
    assert found.target.found == "0.75 times where it is most"


def test_a_cell_that_costs_more_misses_the_target() -> None:
    rounds = {ONE: [{OWN: 1.06, PROTON: 1.0}], OTHER: [{OWN: 0.5, PROTON: 1.0}]}

    assert not report({}, rounds).target.reached


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("direction", [CLIENT, SERVER])
@pytest.mark.parametrize(("size", "window"), [(1, 1), (1024, 10), (300_000, 10)])
def test_each_message_that_is_sent_is_accepted(
    kind: str, direction: str, size: int, window: int
) -> None:
    flow = connect(kind, Shape(size, window, direction))

    costs = [flow.run(0.0) for _ in range(3)]

    assert (flow.sent, flow.accepted) == (3 * window, 3 * window)
    assert min(costs) > 0
    assert flow.receiver.unsettled == 0


def test_every_shape_is_measured_with_both_kinds() -> None:
    wanted = list(shapes([1, 100], [1, 10]))

    found = measure(wanted, QUICK)

    assert list(found) == wanted
    assert len(wanted) == 8
    assert all([costs.keys() for costs in each] == [{OWN, PROTON}] for each in found.values())
