"""Each answer of the primary has its meaning for the send and for its entity."""

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities.sending import continued
from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.errors import (
    Busy,
    EntityNotFound,
    InvalidRequest,
    NoAnswer,
    NotAuthorized,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
    Unreachable,
)
from gateway.domain.events.gateway import BusyPause, SendFailed, SentTwice
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.pairing.options import EntityRule, OnUnknown, OnUnreachable, WhileSuspect
from gateway.pairing.sending import Batch, Sending
from tests.harness.faults import Hang, Operation, Refuse, Reset, busy
from tests.pairing.harness import (
    BILLS,
    CALLERS_FAULT,
    ORDERS,
    QUEUE,
    Slow,
    Timed,
    message,
    outcome_of,
    refuse,
    send,
    suspect,
    virtual_time,
)

pytestmark = virtual_time

SEND = Operation.SEND
NO_TRIAL = Backoff(first=1000.0, cap=1000.0)


# Busy


async def test_busy_pauses_the_sends_to_that_entity_and_then_goes_on(harness):
    pair = await harness.pair(send_timeout=60.0)
    harness.primary.fail(busy(4.0), SEND, times=1)
    accepted_by = []

    async def one(number):
        accepted_by.append(await send(pair, message(f"{number}"))())

    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(one, number)
                await wait_all_tasks_blocked()

    assert accepted_by == [AcceptedBy.PRIMARY] * 3
    assert 10.0 <= timed.seconds <= 12.0
    # The second and the third waited without asking: the pause is shared.
    assert harness.primary.sends() == 4
    assert len({round(at, 6) for at in harness.primary.times(SEND)[-3:]}) == 3
    assert harness.events.of(BusyPause) == [BusyPause(entity=ORDERS, seconds=10.0)]


async def test_the_server_may_ask_for_a_longer_pause(harness):
    pair = await harness.pair(send_timeout=60.0)
    harness.primary.fail(busy(15.0), SEND, times=1)

    with Timed() as timed:
        await send(pair)()

    assert timed.seconds >= 15.0


async def test_busy_is_not_an_outage(harness):
    pair = await harness.pair(failover_interval=0.0, send_timeout=300.0)
    harness.primary.fail(busy(10.0), SEND, times=10)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert await harness.secondary.ids(QUEUE) == []
    assert pair.states.troubled() == []


async def test_busy_until_the_deadline_is_busy_with_the_time_to_wait(harness):
    pair = await harness.pair(send_timeout=30.0)
    harness.primary.fail(busy(25.0), SEND)

    with Timed() as timed:
        error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert error.retry_after == pytest.approx(25.0)
    assert timed.seconds == 0  # there is nothing to wait for


