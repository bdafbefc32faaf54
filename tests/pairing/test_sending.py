"""What a send that failed says of its messages."""

import trio

from gateway.domain.backoff import Backoff
from gateway.domain.errors import (
    Outcome,
    OutcomeUnknown,
)
from gateway.domain.events import SendFailed
from gateway.domain.failover import State
from gateway.domain.message import Leg, Message
from gateway.pairing.options import (
    EntityRule,
    OnUnknown,
    UnknownEntity,
)
from gateway.testing.faults import (
    Hang,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    SwallowAnswer,
    busy,
)
from tests.pairing.lab import (
    ORDERS,
    QUEUE,
    Slow,
    outcome_of,
    send,
    virtual_time,
)

pytestmark = virtual_time

SEND = Operation.SEND
NO_TRIAL = Backoff(first=1000.0, cap=1000.0)


async def test_unknown_and_then_not_sent_is_unknown(lab):
    pair = await lab.pair()
    lab.primary.fail(Reset(), SEND, times=1)
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert error.outcome is Outcome.UNKNOWN


async def test_an_unknown_attempt_on_the_backlog_taints_too(lab):
    pair = await lab.pair()
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(Reset(), SEND, times=1)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_an_unknown_attempt_on_the_spool_taints_too(lab):
    pair = await lab.pair(spool=True)
    lab.primary.fail(Refuse(), SEND)
    lab.secondary.fail(Refuse(), SEND)
    lab.spool.fail(LoseAnswer(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert await lab.spool.ids(QUEUE) == ["m1"]


async def test_a_tainted_send_that_the_caller_got_wrong_is_unknown(lab):
    pair = await lab.pair(unknown_entity=UnknownEntity.REFUSE)
    lab.primary.fail(Reset(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_a_tainted_send_that_ends_busy_is_unknown(lab):
    pair = await lab.pair()
    lab.primary.fail(Reset(), SEND, times=1)
    lab.primary.fail(busy(1.0), SEND)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_all_legs_refusing_is_not_sent(lab):
    pair = await lab.pair(spool=True)
    for namespace in (lab.primary, lab.secondary, lab.spool):
        namespace.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert error is not None
    assert error.outcome is Outcome.NOT_SENT
    assert [event.outcome for event in lab.events.of(SendFailed)] == ["not-sent"]


async def test_an_unknown_outcome_is_diverted_with_the_same_id(lab):
    pair = await lab.pair()
    lab.primary.fail(LoseAnswer(), SEND)

    leg = await send(pair, Message(body=b"no id"))()

    assert leg is Leg.BACKLOG
    assert await lab.primary.ids() == await lab.secondary.ids(QUEUE) == ["id-0"]


async def test_an_unknown_outcome_goes_to_the_caller_where_a_duplicate_hurts(lab):
    rule = EntityRule(match="ORD*", on_unknown=OnUnknown.RAISE)
    pair = await lab.pair(failover_interval=0.0, entities=(rule,))
    lab.primary.fail(SwallowAnswer(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert await lab.secondary.ids(QUEUE) == []
    # It is an outage all the same.
    assert pair.standings.state_of(ORDERS) in {State.SECONDARY, State.HALF_OPEN}


async def test_a_backlog_queue_without_an_answer_rests_also_where_a_duplicate_hurts(lab):
    """Else every other send through it would end as unknown, for as long as it's out."""
    pair = await lab.pair(queues=2, on_unknown=OnUnknown.RAISE)
    pair.standings.force_over(ORDERS)
    lab.secondary.fail(Hang(), SEND, times=1)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert pair.rotation.usable == 1


async def test_not_sent_is_diverted_also_where_a_duplicate_hurts(lab):
    pair = await lab.pair(on_unknown=OnUnknown.RAISE)
    lab.primary.fail(Refuse(), SEND)

    leg = await send(pair)()

    assert leg is Leg.BACKLOG


async def test_a_hasty_clients_deadline_says_nothing_of_the_primary(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Slow(0.01), SEND)

    with trio.move_on_after(0.02):
        leg = await send(pair)()

    assert leg is Leg.BACKLOG
    assert pair.standings.troubled() == []


async def test_a_time_that_is_over_to_the_bit_is_over(lab):
    """The same, where the difference of two times is rounded down."""
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Hang(), SEND)

    for number in range(100):
        with trio.move_on_after(0.02 + number / 9973):
            await send(pair)()

        assert pair.standings.troubled() == []


async def test_a_connection_that_breaks_counts_however_short_the_time(lab):
    pair = await lab.pair(failover_interval=0.0)
    lab.primary.fail(Reset(), SEND)

    with trio.move_on_after(0.02):
        await send(pair)()

    assert pair.standings.state_of(ORDERS) in {State.SECONDARY, State.HALF_OPEN}


async def test_a_hasty_deadline_taints_though_it_doesnt_count(lab):
    pair = await lab.pair(send_timeout=0.02)
    lab.primary.fail(Hang(), SEND)
    lab.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
