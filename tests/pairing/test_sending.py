"""The outcome of a failed send is true of all its messages."""

import math
from datetime import timedelta

import pytest
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.errors import Outcome, OutcomeUnknown
from gateway.domain.events.gateway import SendFailed
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Message
from gateway.moments import Moments
from gateway.pairing.options import EntityRule, OnUnknown, UnknownEntity
from gateway.pairing.sending import Batch, Sending, send_in_time
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse, Reset, SwallowAnswer, busy
from tests.pairing.harness import ORDERS, QUEUE, Slow, message, outcome_of, send, virtual_time

pytestmark = virtual_time

SEND = Operation.SEND
NO_TRIAL = Backoff(first=1000.0, cap=1000.0)


async def test_unknown_and_then_not_sent_is_unknown(harness):
    pair = await harness.pair()
    harness.primary.fail(Reset(), SEND, times=1)
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert error.outcome is Outcome.UNKNOWN


async def test_an_unknown_attempt_on_the_backlog_taints_too(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Reset(), SEND, times=1)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_an_unknown_attempt_on_the_spool_taints_too(harness):
    pair = await harness.pair(spool=True)
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Refuse(), SEND)
    harness.spool.fail(LoseAnswer(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert await harness.spool.ids(QUEUE) == ["m1"]


async def test_a_tainted_send_that_the_caller_got_wrong_is_unknown(harness):
    pair = await harness.pair(unknown_entity=UnknownEntity.REFUSE)
    harness.primary.fail(Reset(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_a_tainted_send_that_ends_busy_is_unknown(harness):
    pair = await harness.pair()
    harness.primary.fail(Reset(), SEND, times=1)
    harness.primary.fail(busy(1.0), SEND)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_a_send_that_all_refuse_is_not_sent(harness):
    pair = await harness.pair(spool=True)
    for namespace in (harness.primary, harness.secondary, harness.spool):
        namespace.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert error is not None
    assert error.outcome is Outcome.NOT_SENT
    assert [event.outcome for event in harness.events.of(SendFailed)] == ["not-sent"]


async def test_an_unknown_outcome_is_diverted_with_the_same_id(harness):
    pair = await harness.pair()
    harness.primary.fail(LoseAnswer(), SEND)

    accepted_by = await send(pair, Message(body=b"no id"))()

    assert accepted_by is AcceptedBy.BACKLOG
    assert await harness.primary.ids() == await harness.secondary.ids(QUEUE) == ["id-0"]


async def test_an_unknown_outcome_goes_to_the_caller_where_a_duplicate_hurts(harness):
    rule = EntityRule(match="ORD*", on_unknown=OnUnknown.RAISE)
    pair = await harness.pair(failover_interval=0.0, entities=(rule,))
    harness.primary.fail(SwallowAnswer(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert await harness.secondary.ids(QUEUE) == []
    # The unknown outcome counts as an outage, too.
    assert pair.states.state_of(ORDERS) in {State.SECONDARY, State.HALF_OPEN}


async def test_a_backlog_queue_without_an_answer_cools_down_also_where_a_duplicate_hurts(harness):
    """Else every other send through it would end as unknown, for as long as it's out."""
    pair = await harness.pair(queues=2, on_unknown=OnUnknown.RAISE)
    pair.states.force_over(ORDERS)
    harness.secondary.fail(Hang(), SEND, times=1)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert pair.rotation.usable == 1


async def test_not_sent_is_diverted_also_where_a_duplicate_hurts(harness):
    pair = await harness.pair(on_unknown=OnUnknown.RAISE)
    harness.primary.fail(Refuse(), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG


async def test_a_hasty_clients_deadline_says_nothing_of_the_primary(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Slow(0.01), SEND)

    with trio.move_on_after(0.02):
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert pair.states.troubled() == []


async def test_a_time_that_is_over_to_the_bit_is_over(harness):
    """The same, where the difference of two times is rounded down."""
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Hang(), SEND)

    for number in range(100):
        with trio.move_on_after(0.02 + number / 9973):
            await send(pair)()

        assert pair.states.troubled() == []


async def test_a_connection_that_breaks_counts_however_short_the_time(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Reset(), SEND)

    with trio.move_on_after(0.02):
        await send(pair)()

    assert pair.states.state_of(ORDERS) in {State.SECONDARY, State.HALF_OPEN}


async def test_a_hasty_deadline_taints_though_it_doesnt_count(harness):
    pair = await harness.pair(send_timeout=0.02)
    harness.primary.fail(Hang(), SEND)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


@pytest.mark.parametrize(
    ("waited", "left"), [(0.05, 10.0), (0.5, 9.5), (9.9995, 0.001), (20.0, 0.001)]
)
async def test_a_message_that_waited_is_handed_over_with_the_rest_of_its_life(
    harness, waited, left
):
    """Below a tenth of a second it goes as it came; a whole life is a millisecond at least."""
    batch = Batch([message(time_to_live=timedelta(seconds=10.0))])
    sending = Sending(
        entity=ORDERS,
        batches=[batch],
        taken=Moments(harness.clock).now(),
        deadline=math.inf,
        attempt_timeout=10.0,
        on_unknown=OnUnknown.DIVERT,
        may_divert=True,
    )
    await trio.sleep(waited)

    [handed_over] = sending.handed_over(batch)

    assert handed_over.time_to_live.total_seconds() == pytest.approx(left)


async def test_a_time_out_names_the_address_of_the_namespace_that_gave_no_answer():
    class Silent:
        address = "east.example"

        async def send(self, _entity, _messages):
            await trio.sleep_forever()

    error = await outcome_of(lambda: send_in_time(Silent(), ORDERS, [message()], 3.0))

    assert str(error) == "east.example: no answer from orders within 3 s"