async def test_the_attempt_after_a_pause_has_its_whole_share_of_the_time(harness):
    pair = await harness.pair(failover_interval=0.0, send_timeout=10.5, busy_pause=10.0)
    harness.primary.fail(busy(1.0), SEND, times=1)
    harness.primary.fail(Hang(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert pair.states.troubled() == []


async def test_slow_busy_answers_dont_eat_the_share_of_the_attempt_that_counts(harness):
    pair = await harness.pair(failover_interval=0.0, send_timeout=60.0, slow_call_duration=None)

    class SlowlyBusy:
        async def strike(self, work, nursery):
            await trio.sleep(9.0)
            raise Busy(retry_after=1.0)

    harness.primary.fail(SlowlyBusy(), SEND, times=1)
    harness.primary.fail(Slow(5.0), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY
    assert pair.states.troubled() == []


async def test_a_busy_trial_is_diverted_and_doesnt_count(harness):
    pair = await harness.pair(failover_interval=5.0, successes_to_return=9)
    await suspect(harness, pair)
    await wait_all_tasks_blocked()  # a probe is answered
    harness.primary.fail(busy(1.0), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert pair.states.state_of(ORDERS) is State.SUSPECT


async def test_long_throttling_counts_where_that_is_wanted(harness):
    pair = await harness.pair(
        failover_interval=0.0, send_timeout=60.0, throttle_failover_after=15.0, busy_pause=5.0
    )
    harness.primary.fail(busy(1.0), SEND)

    with Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds >= 15.0
    assert pair.states.state_of(ORDERS) in {State.SECONDARY, State.HALF_OPEN}


async def test_long_throttling_diverts_also_where_a_suspect_entitys_errors_go_to_the_caller(
    harness,
):
    pair = await harness.pair(
        send_timeout=60.0,
        throttle_failover_after=15.0,
        busy_pause=5.0,
        while_suspect=WhileSuspect.RAISE,
    )
    harness.primary.fail(busy(1.0), SEND)

    with Timed() as timed:
        accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert timed.seconds < 20.0


# The caller's fault, quota


@pytest.mark.parametrize("error", CALLERS_FAULT)
async def test_the_callers_fault_goes_straight_to_the_caller(harness, error):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(refuse(error, "no"), SEND)

    found = await outcome_of(send(pair))

    assert type(found) is error
    assert pair.states.troubled() == []
    assert await harness.secondary.ids(QUEUE) == []
    assert [event.outcome for event in harness.events.of(SendFailed)] == ["not-sent"]


async def test_quota_is_diverted_where_that_is_wanted(harness):
    pair = await harness.pair(failover_interval=0.0, divert_on_quota=True)
    harness.primary.fail(refuse(QuotaExceeded, "full"), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert pair.states.troubled() == []


async def test_the_callers_fault_in_a_trial_ends_the_trial(harness):
    pair = await harness.pair()
    await suspect(harness, pair)
    await trio.sleep(1.0)
    harness.primary.fail(refuse(NotAuthorized, "no"), SEND, times=1)

    error = await outcome_of(send(pair))
    accepted_by = await send(pair)()

    assert isinstance(error, NotAuthorized)
    assert accepted_by is AcceptedBy.PRIMARY


async def test_an_entity_that_only_refuses_is_not_suspect_for_ever(harness):
    pair = await harness.pair(failover_interval=60.0)
    await suspect(harness, pair)
    harness.primary.fail(refuse(NotAuthorized, "no"))

    early, late = [], []
    for found in (early, late):
        await trio.sleep(31.0)
        found += [type(await outcome_of(send(pair))), pair.states.state_of(ORDERS)]

    assert early == [NotAuthorized, State.SUSPECT]
    assert late == [NotAuthorized, State.PRIMARY]


async def test_a_cancelled_trial_lets_the_next_one_try(harness):
    pair = await harness.pair(successes_to_return=9)
    await suspect(harness, pair)
    await wait_all_tasks_blocked()  # a probe is answered
    harness.primary.fail(Hang(), SEND, times=1)
    with trio.move_on_after(1.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send(pair))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.PRIMARY


# Rules and unreachable entities


async def test_an_entity_that_must_not_be_diverted_never_leaves_the_primary(harness):
    pair = await harness.pair(
        failover_interval=0.0, entities=(EntityRule(match="orders", divert=False),)
    )
    harness.primary.fail(Refuse(), SEND)

    errors = [await outcome_of(send(pair)) for _ in range(3)]

    assert [type(error) for error in errors] == [Unavailable] * 3
    assert harness.primary.sends() == 3
    assert harness.secondary.sends(QUEUE) == 0
    assert pair.states.troubled() == []


async def test_an_entity_gone_on_the_primary_is_diverted_while_failed_over(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Refuse(), SEND)
    harness.primary.fail(refuse(EntityNotFound, "gone"), Operation.PROBE)
    await send(pair)()
    await wait_all_tasks_blocked()

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG


async def test_an_entity_gone_on_the_primary_may_be_an_error(harness):
    pair = await harness.pair(failover_interval=0.0, on_unreachable=OnUnreachable.RAISE)
    harness.primary.fail(Refuse(), SEND)
    harness.primary.fail(refuse(EntityNotFound, "gone"), Operation.PROBE)
    await send(pair)()
    await trio.sleep(0.1)

    error = await outcome_of(send(pair))

    assert isinstance(error, EntityNotFound)


async def test_a_trial_that_finds_the_entity_gone_is_diverted(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=9)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)
    await send(pair)()
    await trio.sleep(0.5)
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert harness.primary.sends() == 2


# The meaning of each answer


async def test_an_unknown_outcome_of_the_last_resort_taints_too(harness):
    pair = await harness.pair(failover_interval=0.0, ping_interval=1800.0)
    harness.primary.fail(Refuse(), SEND, times=1)
    await send(pair)()
    harness.primary.fail(Reset(), SEND)
    harness.secondary.fail(Refuse(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)


async def test_a_primary_that_was_asked_isnt_asked_again_while_there_are_backlog_queues(harness):
    await harness.secondary.store.create_queue(harness.queues(2)[1], backlog.QUEUE_PROPERTIES)
    pair = await harness.pair(queues=2)
    harness.primary.fail(Refuse(), SEND)
    harness.secondary.fail(Hang(), SEND, times=1)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert harness.primary.sends() == 1


async def test_an_entity_that_is_never_diverted_is_sent_to_whatever_its_state(harness):
    pair = await harness.pair(entities=(EntityRule(match="orders", divert=False),))
    pair.states.force_over(ORDERS)

    assert await send(pair)() is AcceptedBy.PRIMARY


async def test_an_entity_that_is_gone_isnt_known_any_more(harness):
    pair = await harness.pair()
    await send(pair)()
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)

    await outcome_of(send(pair))

    assert pair.entity_cache.of(ORDERS) is None


@pytest.mark.parametrize("seconds", [20.0, 0.5])
async def test_a_busy_primary_isnt_asked_as_a_last_resort(harness, seconds):
    pair = await harness.pair(busy_pause=0.5, successes_to_return=9)
    await suspect(harness, pair)
    await wait_all_tasks_blocked()  # the next trial is due
    pair.broker.ways.to_primary.pauses.begin(ORDERS, Busy(retry_after=seconds))
    harness.secondary.fail(Refuse(), SEND)
    before = harness.primary.sends()

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert harness.primary.sends() == before


@pytest.mark.parametrize(
    ("attempt_timeout", "seconds", "counts"),
    [(100.0, 1.0, True), (100.0, 0.75, False), (5.0, 0.625, True), (5.0, 0.375, False)],
)
async def test_a_time_out_counts_after_a_second_or_a_tenth_of_an_attempt(
    harness, attempt_timeout, seconds, counts
):
    pair = await harness.pair(
        failover_interval=0.0, attempt_timeout=attempt_timeout, send_timeout=seconds / 0.4
    )
    harness.primary.fail(Hang(), SEND)

    accepted_by = await send(pair)()

    assert accepted_by is AcceptedBy.BACKLOG
    assert bool(pair.states.troubled()) is counts


@pytest.mark.parametrize(("pause", "counts"), [(10.0, True), (1.0, False)])
async def test_an_attempt_that_the_callers_deadline_ends_counts_if_it_was_fair(
    harness, pause, counts
):
    """
    The attempt after a pause may have just the rest of the time, so that both deadlines are one.
    """
    pair = await harness.pair(failover_interval=0.0, busy_pause=pause)
    harness.primary.fail(busy(pause), SEND, times=1)
    harness.primary.fail(Hang(), SEND)

    with trio.move_on_after(1.67 * pause) as scope:
        await send(pair)()

    assert scope.cancelled_caught
    assert harness.primary.sends() == 2
    assert bool(pair.states.troubled()) is counts


async def test_a_time_out_that_doesnt_count_is_the_callers_too_as_the_legacy_client_had_it(harness):
    pair = await harness.pair(while_suspect=WhileSuspect.RAISE, send_timeout=0.02)
    harness.primary.fail(Hang(), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, OutcomeUnknown)
    assert await harness.secondary.ids(QUEUE) == []
    assert pair.states.troubled() == []


async def test_an_attempt_that_its_caller_gives_up_before_its_time_doesnt_count(harness):
    pair = await harness.pair(failover_interval=0.0)
    harness.primary.fail(Hang(), SEND)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send(pair))
            await trio.sleep(5.0)
            scope.cancel()

    assert scope.cancelled_caught
    assert pair.states.troubled() == []


async def test_a_send_from_before_the_failover_that_finds_the_entity_gone_is_told(harness):
    pair = await harness.pair(failover_interval=0.0, successes_to_return=9)

    class SlowlyGone:
        async def strike(self, work, nursery):
            await trio.sleep(1.0)
            raise EntityNotFound("gone")

    harness.primary.fail(SlowlyGone(), SEND, times=1)
    harness.primary.fail(Refuse(), SEND, times=1)
    errors = []

    async def one():
        errors.append(await outcome_of(send(pair)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        await wait_all_tasks_blocked()
        await send(pair, message("second"))()
        await trio.sleep(0.5)
        assert pair.states.state_of(ORDERS) is State.HALF_OPEN

    assert [type(error) for error in errors] == [EntityNotFound]


async def test_a_suspect_entity_that_is_gone_is_told_to_the_caller(harness):
    pair = await harness.pair()
    await suspect(harness, pair)
    await trio.sleep(5.0)
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, EntityNotFound)


async def test_a_success_ends_the_pause_and_what_came_before_it(harness):
    pair = await harness.pair(
        failover_interval=0.0, send_timeout=60.0, throttle_failover_after=15.0, busy_pause=5.0
    )
    for number in range(5):
        harness.primary.fail(busy(1.0), SEND, times=1)
        assert await send(pair, message(f"{number}"))() is AcceptedBy.PRIMARY


async def test_throttling_of_an_entity_that_is_never_diverted_never_counts(harness):
    pair = await harness.pair(
        send_timeout=30.0,
        throttle_failover_after=1.0,
        busy_pause=5.0,
        entities=(EntityRule(match="orders", divert=False),),
    )
    harness.primary.fail(busy(1.0), SEND)

    error = await outcome_of(send(pair))

    assert isinstance(error, Busy)
    assert pair.states.troubled() == []


# One send, by itself


def sending_of(pair, *ids, seconds=30.0, **options):
    """A send of a batch for each id, which has that many seconds."""
    chosen = {
        "attempt_timeout": 10.0,
        "on_unknown": OnUnknown.DIVERT,
        "may_divert": True,
        **options,
    }
    return Sending(
        entity=ORDERS,
        batches=[Batch([message(each)]) for each in ids or ("m1",)],
        taken=pair.broker.moments.now(),
        deadline=trio.current_time() + seconds,
        **chosen,
    )


async def failed_over(harness, **options):
    """A pair whose entity has failed over, and is probed in vain."""
    harness.primary.fail(Refuse(), Operation.PROBE)
    pair = await harness.pair(failover_interval=0.0, **options)
    pair.states.failed(pair.states.begin(ORDERS), Unavailable("out"))
    await wait_all_tasks_blocked()
    assert pair.states.state_of(ORDERS) is State.SECONDARY
    return pair, pair.broker.ways.to_primary


async def test_an_accepted_send_has_its_verdict_and_one_without_time_has_none(harness):
    pair = await harness.pair()
    to_primary, sending, late = (
        pair.broker.ways.to_primary,
        sending_of(pair),
        sending_of(pair, seconds=0.0),
    )

    done = await to_primary.send_to_primary(sending)
    in_time = await to_primary.send_to_primary(late)

    assert (done, sending.primary_asked, late.primary_asked) == (True, True, False)
    assert (sending.batches[0].accepted_by, in_time) == (AcceptedBy.PRIMARY, False)


async def test_a_send_that_the_primary_takes_after_all_has_its_verdict(harness):
    pair, to_primary = await failed_over(harness)

    assert await to_primary.send_to_primary_after_all(sending_of(pair)) is True
    assert pair.states.state_of(ORDERS) is State.HALF_OPEN


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        (Slow(1.99), State.HALF_OPEN),
        (Slow(2.0), State.SECONDARY),
        (Refuse(), State.SECONDARY),
    ],
)
async def test_an_entity_is_half_open_after_a_send_that_the_primary_took_in_time(
    harness, fault, state
):
    pair, to_primary = await failed_over(harness, slow_call_duration=2.0)
    harness.primary.fail(fault, SEND)

    await to_primary.send_to_primary_after_all(sending_of(pair))

    assert pair.states.state_of(ORDERS) is state


async def test_a_send_that_a_half_open_entity_takes_after_all_is_no_probe(harness):
    pair, to_primary = await failed_over(harness)

    for _ in range(3):
        await to_primary.send_to_primary_after_all(sending_of(pair))

    assert pair.states.state_of(ORDERS) is State.HALF_OPEN


@pytest.mark.parametrize("why", ["pinned", "no time", "busy"])
async def test_a_primary_that_mustnt_be_asked_after_all_isnt(harness, why):
    pair, to_primary = await failed_over(harness)
    if why == "pinned":
        pair.states.force_over(ORDERS)
    if why == "busy":
        to_primary.pauses.begin(ORDERS, Busy(retry_after=0.5))
    sending = sending_of(pair, seconds=0.0005 if why == "no time" else 30.0)

    assert await to_primary.send_to_primary_after_all(sending) is False
    assert harness.primary.sends() == 0


async def test_a_full_entity_leaves_the_send_to_a_spool_where_that_is_wanted(harness):
    pair, to_primary = await failed_over(harness, divert_on_quota=True)
    harness.primary.fail(refuse(QuotaExceeded, "full"), SEND)
    sending = sending_of(pair)

    assert await to_primary.send_to_primary_after_all(sending) is False
    assert sending.batches[0].is_pending


async def test_a_send_waits_for_a_suspect_entity_for_its_share_of_the_time_at_most(harness):
    pair = await harness.pair(send_timeout=5.0, suspect_wait=10.0)
    harness.primary.fail(Refuse(), SEND)
    harness.primary.fail(Hang(), Operation.PROBE)
    await send(pair)()

    with Timed() as timed:
        await send(pair, message("m2"))()

    assert timed.seconds == pytest.approx(0.4 * 5.0)


async def test_a_send_that_waits_as_its_entity_returns_goes_to_the_primary(harness):
    pair = await harness.pair(successes_to_return=1)
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.primary.fail(Slow(0.1), Operation.PROBE)
    await send(pair)()

    with Timed() as timed:
        accepted_by = await send(pair, message("m2"))()

    assert (accepted_by, timed.seconds) == (AcceptedBy.PRIMARY, pytest.approx(0.1))
    assert pair.states.state_of(ORDERS) is State.PRIMARY


@pytest.mark.parametrize(("seconds", "state"), [(1.99, State.PRIMARY), (2.0, State.SECONDARY)])
async def test_a_trial_that_takes_as_long_as_a_slow_call_has_failed(harness, seconds, state):
    pair, to_primary = await failed_over(harness, slow_call_duration=2.0)
    pair.states.probed(ORDERS)
    harness.primary.heal()
    harness.primary.fail(Slow(seconds), SEND)

    assert await to_primary.send_to_primary(sending_of(pair))
    assert pair.states.state_of(ORDERS) is state


@pytest.mark.parametrize(
    ("errors", "is_known"),
    [([QuotaExceeded], True), ([QuotaExceeded, EntityNotFound], False)],
)
async def test_only_an_entity_that_is_missing_isnt_known_any_more(harness, errors, is_known):
    pair = await harness.pair()
    await send(pair)()
    for error in errors:
        harness.primary.fail(refuse(error, "no"), SEND, times=1)

    await pair.broker.send_many(ORDERS, [[message(str(each))] for each in errors])

    assert (pair.entity_cache.of(ORDERS) is not None) is is_known


async def test_an_entity_that_a_trial_finds_missing_stays_known(harness):
    pair, to_primary = await failed_over(harness)
    pair.entity_cache.record_accepted(ORDERS)
    pair.states.probed(ORDERS)
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)

    await to_primary.send_to_primary(sending_of(pair))

    assert pair.entity_cache.of(ORDERS) is not None


async def test_an_entity_that_an_outage_has_lost_stays_known(harness):
    pair = await harness.pair()
    await send(pair)()
    await suspect(harness, pair)
    await trio.sleep(0.5)
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)

    await outcome_of(send(pair, message("m2")))

    assert pair.entity_cache.of(ORDERS) is not None


