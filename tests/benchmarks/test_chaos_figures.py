"""The figures of a chaos run are made of the producers' records."""

import math

import pytest

from benchmarks.chaos.excuses import InDoubt, Unanswered, excuses
from benchmarks.chaos.figures import (
    healthy,
    lives_off,
    median_in_faults,
    most_failovers,
    per_second,
    quantile,
    recovery,
    service,
    waited_in_faults,
)
from benchmarks.chaos.recording import parted
from benchmarks.chaos.topologies import MOST_IN_FLIGHT, SYPHON_BATCH
from benchmarks.traffic import OpenLoop, Send
from gateway.checker.history import (
    Drained,
    EntityStateMoved,
    FaultBegan,
    FaultEnded,
    FaultTarget,
    Healed,
    Swallowed,
)
from gateway.checker.operations import Acked, AuditBegan, Delivered, Invoked, QueueRead, Uncertain
from gateway.domain.entity import EntityPath
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy


def send(due, *, after=0.1, accepted_by=AcceptedBy.PRIMARY, name="m"):
    answered = math.inf if accepted_by is None else due + after
    return Send(message_id=f"{name}-{due:g}", due=due, answered=answered, accepted_by=accepted_by)


STEADY = [send(float(second)) for second in range(20)]


def test_steady_answers_are_no_stall():
    served = service([STEADY], rate=1.0)

    assert (served.sent, served.acknowledged) == (20, 20)
    assert served.stall == pytest.approx(0.0, abs=1e-6)
    assert (served.p50, served.worst) == (pytest.approx(0.1), pytest.approx(0.1))


async def test_an_answer_may_leave_open_who_gave_it(autojump_clock):
    loop = OpenLoop("orders", EntityPath("orders"))

    async def answer(*_):
        loop.stopping = True  # the next one is on its way

    await loop.run_by(answer, rate=1.0)

    assert [each.answered < math.inf for each in loop.sends] == [True, True]
    assert {each.accepted_by for each in loop.sends} == {None}
    loop.note_acceptors({"orders-1"})
    named = [AcceptedBy.PRIMARY, AcceptedBy.BACKLOG]
    assert [each.accepted_by for each in loop.sends] == named
    assert [each.accepted_by for each in loop.records if isinstance(each, Acked)] == named


def test_a_life_is_off_by_the_worst_copy_either_way():
    sent = [
        Invoked(at=1.0, message_id=name, entity="orders", fingerprint="f", expires=100.0)
        for name in "ab"
    ]

    assert lives_off(sent, [("a", 98.0), ("a", 100.5), ("b", 103.0)]) == (2.0, 3.0)
    assert lives_off(sent, [("a", 101.0)]) == (0.0, 1.0)
    assert all(map(math.isnan, lives_off(sent, [])))


def test_one_entity_that_stands_still_is_a_stall_whatever_the_other_does():
    still = [one for one in STEADY if not 5.0 <= one.due < 10.0]

    served = service([STEADY, still], rate=1.0)

    assert served.stall == pytest.approx(5.0)


def test_an_answer_after_the_deadline_does_not_count():
    served = service([[*STEADY, send(20.0, after=13.0), send(21.0, accepted_by=None)]], rate=1.0)

    assert (served.sent, served.acknowledged) == (22, 20)
    assert served.worst == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("share", "found"), [(0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100), (0.0, 1)]
)
def test_a_quantile_is_a_value_that_was_measured(share, found):
    assert quantile(list(range(1, 101)), share) == found


def test_of_nothing_there_is_no_quantile():
    assert math.isnan(quantile([], 0.5))


def test_times_of_recovery_count_from_the_fault_and_from_the_healing():
    records = [
        FaultBegan(at=5.0, fault="1", kind="killed", target=FaultTarget.PRIMARY),
        FaultEnded(at=9.0, fault="1"),
        Healed(at=9.5, backlog=2),
        Drained(at=12.0),
        Delivered(at=11.0, message_id="m-6", entity="m", fingerprint="", copy="1"),
    ]
    diverted = [
        send(second, accepted_by=AcceptedBy.BACKLOG) for second in (6.0, 7.0, 8.0, 9.0, 10.0)
    ]
    late = [send(5.0, after=1.5, accepted_by=AcceptedBy.BACKLOG)]
    sends = [*STEADY[:5], *late, *diverted, *STEADY[11:]]

    found = recovery(records, [sends])

    assert found.failover == pytest.approx(1.1)
    assert found.good_again == pytest.approx(0.1, abs=0.11)
    assert found.failback == pytest.approx(1.6)
    assert found.drain == pytest.approx(2.5)
    assert found.drain_rate == pytest.approx(2 / 2.5)
    assert found.diverted == 6
    assert found.detour_worst == pytest.approx(5.0)


def test_an_answer_before_the_first_fault_is_healthy():
    sends = [send(4.0), send(4.5, after=1.0), send(5.0), send(4.8, accepted_by=None)]

    assert healthy(FAULT, [sends, STEADY]) == [[sends[0]], STEADY[:5]]
    assert healthy([], [STEADY]) == [STEADY]


def test_answers_are_counted_by_second_and_who_accepted():
    records = [
        Acked(at=10.2, message_id="1", accepted_by=AcceptedBy.PRIMARY),
        Acked(at=12.9, message_id="2", accepted_by=AcceptedBy.PRIMARY),
        Acked(at=12.9, message_id="3", accepted_by=AcceptedBy.BACKLOG),
    ]

    assert per_second(records, 10.0, 13.5, AcceptedBy.PRIMARY) == [(0, 1), (1, 0), (2, 1)]
    assert per_second(records, 10.0, 13.5, AcceptedBy.BACKLOG) == [(0, 0), (1, 0), (2, 1)]
    assert per_second(records, 10.0, 13.5, None) == [(0, 1), (1, 0), (2, 2)]


