"""The recorder of the simulation recognizes the causes of one more copy."""

import attrs
import pytest
import trio

from gateway.checker.history import Attempted, End, Unconfirmed
from gateway.checker.operations import Uncertain
from gateway.checker.verdict import Violation
from gateway.domain.copies import TRANSITIONS, CopyEvent, CopyState
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Outcome, OutcomeUnknown
from gateway.domain.message import Complete, DeadLetter, Message
from tests.harness.faults import Call, Operation
from tests.simulation.names import Names
from tests.simulation.recorder import Recorder
from tests.simulation.scenario import Front
from tests.simulation.seeds import draw
from tests.simulation.world import run_world

QUEUE = EntityPath("east/x-servicebus-transfer/0")
MESSAGES = (Message(message_id="1"),)
SENT = Call(operation=Operation.SEND, entity=EntityPath("orders"), messages=MESSAGES)
COMPLETED = Call(
    operation=Operation.SETTLE, entity=QUEUE, messages=MESSAGES, settlement=Complete(), copy="7"
)
REFUSED = Call(
    operation=Operation.SETTLE,
    entity=QUEUE,
    messages=MESSAGES,
    settlement=Complete(),
    copy="7",
    outcome=Outcome.NOT_SENT,
)
PROBED = Call(operation=Operation.PROBE, entity=EntityPath("orders"))
LEFT = Call(operation=Operation.LEAVE, entity=QUEUE, messages=MESSAGES, outcome=Outcome.UNKNOWN)


@pytest.fixture
def recorder(autojump_clock):
    return Recorder(draw(1), [], Names())


def uncertain(recorder):
    return [one.message_id for one in recorder.records if isinstance(one, Uncertain)]


async def note(recorder, *calls, process="syphon-0"):
    for call in calls:
        namespace = "primary" if call.operation is Operation.SEND else "secondary"
        recorder.note_call(process, namespace, call)


@pytest.mark.parametrize("process", ["syphon-0", "syphon in gateway"])
async def test_a_message_that_a_killed_syphon_had_transferred_may_come_again(process, recorder):
    await note(recorder, SENT, REFUSED, process=process)
    recorder.note_revival("gateway" if "gateway" in process else process)

    assert uncertain(recorder) == ["1"]


async def test_a_syphon_that_lives_on_remembers_what_it_has_transferred(recorder):
    await note(recorder, SENT, REFUSED, LEFT)

    assert uncertain(recorder) == []


@pytest.mark.parametrize("calls", [[LEFT], [SENT, COMPLETED], [REFUSED, LEFT]])
async def test_a_message_that_was_never_transferred_or_is_completed_does_not_come_again(
    calls, recorder
):
    await note(recorder, *calls)
    recorder.note_revival("syphon-0")

    assert uncertain(recorder) == []


async def test_a_life_forgets_what_the_one_before_it_had_in_hand(recorder):
    await note(recorder, SENT)
    recorder.note_revival("syphon-0")
    recorder.note_revival("syphon-0")

    assert uncertain(recorder) == ["1"]


async def test_one_process_knows_nothing_of_another(recorder):
    await note(recorder, SENT)
    recorder.note_revival("gateway")

    assert uncertain(recorder) == []


async def test_a_message_that_a_living_syphon_could_not_complete_may_be_moved_by_another(recorder):
    await note(recorder, SENT, REFUSED, process="syphon-0")
    await note(recorder, SENT, COMPLETED, process="syphon-1")
    assert uncertain(recorder) == ["1"]

    recorder.note_revival("syphon-0")
    assert uncertain(recorder) == ["1"]


@pytest.mark.slow
async def test_a_send_that_was_under_way_when_another_syphon_completed_is_one_more_copy(recorder):
    await note(recorder, SENT, COMPLETED, process="syphon-0")
    await trio.sleep(2.0)
    await note(recorder, attrs.evolve(SENT, took=1.0), process="syphon-1")
    assert uncertain(recorder) == []

    await note(recorder, attrs.evolve(SENT, took=3.0), process="syphon-1")
    assert uncertain(recorder) == ["1"]


@pytest.mark.parametrize(
    ("call", "cut_off"),
    [
        (attrs.evolve(REFUSED, outcome=Outcome.UNKNOWN), ["1"]),
        (attrs.evolve(REFUSED, outcome=Outcome.UNKNOWN, error=OutcomeUnknown("lost")), []),
        (attrs.evolve(REFUSED, outcome=Outcome.UNKNOWN, settlement=DeadLetter(reason="late")), []),
        (REFUSED, []),
        (COMPLETED, []),
        (attrs.evolve(SENT, outcome=Outcome.UNKNOWN), []),
    ],
    ids=["cut off", "its answer is lost", "dead_lettered", "refused", "completed", "a send"],
)
async def test_a_completion_that_nobody_awaited_any_more_is_unconfirmed(call, cut_off, recorder):
    await note(recorder, call)

    found = [one for one in recorder.records if isinstance(one, Unconfirmed)]
    assert [one.message_id for one in found] == cut_off


@pytest.mark.parametrize(
    ("front", "end"), [(None, End.UNKNOWN), (Front.REST, End.UNKNOWN), (Front.AMQP, End.CUT_OFF)]
)
async def test_a_probe_that_a_client_may_have_asked_for_may_count_or_not(front, end, recorder):
    parts = attrs.evolve(recorder.scenario.parts, front=front)
    recorder.scenario = attrs.evolve(recorder.scenario, parts=parts)
    lost = attrs.evolve(PROBED, outcome=Outcome.UNKNOWN, error=OutcomeUnknown("lost"))

    for call in (PROBED, lost):
        recorder.note_call("gateway", "primary", call)

    assert [one.end for one in recorder.records if isinstance(one, Attempted)] == [
        End.ACCEPTED,
        end,
    ]


def test_a_syphon_that_forgets_what_it_has_transferred_is_caught(monkeypatch):
    monkeypatch.setitem(TRANSITIONS[CopyState.SENDING], CopyEvent.ACCEPTED, CopyState.NEW)
    outcomes = run_world(2051, load=2)

    assert Violation.DUPLICATED in outcomes.verdict.broken()
