"""The benchmark of the gateway before Service Bus reports its measurements, and its ways work."""

from pathlib import Path

import pytest

from benchmarks import service_bus
from benchmarks.amqp import Effort
from benchmarks.amqp_figures import Flight, Pair
from benchmarks.service_bus import (
    BUILDS,
    DIRECT,
    DIVERTED,
    GATEWAY,
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
    maven = str(tmp_path / "mvn")
    assert service_bus.build_java_client(maven, java="sh") == f"{maven} isn't installed"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo; echo '[ERROR] no repository'; echo '[ERROR] -e shows more'; exit 1", "no repo"),
        ("exit 3", "Maven ended with 3"),
    ],
)
def test_a_client_that_can_not_be_built_is_named_with_the_reason(
    tmp_path: Path, script: str, reason: str
) -> None:
    """Maven can't reach the registry, for example."""
    maven = tmp_path / "mvn"
    maven.write_text(f"#!/bin/sh\n{script}\n")
    maven.chmod(0o700)

    found = service_bus.build_java_client(str(maven), java=str(maven))

    assert reason in found
    assert "\n" not in found


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

    left_out = tuple(name for name in BUILDS if name in found.facts)
    ways = [way for way in OTHER_WAYS if not way.startswith(left_out)]
    assert {(cell.way, cell.window) for cell in found.cells} == {(way, JUDGED) for way in ways}
    assert all(cell.rate > 0 for cell in found.cells)