async def test_a_call_in_order_is_handed_over_before_the_one_ahead_is_answered(harness):
    pair = await harness.pair()
    harness.primary.fail(Slow(1.0), SEND)
    began = trio.current_time()

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(pair.broker.send_many, ORDERS, [[message(str(number))]])
            await wait_all_tasks_blocked()

    assert harness.primary.times(SEND) == [began] * 3
    assert await harness.primary.ids() == ["0", "1", "2"]


async def test_a_second_copy_of_an_entity_that_is_never_diverted_is_reported(harness):
    pair = await harness.pair(entities=(EntityRule(match="orders", divert=False),))

    with continued(in_doubt=True):
        await send(pair)()

    assert harness.events.of(SentTwice) == [SentTwice(entity=ORDERS, messages=1, certain=False)]


async def test_a_send_that_is_given_up_early_says_how_long_it_waited(harness):
    pair = await harness.pair(slow_call_duration=2.0)
    harness.primary.fail(Hang())
    sending = sending_of(pair)

    assert await pair.broker.ways.to_primary.send_to_primary(sending) is False

    error = sending.batches[0].errors[AcceptedBy.PRIMARY]
    assert "no answer from orders within 2.25 s" in str(error)


@attrs.define
class SecondCopy:
    """A copy that is never begun."""

    after: float = 100.0
    delivered: bool = False
    refused: bool = False

    def expect(self):
        pass

    def accepted_by_primary(self):
        pass

    async def wait(self):
        return False

    def cancel(self):
        pass