FAULT = [
    FaultBegan(at=5.0, fault="1", kind="killed", target=FaultTarget.PRIMARY),
    FaultEnded(at=6.0, fault="1"),
]


def test_a_send_that_met_a_fault_and_was_answered_excuses_nothing():
    assert excuses({"m": STEADY}, FAULT, Unanswered(), {}, over=20.0) == []


def test_a_send_without_an_answer_excuses_one_copy():
    sends = {"m": [send(1.0), send(2.0, accepted_by=None)]}

    assert excuses(sends, [], Unanswered(), {}, over=20.0) == [
        Swallowed(at=20.0, messages=1),
        Uncertain(at=20.0, message_id="m-2"),
    ]


def test_a_transfer_without_an_answer_excuses_a_chunk_of_what_was_diverted():
    sends = {
        "m": [send(1.0), send(2.0, accepted_by=AcceptedBy.BACKLOG)],
        "n": [send(1.0, accepted_by=AcceptedBy.BACKLOG)],
    }

    found = excuses(sends, [], Unanswered(transfers=[(3.0, "m")]), {}, over=20.0)

    assert found == [
        Swallowed(at=3.0, messages=SYPHON_BATCH),
        Uncertain(at=3.0, message_id="m-2"),
    ]


def test_a_line_of_a_gateway_excuses_as_many_copies_of_what_was_on_its_way():
    lines = Unanswered(sends=[InDoubt(7.05, "m", 1)])

    found = excuses({"m": STEADY, "n": STEADY}, [], lines, {}, over=20.0)

    assert found == [
        Swallowed(at=7.05, messages=1),
        Uncertain(at=7.05, message_id="m-6"),  # answered so late that the line is read after it
        Uncertain(at=7.05, message_id="m-7"),
    ]


def test_a_backlog_queue_without_an_answer_excuses_one_more_copy_of_what_was_on_its_way():
    found = excuses({"m": STEADY}, [], Unanswered(to_backlog=[7.05]), {}, over=20.0)

    assert found == [Swallowed(at=7.05, messages=1), Uncertain(at=7.05, message_id="m-7")]


def test_a_message_that_came_long_before_an_unanswered_transfer_excuses_nothing():
    sends = {
        "m": [send(1.0, accepted_by=AcceptedBy.BACKLOG), send(2.0, accepted_by=AcceptedBy.BACKLOG)]
    }
    held = [(30.0, "m"), (60.0, "m")]

    found = excuses(sends, [], Unanswered(transfers=held), {"m-1": 5.0, "m-2": 25.0}, over=90.0)

    # The second came with the first chunk, perhaps: then it may be in the other chunk as well.
    assert [one.message_id for one in found if isinstance(one, Uncertain)] == ["m-2", "m-2"]


def test_messages_that_a_syphon_held_when_the_secondary_failed_may_come_twice():
    fault = [
        FaultBegan(at=5.0, fault="1", kind="killed", target=FaultTarget.SECONDARY),
        FaultEnded(at=6.0, fault="1"),
    ]

    found = excuses(
        {"m": [send(2.0, accepted_by=AcceptedBy.BACKLOG)]}, fault, Unanswered(), {}, over=20.0
    )

    assert Swallowed(at=6.0, messages=MOST_IN_FLIGHT) in found
    assert Uncertain(at=6.0, message_id="m-2") in found


def test_the_baseline_is_audited_apart():
    queues = frozenset({"orders", "baseline", "baseline/$deadletterqueue"})
    found = [AuditBegan(at=1.0, queues=queues), *(QueueRead(at=2.0, queue=one) for one in queues)]

    mine, baseline = parted(found)

    assert mine == [
        AuditBegan(at=1.0, queues=frozenset({"orders"})),
        QueueRead(at=2.0, queue="orders"),
    ]
    assert {one.queue for one in baseline if isinstance(one, QueueRead)} == queues - {"orders"}


LATENESS = [
    FaultBegan(at=5.0, fault="1", kind="late", target=FaultTarget.PRIMARY),
    FaultEnded(at=15.0, fault="1"),
]


def test_the_median_is_of_what_was_due_in_a_fault_after_the_interval():
    sends = [send(float(due), after=6.0 if due < 8 else 0.3) for due in range(20)]

    assert median_in_faults(LATENESS, sends, 0.0) == pytest.approx(0.3)
    assert median_in_faults(LATENESS, sends[:9], 3.0) == pytest.approx(0.3)
    assert median_in_faults(LATENESS, sends[:8], 0.0) == pytest.approx(6.0)
    assert math.isnan(median_in_faults(LATENESS, sends, 10.0))


def test_the_wait_of_producers_is_summed_while_a_fault_lasts():
    sends = [send(1.0), send(6.0, after=2.0), send(14.0, after=1.5), send(16.0, after=3.0)]

    assert waited_in_faults(LATENESS, sends) == pytest.approx(3.5)


def test_failovers_are_counted_for_each_entity_and_a_failed_trial_is_none():
    def moved(entity, before, after):
        return EntityStateMoved(
            at=1.0, process="gateway", entity=entity, before=before, after=after
        )

    records = [
        moved("orders", State.SUSPECT, State.SECONDARY),
        moved("orders", State.HALF_OPEN, State.SECONDARY),
        moved("orders", State.PRIMARY, State.SECONDARY),
        moved("invoices", State.SUSPECT, State.SECONDARY),
    ]

    assert most_failovers(records) == 2
    assert most_failovers([]) == 0
