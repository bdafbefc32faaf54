"""The benchmarks of RabbitMQ report their measurements, and their parts work."""

from pathlib import Path

import attrs
import pytest

from benchmarks import namespaces, rabbitmq_wire, syphon
from benchmarks.amqp import Effort
from benchmarks.amqp_figures import Flight, Pair
from benchmarks.namespaces import ADAPTER, DIRECT, GATEWAY, PIKA
from benchmarks.rabbitmq_wire import THROUGH
from benchmarks.syphon import PRIMARY, SECONDARY, SHOVEL, SYPHON, Turn


def flight(rate: float) -> Flight:
    servers = {"RabbitMQ": 1e-4}
    return Flight(messages=int(rate), seconds=1.0, p50=0.001, p99=1.0, busy=0.5, servers=servers)


def pair(send: float, receive: float | None = None) -> Pair:
    return Pair(send=flight(send), receive=flight(receive or send))


def test_a_gateway_is_judged_by_sends_and_receives() -> None:
    rounds = {
        (DIRECT, 1): [pair(1000)] * 3,
        (GATEWAY, 1): [pair(990, receive=800)] * 3,
        (DIRECT, 100): [pair(1000), pair(100), pair(1000)],  # the machine was busy in the second
        (GATEWAY, 100): [pair(950), pair(95), pair(950)],
    }

    found = namespaces.report({}, rounds)

    assert [(each.found, each.reached) for each in found.targets] == [
        ("0.99 and 0.80", False),
        ("0.95 and 0.95", True),
    ]


def test_an_adapter_is_judged_by_sends_alone() -> None:
    rounds = {(PIKA, 1): [pair(1000)], (ADAPTER, 1): [pair(950, receive=500)]}

    [target] = namespaces.report({}, rounds).targets

    assert target.reached


def test_two_protocols_are_compared_and_not_judged() -> None:
    found = namespaces.report({}, {(PIKA, 100): [pair(1000)], (GATEWAY, 100): [pair(100)]})

    assert [(each.ours, each.theirs) for each in found.comparisons] == [(GATEWAY, PIKA)]
    assert not found.targets


def test_only_turns_of_one_round_are_compared() -> None:
    rates = [(5000, 4000), (300, 600), (3000, 3000)]
    turns = [{SYPHON: Turn(rate=ours), SHOVEL: Turn(rate=theirs)} for ours, theirs in rates]

    found = syphon.report({}, 100, turns)

    assert found.ratio == 1.0
    assert found.targets[0].reached


def test_the_syphons_own_processor_time_is_judged() -> None:
    turns = [
        {SYPHON: Turn(rate=1, costs={SYPHON: cost, PRIMARY: 90}), SHOVEL: Turn(rate=1)}
        for cost in (70, 30, 50)
    ]

    found = syphon.report({}, 100, turns)

    assert found.ways[SYPHON].costs == {SYPHON: 50, PRIMARY: 90}
    assert not found.targets[1].reached


def test_the_wire_is_judged_by_rates_and_costs_where_many_are_in_flight() -> None:
    servers = {"gateway": 7e-5, "RabbitMQ": 1e-4}
    costly = attrs.evolve(flight(850), servers=servers)
    through = Pair(send=costly, receive=attrs.evolve(flight(950), servers=servers))
    rounds = {
        (way, n): [each] for n in (1, 100) for way, each in ((PIKA, pair(1000)), (THROUGH, through))
    }

    found = rabbitmq_wire.report({}, rounds)

    assert [(each.found, each.reached) for each in found.targets] == [
        ("0.85 and 0.95", True),
        ("70 us", False),
        ("70 us", False),
    ]
    assert [each.window for each in found.ratios] == [1, 100]


@pytest.mark.live
@pytest.mark.slow
async def test_a_client_sends_and_receives_through_the_wire(tmp_path: Path) -> None:
    effort = Effort(rounds=1, seconds=0.05, idle=0, warm_up=0)

    found = await rabbitmq_wire.measure(tmp_path, [2], effort)

    assert {cell.way for cell in found.cells} == {PIKA, THROUGH}


@pytest.mark.live
@pytest.mark.slow
async def test_each_way_to_rabbitmq_sends_and_receives(tmp_path: Path) -> None:
    effort = Effort(rounds=1, seconds=0.05, idle=0, warm_up=0)

    found = await namespaces.measure(tmp_path, [PIKA, ADAPTER, DIRECT, GATEWAY], [2], effort)

    assert {cell.way for cell in found.cells} == {PIKA, ADAPTER, DIRECT, GATEWAY}
    assert all(cell.rate > 0 for cell in found.cells)


@pytest.mark.live
@pytest.mark.slow
async def test_syphon_and_shovel_both_move_a_whole_backlog(tmp_path: Path) -> None:
    found = await syphon.measure(tmp_path, messages=3000, rounds=1, batch=None)

    assert found.ways[SYPHON].rate > 0
    assert found.ways[SHOVEL].costs.keys() == {PRIMARY, SECONDARY}
