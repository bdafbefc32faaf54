"""The benchmark of the gateway before Service Bus reports its measurements, and its ways work."""

from pathlib import Path

import pytest

from benchmarks import service_bus
from benchmarks.amqp import Effort
from benchmarks.amqp_figures import Flight, Pair
from benchmarks.service_bus import (
    DIRECT,
    DIVERTED,
    GATEWAY,
    GO_SDK,
    JUDGED,
    OTHER_WAYS,
    PROCESS,
    PROCESSOR,
)


def pair(rate: float, cost: float) -> Pair:
    flight = Flight(
        messages=1000, seconds=1000 / rate, p50=0.001, p99=1.0, busy=0.5, servers={PROCESS: cost}
    )
    return Pair(send=flight, receive=flight)


def test_the_gateways_processor_time_for_a_message_is_judged() -> None:
    rounds = {
        (DIRECT, 100): [pair(1000, 0.0)] * 3,
        (GATEWAY, 100): [pair(500, 70e-6), pair(900, 70e-6), pair(800, 70e-6)],
        (GATEWAY, 1): [pair(500, 1.0)],  # wake-ups count there
    }

    found = service_bus.report({}, rounds)

    assert [(each.found, each.reached) for each in found.targets] == [
        ("70 us", False),
        ("70 us", True),
    ]
    assert [each.ratio.send for each in found.comparisons] == [0.8]


def test_a_client_whose_toolchain_is_missing_is_named(tmp_path: Path) -> None:
    assert service_bus.build_go_client(str(tmp_path / "go")) == "Go isn't installed"


@pytest.mark.live
@pytest.mark.slow
async def test_messages_are_passed_on_and_diverted_and_all_come_back(tmp_path: Path) -> None:
    effort = Effort(rounds=1, seconds=0.05, idle=0, warm_up=0)

    ways = [DIRECT, GATEWAY, DIVERTED, PROCESSOR]
    found = await service_bus.measure(tmp_path, ways, [2], effort)

    assert {cell.way for cell in found.cells} == {*ways}
    assert all(cell.rate > 0 for cell in found.cells)


@pytest.mark.live
@pytest.mark.slow
async def test_other_clients_are_measured_with_a_hundred_messages_in_flight(tmp_path: Path) -> None:
    effort = Effort(rounds=1, seconds=0.05, idle=0, warm_up=0)

    found = await service_bus.measure(tmp_path, OTHER_WAYS, [2, JUDGED], effort)

    ways = [way for way in OTHER_WAYS if GO_SDK not in found.facts or GO_SDK not in way]
    assert {(cell.way, cell.window) for cell in found.cells} == {(way, JUDGED) for way in ways}
    assert all(cell.rate > 0 for cell in found.cells)
