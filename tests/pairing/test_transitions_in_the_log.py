"""The log has each change of an entity's state in one line, with its reason."""

import json
from itertools import pairwise
from typing import Any

import trio

from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import State
from gateway.telemetry.log import LogObserver
from tests.harness.faults import Operation, Refuse
from tests.pairing.harness import ORDERS, message, outcome_of, reaches, send, virtual_time

pytestmark = virtual_time


def lines_of(harness) -> list[dict[str, Any]]:
    """The lines that a log of the level info has of all events."""
    lines: list[str] = []
    log = LogObserver(lines.append, as_json=True, level="info", clock=harness.clock)
    for event in harness.events.all:
        log.report(event)
    log.close()
    return [json.loads(line) for line in lines]


async def test_an_outage_a_return_and_an_order_are_a_line_for_each_transition(harness):
    pair = await harness.pair(failover_interval=5.0)
    for times in range(3):  # the third outage in a row is told as the first one
        harness.primary.fail(Refuse())
        await send(pair, message(f"before {times}"))()
        await trio.sleep(6.0)
        await send(pair, message(f"after {times}"))()
        await reaches(pair.states, State.SECONDARY)
        harness.primary.heal()
        with trio.fail_after(600):
            while pair.states.state_of(ORDERS) is not State.PRIMARY:
                await trio.sleep(1.0)
                await send(pair)()
    pair.states.force_over(ORDERS, "works at the primary")
    pair.states.force_back(ORDERS, "the works are done")

    changes = harness.events.of(EntityStateChanged)
    told = [line for line in lines_of(harness) if line["event"] == "entity_state_changed"]

    assert [(line["before"], line["after"]) for line in told] == [
        (change.before, change.after) for change in changes
    ]
    assert all(line["entity"] == "orders" and line["reason"] for line in told)
    assert not any("repeated" in line for line in told)
    assert [line["after"] for line in told].count("secondary") >= 3
    assert all(one["after"] == following["before"] for one, following in pairwise(told))
    assert [line["reason"] for line in told[-2:]] == ["works at the primary", "the works are done"]


async def test_a_send_that_fails_again_and_again_for_the_same_reason_is_counted(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), Operation.SEND)
    harness.secondary.fail(Refuse(), Operation.SEND)
    for number in range(50):
        await outcome_of(send(pair, message(str(number))))

    told = [line for line in lines_of(harness) if line["event"] == "send_failed"]
    reasons = {line["reason"] for line in told}

    assert sum(line.get("repeated", 1) for line in told) == 50
    assert len(told) <= 2 * len(reasons) < 10
