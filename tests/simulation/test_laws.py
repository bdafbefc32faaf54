"""The laws of the simulation take the right runs for broken, and no others."""

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Outcome, Unreachable
from gateway.domain.events.gateway import EntityStateChanged
from tests.harness.faults import Call, Operation
from tests.simulation.clocks import Clocks
from tests.simulation.laws import Laws
from tests.simulation.scenario import ClockStep, Front, Window
from tests.simulation.seeds import draw

ORDERS = EntityPath("orders")


def watching():
    """Laws of a run in which an entity that fails for 5 s must fail over, and that can be seen."""
    pair = attrs.evolve(draw(0).pair, failover_interval=5.0)
    scenario = attrs.evolve(draw(0), pair=pair, syphons=1, windows=(), clients_deadline=None)
    return Laws(scenario, Clocks(lambda *_: None))


async def fail(laws, at, took):
    await trio.sleep_until(at)
    call = Call(operation=Operation.SEND, entity=ORDERS, outcome=Outcome.UNKNOWN, took=took)
    laws.note_call("gateway", "primary", call)


def fail_over(laws):
    over = EntityStateChanged(entity=ORDERS, before="suspect", after="secondary", reason="")
    laws.note_event(over)


async def test_an_entity_that_fails_for_its_interval_fails_over(autojump_clock):
    laws = watching()
    for at in (4.0, 8.0, 12.0):
        await fail(laws, at, took=3.0)

    assert laws.broken == []
    await fail(laws, 16.0, took=3.0)
    assert laws.broken == ["orders failed for its interval and stays"]


async def test_an_attempt_that_may_not_count_closes_no_gap(autojump_clock):
    laws = watching()
    await fail(laws, 4.0, took=3.0)
    await fail(laws, 9.0, took=0.75)  # with so little time left it says nothing
    for at in (16.0, 20.0):
        await fail(laws, at, took=4.0)

    assert laws.broken == []


@pytest.mark.parametrize(("cut_off_at", "broken"), [(9.75, 0), (9.65, 1)])
async def test_an_attempt_that_may_not_count_may_begin_a_streak(cut_off_at, broken, autojump_clock):
    laws = watching()
    await fail(laws, 4.0, took=3.0)
    await fail(laws, cut_off_at, took=0.75)  # 5 s after the failure, or just less
    await fail(laws, 10.5, took=3.0)  # it began before the other, and ends after it
    await fail(laws, 12.0, took=1.5)

    assert len(laws.broken) == broken


@pytest.mark.parametrize(("probed_at", "broken"), [(9.1, 0), (8.9, 1)])
async def test_a_probe_that_fails_after_a_silence_may_begin_a_streak(
    probed_at, broken, autojump_clock
):
    laws = watching()
    laws.note_event(EntityStateChanged(entity=ORDERS, before="primary", after="suspect", reason=""))
    await fail(laws, 4.0, took=1.0)
    await trio.sleep_until(probed_at)
    probed = Call(operation=Operation.PROBE, entity=EntityPath("audit/log"), took=0.0)
    laws.note_call("gateway", "primary", attrs.evolve(probed, outcome=Outcome.UNKNOWN))
    await fail(laws, 10.5, took=6.0)  # it began before the probe, and ends after it
    await fail(laws, 12.0, took=1.5)

    assert len([one for one in laws.broken if "and stays" in one]) == broken


@pytest.mark.parametrize(("began", "broken"), [(9.05, []), (9.2, ["after 0.000 s"])])
async def test_one_failure_before_a_silence_and_one_after_it_are_no_outage(
    began, broken, autojump_clock
):
    laws = watching()
    await fail(laws, 4.0, took=3.0)
    await fail(laws, began + 3.0, took=3.0)
    fail_over(laws)
    laws.note_all_ended()

    assert [one.split("over ")[-1] for one in laws.broken if "failed over" in one] == broken


@pytest.mark.parametrize(("cut_off_after", "broken"), [(0.6, 0), (1.5, 1)])
async def test_an_attempt_cut_off_soon_ends_no_row_of_probes(cut_off_after, broken, autojump_clock):
    laws = watching()
    pair = attrs.evolve(laws.scenario.pair, successes_to_return=2, slow_call_duration=None)
    laws.scenario = attrs.evolve(laws.scenario, pair=pair)
    suspect = EntityStateChanged(entity=ORDERS, before="primary", after="suspect", reason="")
    laws.note_event(suspect)
    probed = Call(operation=Operation.PROBE, entity=ORDERS, outcome=None, took=0.1)
    laws.note_call("gateway", "primary", probed)
    await fail(laws, 4.0, took=cut_off_after)
    laws.note_call("gateway", "primary", probed)

    reason = "a probe was answered"
    back = EntityStateChanged(entity=ORDERS, before="suspect", after="primary", reason=reason)
    laws.note_event(back)

    assert len([one for one in laws.broken if "came back after" in one]) == broken


