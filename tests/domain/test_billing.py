"""The usage that a cloud bills: units, operations per message and per idle day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.billing import (
    DAY,
    QUIET,
    UNIT,
    WORK,
    Operation,
    OperationCounter,
    UsageReport,
    is_billed,
    units,
)

IDLE = frozenset(Operation) - WORK


@pytest.mark.parametrize(
    ("messages", "size", "billed"),
    [
        (0, 0, 0),
        (0, 2 * UNIT, 0),
        (1, 0, 1),
        (1, 65_536, 1),
        (1, 65_537, 2),
        (1, 96 * 1024, 2),  # the example of the pricing page
        (100, 100 * 1000, 100),  # a batch is billed as its messages are
        (10, 10 * (UNIT + 1), 20),
    ],
)
def test_each_64_kib_of_a_message_that_are_begun_are_one_operation(
    messages: int, size: int, billed: int
) -> None:
    assert units(messages, size) == billed


@pytest.mark.parametrize(
    ("status", "billed"), [(200, True), (404, True), (499, True), (500, False)]
)
def test_only_a_servers_own_fault_costs_nothing(status: int, billed: bool) -> None:
    assert is_billed(status) is billed


@pytest.mark.parametrize(("sent", "received"), [(4, 1), (1, 4)])
def test_a_message_that_came_through_somebody_else_counts(sent: int, received: int) -> None:
    counter = OperationCounter()
    counter.count(Operation.SEND, 0.0, messages=sent)
    counter.count(Operation.RECEIVE, 0.0, messages=received)
    usage = counter.report(1.0)

    assert (usage.sent, usage.received, usage.messages) == (sent, received, 4)
    assert usage.per_message == 2 / 4


def test_a_bill_may_leave_out_what_was_never_done() -> None:
    usage = UsageReport(
        operations={Operation.SEND: 2}, sent=1, received=0, idle_operations=0, idle_seconds=0.0
    )

    assert (usage.total, usage.per_message) == (2, 2.0)


def test_looks_and_questions_are_in_no_message() -> None:
    counter = OperationCounter()
    counter.count(Operation.SEND, 0.0, messages=1)
    for operation in (Operation.EMPTY, Operation.PEEK, Operation.INSPECT, Operation.MANAGE):
        counter.count(operation, 0.0)
    counter.count(Operation.RENEW, 0.0)

    assert counter.report(1.0).per_message == 2.0  # the send, and a lock that was renewed


def test_a_namespace_is_idle_a_minute_after_its_last_message() -> None:
    counter = OperationCounter()
    counter.start(0.0)
    counter.count(Operation.EMPTY, QUIET - 0.1)
    counter.count(Operation.EMPTY, QUIET, operations=3)
    usage = counter.report(QUIET + 50.0)

    assert (usage.idle_operations, usage.idle_seconds) == (3, 50.0)


def test_an_idle_day_is_known_after_an_idle_minute() -> None:
    counter = OperationCounter()
    counter.start(0.0)
    counter.count(Operation.EMPTY, QUIET + 1.0)

    assert counter.report(QUIET + 59.9).per_idle_day is None
    assert counter.report(QUIET + 60.0).per_idle_day == 86_400 / 60


def test_work_ends_an_idle_time_and_the_next_begins_a_minute_later() -> None:
    counter = OperationCounter()
    counter.start(0.0)
    counter.count(Operation.SEND, 100.0, messages=1)  # after 40 idle seconds
    counter.count(Operation.SEND, 130.0, messages=1)

    assert counter.report(180.0).idle_seconds == 40.0
    assert counter.report(200.0).idle_seconds == 50.0


def test_metrics_name_the_kinds_of_operations_so() -> None:
    names = "receive empty settle renew peek inspect manage send"

    assert [each.value for each in Operation] == names.split()


def test_a_request_carries_messages_only_where_somebody_says_so() -> None:
    counter = OperationCounter()
    counter.count(Operation.SEND, 0.0)
    counter.count(Operation.RECEIVE, 0.0)

    assert counter.report(0.0).messages == 0


def test_the_cost_of_a_message_is_all_operations_over_the_messages_that_went_through() -> None:
    counter = OperationCounter()
    counter.count(Operation.SEND, 0.0, messages=1)
    counter.count(Operation.RECEIVE, 1.0, messages=1)
    counter.count(Operation.SETTLE, 2.0)

    assert counter.report(3.0).per_message == 3.0  # a put, a get and a delete


def test_a_request_for_many_messages_makes_each_cheaper() -> None:
    counter = OperationCounter()
    counter.count(Operation.RECEIVE, 0.0, messages=32)
    counter.count(Operation.SETTLE, 1.0, operations=32)

    assert counter.report(2.0).per_message == 33 / 32


def test_without_a_message_nobody_knows_what_one_costs() -> None:
    counter = OperationCounter()
    counter.count(Operation.EMPTY, 0.0)

    assert counter.report(1.0).per_message is None


def test_one_poll_a_second_is_86400_operations_a_day() -> None:
    counter = OperationCounter()
    counter.start(0.0)
    for second in range(1, 3601):
        counter.count(Operation.EMPTY, float(second))

    per_day = counter.report(3600.0).per_idle_day

    assert per_day == pytest.approx(DAY, rel=0.001)


def test_an_operation_that_goes_on_while_messages_come_says_nothing_of_an_idle_day() -> None:
    counter = OperationCounter()
    counter.start(0.0)
    for second in range(3600):
        counter.count(Operation.RECEIVE, float(second), messages=1)
        counter.count(Operation.EMPTY, second + 0.5)

    assert counter.report(3600.0).per_idle_day is None


def test_a_message_in_between_doesnt_change_what_an_idle_day_costs() -> None:
    counter = OperationCounter()
    counter.start(0.0)
    for minute in range(1, 600):
        counter.count(Operation.EMPTY, minute * 60.0 + 1)
        if minute % 60 == 0:
            counter.count(Operation.RECEIVE, minute * 60.0 + 2, messages=1)

    assert counter.report(36_000.0).per_idle_day == pytest.approx(DAY / 60, rel=0.05)


def test_before_it_is_started_nothing_is_idle() -> None:
    counter = OperationCounter()
    counter.count(Operation.INSPECT, 1e6)

    assert counter.report(2e6).per_idle_day is None


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(Operation), st.floats(0.0, 1000.0), st.integers(0, 40)),
        max_size=40,
    )
)
def test_idle_time_and_operations_are_never_more_than_all(
    steps: list[tuple[Operation, float, int]],
) -> None:
    counter, now = OperationCounter(), 0.0
    counter.start(now)
    for operation, seconds, messages in steps:
        now += seconds
        counter.count(operation, now, messages=messages)
    usage = counter.report(now)

    assert usage.total == len(steps)
    assert 0 <= usage.idle_operations <= sum(usage.operations[each] for each in IDLE)
    assert 0.0 <= usage.idle_seconds <= max(0.0, now - QUIET)
