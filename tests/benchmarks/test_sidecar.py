"""The benchmark of a sidecar's price judges its model, and each of its protocols works."""

import math
from pathlib import Path

import pytest

from benchmarks import sidecar
from benchmarks.amqp_figures import Flight
from benchmarks.sidecar import DIRECT, FULL_SPEED, GATEWAY, PROTOCOLS, REST


def flight(rate: float, p50: float, **costs: float) -> Flight:
    """Of a client that takes half of a core."""
    return Flight(messages=1000, seconds=1000 / rate, p50=p50, p99=2 * p50, busy=0.5, servers=costs)


def test_a_price_is_what_the_gateway_adds_in_the_same_round() -> None:
    rounds = {
        (REST, DIRECT, 100.0): [flight(100, 0.001, store=1e-4), flight(100, 0.005, store=1e-4)],
        (REST, GATEWAY, 100.0): [
            flight(100, 0.002, store=1e-4, gateway=3e-4),
            flight(100, 0.006, store=1e-4, gateway=3e-4),
        ],
    }

    [price] = sidecar.report({}, rounds).prices

    assert price.added == (pytest.approx(0.001), pytest.approx(0.002))
    assert price.processor == 3e-4
    assert price.is_carried


def test_a_rate_that_one_way_doesnt_reach_is_not_carried() -> None:
    rounds = {
        (REST, DIRECT, 5000.0): [flight(5000, 0.001, store=1e-4)],
        (REST, GATEWAY, 5000.0): [flight(4000, 0.002, store=1e-4, gateway=3e-4)],
    }

    [price] = sidecar.report({}, rounds).prices

    assert not price.is_carried


@pytest.mark.parametrize(
    ("rate", "reached"), [(2200, False), (2300, True), (4200, True), (4300, False)]
)
def test_a_model_is_held_against_the_measured_rate(rate: float, reached: bool) -> None:
    costs = {"store": 2e-4, "gateway": 2e-4}  # and the client's half of a core
    rounds = {(REST, GATEWAY, FULL_SPEED): [flight(rate, math.nan, **costs)]}

    found = sidecar.report({}, rounds)

    [limit], [target] = found.limits, found.targets
    assert limit.predicted == pytest.approx(2 / (4e-4 + 0.5 / rate))
    assert target.reached == reached


def test_a_process_carries_no_more_than_its_core() -> None:
    assert sidecar.most({"store": 1e-3, "gateway": 1e-4}, 2) == 1000


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_each_protocol_is_measured_and_no_message_is_missing(
    protocol: str, tmp_path: Path
) -> None:
    found = await sidecar.measure(tmp_path, [protocol], [20], rounds=1, seconds=0.2)

    assert [(each.protocol, each.rate) for each in found.prices] == [(protocol, 20)]
    assert {(each.protocol, each.way) for each in found.limits} == {
        (protocol, DIRECT),
        (protocol, GATEWAY),
    }