@pytest.mark.parametrize(("last", "refused"), [(Refuse(), True), (Reset(), False)])
async def test_a_second_copy_is_certain_if_the_primary_has_refused_every_batch(
    harness, last, refused
):
    pair = await harness.pair()
    for fault in (Refuse(), last):
        harness.primary.fail(fault, SEND, times=1)
    sending = sending_of(pair, "1", "2", second=(copy := SecondCopy()))

    await pair.broker.ways.to_primary.send_to_primary(sending)

    assert copy.refused is refused


async def test_a_healthy_entity_of_a_lost_namespace_isnt_sent_to_unasked(harness):
    pair = await harness.pair()
    harness.primary.fail(refuse(Unreachable, "refused"))
    await send(pair, entity=BILLS)()

    assert await send(pair)() is AcceptedBy.BACKLOG
    assert harness.primary.sends(ORDERS) == 0


async def test_a_trial_that_its_caller_gives_up_ends(harness):
    pair, to_primary = await failed_over(harness, successes_to_return=9)
    harness.primary.heal()
    pair.states.probed(ORDERS)
    harness.primary.fail(Hang(), SEND)

    with trio.move_on_after(0.5):
        await to_primary.send_to_primary(sending_of(pair))

    assert pair.states.begin_trial(ORDERS) is not None


