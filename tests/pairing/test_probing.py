"""An operator asks for a probe of troubled entities: it happens now, and counts."""

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    InvalidRequest,
    NotSupported,
    Unavailable,
    Unreachable,
)
from gateway.domain.events.control import ControlCalled
from gateway.domain.failover import State
from gateway.domain.operators.control import Action, Operator, Order
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder, ProbeResult
from gateway.pairing.control import Control
from gateway.pairing.pair import Pair
from gateway.pairing.prober import AT_ONCE
from gateway.pairing.syphon.pauses import Pauses
from tests.harness.faults import Hang, Operation
from tests.pairing.harness import BILLS, ORDERS, Harness, Slow, control_of, refuse, virtual_time

pytestmark = virtual_time

ANN = Operator(name="ann", peer="127.0.0.1:5000")
PROBE = Operation.PROBE


def fail(pair: Pair, *entities: EntityPath) -> None:
    for entity in entities:
        pair.states.failed(pair.states.begin(entity), Unavailable("out"))


async def failed_over(
    harness: Harness,
    *entities: EntityPath,
    error: tuple[type[BrokerError], str] = (EntityDisabled, "it is disabled"),
    **options: Any,
) -> tuple[Pair, Control]:
    """A pair whose entities have failed over so long ago that their probes are seldom."""
    harness.primary.fail(refuse(*error), PROBE)
    chosen = {"ping_interval": 600.0, "failover_interval": 0.0, **options}
    pair = await harness.pair(**chosen)
    fail(pair, *entities)
    await trio.sleep(2000.0)
    assert all(pair.states.state_of(each) is State.SECONDARY for each in entities)
    harness.primary.asked.clear()
    return pair, control_of(harness, pair)


async def probe(control: Control, *targets: str) -> ProbeAnswer:
    return await control.probe(ProbeOrder(targets=targets, reason="it is mended"), ANN)


async def test_a_mended_entity_returns_when_an_operator_asks(harness: Harness) -> None:
    pair, control = await failed_over(harness, ORDERS)
    harness.primary.heal()
    due, asked = pair.prober.next_probe(ORDERS), trio.current_time()

    answer = await probe(control, "orders")

    assert due is not None
    assert due > 10.0
    assert harness.primary.times(PROBE) == [asked]
    assert (answer.before, answer.after) == ({"orders": "secondary"}, {"orders": "half-open"})
    assert answer.probes == {"orders": ProbeResult(answered=True, seconds=0.0)}
    await trio.sleep(5.0)  # the schedule goes on at once, as after any answer
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_a_failed_probe_tells_why_and_changes_nothing(harness: Harness) -> None:
    _, control = await failed_over(harness, ORDERS)

    answer = await probe(control, "orders")

    assert answer.before == answer.after == {"orders": "secondary"}
    assert not answer.probes["orders"].answered
    assert "it is disabled" in answer.probes["orders"].text


async def test_a_lost_namespace_is_found_by_one_answer(harness: Harness) -> None:
    pair, control = await failed_over(
        harness, ORDERS, BILLS, error=(Unreachable, "refused"), attempt_timeout=10.0
    )
    assert pair.states.evidence.namespace.is_lost
    harness.primary.heal()

    answer = await probe(control, "orders")
    await trio.sleep(5.0)

    assert answer.after == {"orders": "half-open"}
    assert pair.states.state_of(BILLS) is State.PRIMARY


async def test_each_order_is_an_event_with_its_operator(harness: Harness) -> None:
    _, control = await failed_over(harness, ORDERS)

    await probe(control, "orders")

    [called] = harness.events.of(ControlCalled)
    assert (called.action, called.target, called.operator, called.reason, called.changed) == (
        "probe",
        "orders",
        "ann",
        "it is mended",
        True,
    )


async def test_two_orders_at_once_are_one_probe_with_one_result(harness: Harness) -> None:
    _, control = await failed_over(harness, ORDERS, attempt_timeout=5.0)
    harness.primary.heal()
    harness.primary.fail(Hang(), PROBE)
    answers: list[ProbeAnswer] = []

    async def ask() -> None:
        answers.append(await probe(control, "orders"))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()

    assert len(harness.primary.times(PROBE)) == 1
    assert [each.changed for each in harness.events.of(ControlCalled)] == [True, False]
    assert answers[0].probes == answers[1].probes
    assert answers[0].probes["orders"].seconds == 5.0
    assert "no answer" in answers[0].probes["orders"].text


async def test_if_the_first_who_asked_leaves_the_other_still_has_a_result(
    harness: Harness,
) -> None:
    _, control = await failed_over(harness, ORDERS)
    harness.primary.heal()
    harness.primary.fail(Hang(), PROBE, times=1)
    answers: list[ProbeAnswer] = []

    async def ask() -> None:
        answers.append(await probe(control, "orders"))

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:
            async with trio.open_nursery() as leaving:
                leaving.start_soon(partial(probe, control, "orders"))
                await wait_all_tasks_blocked()
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                first.cancel()

    [answer] = answers
    assert answer.probes["orders"].answered


async def test_of_many_entities_those_in_trouble_the_longest_are_probed(harness: Harness) -> None:
    names = [EntityPath(f"tenant-{number:02}") for number in range(AT_ONCE + 4)]
    for name in names:
        await harness.primary.store.create_queue(name, QueueProperties())
    pair, control = await failed_over(harness, *names[4:])
    fail(pair, *names[:4])

    answer = await probe(control, "tenant-*")

    assert list(answer.probes) == [each.name for each in names[4:]]
    assert answer.more == 4


async def test_where_nothing_has_failed_a_probe_is_refused(harness: Harness) -> None:
    pair = await harness.pair()
    control = control_of(harness, pair)

    with pytest.raises(InvalidRequest, match="nothing to probe: no entity that has failed"):
        await probe(control, "orders")

    assert harness.events.of(ControlCalled) == []
    assert harness.primary.times(PROBE) == []


async def test_a_pinned_entity_is_not_probed(harness: Harness) -> None:
    pair = await harness.pair()
    control = control_of(harness, pair)
    control.execute(Order(action=Action.FAILOVER, targets=("orders",)), ANN)

    with pytest.raises(InvalidRequest, match="an operator pinned orders, and only failback"):
        await probe(control, "orders")


async def test_a_process_without_a_pair_probes_nothing(harness: Harness) -> None:
    control = Control(clock=harness.clock, observer=harness.events, pauses=Pauses())

    with pytest.raises(NotSupported, match="no pair"):
        await probe(control, "*")


@pytest.mark.parametrize(
    ("seconds", "result"),
    [
        (0.12345, ProbeResult(answered=True, seconds=0.123)),
        (3.0, ProbeResult(answered=False, seconds=3.0, text="the answer took 3 s")),
    ],
)
async def test_a_probe_tells_how_long_its_answer_took_and_whether_that_was_too_long(
    harness: Harness, seconds: float, result: ProbeResult
) -> None:
    _, control = await failed_over(harness, ORDERS, slow_call_duration=2.0)
    harness.primary.heal()
    harness.primary.fail(Slow(seconds), PROBE)

    answer = await probe(control, "orders")

    assert answer.probes == {"orders": result}