@pytest.mark.parametrize(("late", "broken"), [(Operation.SEND, 0), (Operation.PROBE, 1)])
async def test_a_send_accepted_late_may_end_no_row_of_probes(late, broken, autojump_clock):
    laws = watching()
    pair = attrs.evolve(laws.scenario.pair, successes_to_return=2, slow_call_duration=2.0)
    laws.scenario = attrs.evolve(laws.scenario, pair=attrs.evolve(pair, slow_call_rate=0.5))
    laws.note_event(EntityStateChanged(entity=ORDERS, before="primary", after="suspect", reason=""))
    await trio.sleep(10.0)
    probed = Call(operation=Operation.PROBE, entity=ORDERS)
    for call in (probed, Call(operation=late, entity=ORDERS, took=3.0), probed):
        laws.note_call("gateway", "primary", call)

    reason = "a probe was answered"
    back = EntityStateChanged(entity=ORDERS, before="suspect", after="primary", reason=reason)
    laws.note_event(back)

    assert len([one for one in laws.broken if "came back after" in one]) == broken


@pytest.mark.parametrize(("front", "broken"), [(None, 1), (Front.AMQP, 0)])
async def test_a_probe_that_a_client_may_have_asked_for_ends_no_row_of_probes(
    front, broken, autojump_clock
):
    laws = watching()
    pair = attrs.evolve(laws.scenario.pair, successes_to_return=2)
    parts = attrs.evolve(laws.scenario.parts, front=front)
    laws.scenario = attrs.evolve(laws.scenario, pair=pair, parts=parts)
    laws.note_event(EntityStateChanged(entity=ORDERS, before="primary", after="suspect", reason=""))
    probed = Call(operation=Operation.PROBE, entity=ORDERS)
    for call in (probed, refused(Operation.PROBE, "orders"), probed):
        laws.note_call("gateway", "primary", call)

    reason = "a probe was answered"
    back = EntityStateChanged(entity=ORDERS, before="suspect", after="primary", reason=reason)
    laws.note_event(back)

    assert len([one for one in laws.broken if "came back after" in one]) == broken


def refused(operation, entity):
    return Call(
        operation=operation,
        entity=EntityPath(entity),
        outcome=Outcome.NOT_SENT,
        error=Unreachable("connection refused"),
    )


@pytest.mark.parametrize(
    ("asked", "front", "broken"),
    [
        (Operation.SEND, None, 1),
        (Operation.SEND, Front.AMQP, 1),
        (Operation.PROBE, None, 1),
        (Operation.PROBE, Front.AMQP, 0),  # it may be that of a link that attaches
    ],
)
async def test_a_lost_namespace_is_known_from_all_but_what_a_client_may_have_asked(
    asked, front, broken, autojump_clock
):
    laws = watching()
    outage = Window(
        namespace="primary",
        kind="refuse",
        start=0.0,
        end=10.0,
        entities=None,
        operations=frozenset(Operation),
        share=1.0,
    )
    parts = attrs.evolve(laws.scenario.parts, front=front)
    laws.scenario = attrs.evolve(
        laws.scenario, parts=parts, windows=(outage,), crashes=(), disk_faults=()
    )
    laws.note_call("gateway", "primary", refused(asked, "orders"))
    await trio.sleep(1.0)

    laws.note_call("gateway", "primary", refused(Operation.SEND, "invoices"))

    assert len([one for one in laws.broken if "can't be reached" in one]) == broken


def test_a_message_left_on_the_primary_is_stuck_there_unless_its_date_is_hours_away():
    laws = watching()
    laws.note_left(0)
    assert laws.broken == []

    laws.note_left(2)
    assert laws.broken == ["the primary still has 2 messages, and doesn't give them"]

    step = ClockStep(process="client", ahead=7200.0, drift=0.0, at=50.0, back=60.0)
    with_clocks = Laws(attrs.evolve(laws.scenario, clock_steps=(step,)), laws.clocks)
    with_clocks.note_left(2)
    assert with_clocks.broken == []
