"""The AMQP benchmark reports its measurements, and its clients' figures are right."""

import math
import os
import sys
from pathlib import Path

import pytest

from benchmarks import amqp
from benchmarks.amqp_figures import IN_PROCESS, PROTON, RABBITMQ, SDK, Flight, Pair, report
from benchmarks.amqp_idle import RECEIVERS, idle_memory
from benchmarks.stopwatch import Stopwatch


def flight(rate: float, p50: float = 0.001) -> Flight:
    return Flight(
        messages=int(rate), seconds=1.0, p50=p50, p99=1.0, busy=0.5, servers={"broker": 1e-4}
    )


def pair(send: float, receive: float = 100, p50: float = 0.001) -> Pair:
    return Pair(send=flight(send, p50), receive=flight(receive))


def test_only_measurements_of_one_round_are_compared() -> None:
    # The machine was ten times as slow in the second round.
    rounds = {
        (PROTON, 100): [pair(3000, 600), pair(300, 60), pair(3000, 600)],
        (RABBITMQ, 100): [pair(1500, 800), pair(150, 80), pair(1000, 800)],
    }

    found = report({}, rounds, [])

    [ratio] = found.ratios
    assert (ratio.window, ratio.send, ratio.receive) == (100, 2.0, 0.75)
    [target] = found.targets
    assert not target.reached
    assert target.found == "2.00 times in sends, 0.75 in receives"


def test_the_cost_of_amqp_is_judged_with_one_message_in_flight() -> None:
    rounds = {
        (PROTON, 1): [pair(1, p50=0.0019), pair(1, p50=0.0030), pair(1, p50=0.0019)],
        (IN_PROCESS, 1): [pair(1, p50=0.001), pair(1, p50=0.0025), pair(1, p50=0.0015)],
        (PROTON, 1000): [pair(1, p50=1.0)] * 3,
        (IN_PROCESS, 1000): [pair(1, p50=0.1)] * 3,
    }

    [target] = report({}, rounds, []).targets

    assert target.reached
    assert target.found == "0.50 ms"


def test_a_stopwatch_counts_messages_and_sorts_latencies() -> None:
    watch = Stopwatch({"broker": os.getpid()})
    for latency in (0.3, 0.1, 0.2):
        watch.add(latency, messages=10)

    found = watch.read()

    assert (found["messages"], found["p50"], found["p99"]) == (30, 0.2, 0.3)
    assert found["servers"]["broker"] >= 0


@pytest.mark.slow
async def test_each_client_sends_and_receives_through_a_gateway(tmp_path: Path) -> None:
    effort = amqp.Effort(rounds=1, seconds=0.05, idle=0, warm_up=0)

    found = await amqp.measure(tmp_path, [PROTON, SDK, IN_PROCESS], [2], effort)

    assert {cell.way for cell in found.cells} == {PROTON, SDK, IN_PROCESS}
    assert all(cell.rate > 0 for cell in found.cells)
    assert all(cell.p50 > 0 or math.isnan(cell.p50) for cell in found.cells)


async def test_a_client_that_fails_says_why(tmp_path: Path) -> None:
    job = amqp.Job(1, {"broker": os.getpid()}, "user", "password", "nowhere", confirms=True)

    with pytest.raises(amqp.ClientFailed, match="refused"):
        await amqp.client(job, sys.executable, "benchmarks.amqp_proton")(1, 0.1)


@pytest.mark.slow
async def test_idle_connections_are_open_before_memory_is_read(tmp_path: Path) -> None:
    idle = await idle_memory(tmp_path, RECEIVERS, 40, settle=0.1)

    assert (idle.kind, idle.connections) == (RECEIVERS, 40)
    assert idle.each > 1024  # a connection that wasn't accepted yet would cost next to nothing