async def test_a_refusal_shows_that_the_primary_answers(harness):
    pair = await harness.pair()
    harness.primary.fail(Hang(), Operation.PROBE)
    harness.primary.fail(refuse(QuotaExceeded, "full"), SEND)
    pair.states.failed(pair.states.begin(BILLS), NoAnswer("late"))
    await trio.sleep(0.1)
    before = pair.states.evidence.namespace.is_any_silent

    await pair.broker.ways.to_primary.send_to_primary_after_all(sending_of(pair))

    assert before
    assert not pair.states.evidence.namespace.is_any_silent


@attrs.define
class Primary:
    """Accepts each send, and records by which operation it came."""

    operations: list[str] = attrs.field(factory=list)

    async def send(self, _entity, _messages):
        self.operations.append("send")

    async def try_send(self, _entity, _messages):
        self.operations.append("try_send")

    async def send_many(self, _entity, batches, *, fails_fast=False):
        self.operations.append(f"send_many, fails_fast={fails_fast}")
        return [None] * len(batches)


@pytest.mark.parametrize(
    ("ids", "options", "operation"),
    [
        ("1", {}, "try_send"),
        ("1", {"may_divert": False}, "send"),
        ("1", {"in_order": True}, "send_many, fails_fast=True"),
        ("12", {}, "send_many, fails_fast=True"),
        ("12", {"may_divert": False}, "send_many, fails_fast=False"),
    ],
)
async def test_a_send_fails_fast_if_it_has_another_way_and_is_one_of_many_if_order_counts(
    harness, ids, options, operation
):
    pair = await harness.pair()
    to_primary = pair.broker.ways.to_primary
    to_primary.primary = primary = Primary()

    assert await to_primary.send_to_primary(sending_of(pair, *ids, **options))
    assert primary.operations == [operation]


async def test_a_batch_behind_a_busy_one_has_its_own_error(harness):
    pair = await harness.pair()
    for fault in (busy(1.0), refuse(InvalidRequest, "no")):
        harness.primary.fail(fault, SEND, times=1)

    errors = await pair.broker.send_many(ORDERS, [[message("1")], [message("2")]])

    assert [type(error) for error in errors] == [type(None), InvalidRequest]
    assert await harness.primary.ids() == ["1"]


async def test_a_missing_entity_that_is_diverted_is_no_verdict_for_its_last_resort(harness):
    pair, to_primary = await failed_over(harness)
    pair.states.record_unreachable(ORDERS, EntityNotFound("gone"))
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)
    sending = sending_of(pair)

    assert await to_primary.send_to_primary_after_all(sending) is False
    assert sending.batches[0].is_pending
