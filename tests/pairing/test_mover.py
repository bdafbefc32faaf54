"""What becomes of backlog messages, one syphon and one backlog queue at a time."""

from datetime import timedelta
from itertools import pairwise

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope_fields import RESERVED
from gateway.domain.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    QuotaExceeded,
    SessionRequired,
    Unavailable,
)
from gateway.domain.events import Parked, Syphoned, SyphonFailed, SyphonHeld
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_REASON_LENGTH,
)
from gateway.pairing.options import BacklogTimeToLive
from gateway.pairing.transfer import Cargo, Progress
from gateway.testing import faults
from gateway.testing.faults import (
    FaultyManyReceiver,
    FaultyReceiver,
    Hang,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    busy,
)
from tests.pairing.lab import (
    BILLS,
    ORDERS,
    QUEUE,
    Slow,
    envelope,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time

SEND, SETTLE, RENEW = Operation.SEND, Operation.SETTLE, Operation.RENEW
TRANSIENT = [Unavailable, NotAuthorized, QuotaExceeded]
FAULTS = [MessageTooLarge, InvalidRequest, SessionRequired]


async def parked(lab):
    """Ids and reasons in the dead-letter queue of the backlog queue."""
    messages = await lab.secondary.messages(QUEUE.dead_letter)
    return [(each.message_id, each.properties[DEAD_LETTER_REASON]) for each in messages]


# The one order


async def test_messages_move_to_their_entities(lab):
    await lab.divert(message("1"), message("2"))
    await lab.divert(message("3"), entity=BILLS)
    await lab.syphon()

    await trio.sleep(1.0)

    assert await lab.primary.ids(ORDERS) == ["1", "2"]
    assert await lab.primary.ids(BILLS) == ["3"]
    assert await lab.secondary.ids(QUEUE) == []
    moved = {(event.entity, event.messages) for event in lab.events.of(Syphoned)}
    assert moved == {(ORDERS, 2), (BILLS, 1)}


async def test_a_message_is_completed_only_after_the_primary_took_it(lab):
    await lab.divert(message())
    lab.primary.fail(Slow(5.0), SEND)
    await lab.syphon()

    await trio.sleep(4.9)
    settled_before = lab.secondary.times(SETTLE)
    await trio.sleep(1.0)

    assert settled_before == []
    assert await lab.secondary.ids(QUEUE) == []


@pytest.mark.parametrize("error", TRANSIENT)
async def test_what_may_pass_is_kept_and_tried_again(lab, error):
    await lab.divert(message())
    lab.primary.fail(refuse(error, "not now"), SEND)
    await lab.syphon()
    await trio.sleep(600.0)
    kept = await lab.secondary.ids(QUEUE)
    lab.primary.heal()

    await trio.sleep(100.0)

    assert kept == ["m1"]
    assert await parked(lab) == []
    assert await lab.primary.ids() == ["m1"]


async def test_a_busy_primary_is_left_alone_for_the_pause(lab):
    await lab.divert(message())
    lab.primary.fail(busy(15.0), SEND, times=1)
    await lab.syphon()

    await trio.sleep(60.0)

    first, second = lab.primary.times(SEND)
    assert second - first >= 15.0
    assert await lab.primary.ids() == ["m1"]


async def test_an_entity_rests_as_long_as_the_back_off_says_and_no_longer(lab):
    await lab.divert(message())
    lab.primary.fail(Refuse(), SEND)
    await lab.syphon(retry=Backoff(first=0.25, cap=0.25, jitter=0.0))

    first = await lab.events.first(SyphonHeld)

    assert first.seconds == 0.25


# Unknown outcomes


async def test_an_unknown_outcome_holds_the_entity_longer_each_time(lab):
    await lab.divert(message())
    lab.primary.fail(Reset(), SEND)
    await lab.syphon(hold=Backoff(first=1.0, cap=300.0, jitter=0.0))

    await trio.sleep(400.0)

    assert [event.seconds for event in lab.events.of(SyphonHeld)][:6] == [1, 2, 4, 8, 16, 32]
    assert await lab.secondary.ids(QUEUE) == ["m1"]


async def test_a_hold_is_capped_and_ends_with_the_first_success(lab):
    await lab.divert(message())
    lab.primary.fail(Reset(), SEND)
    await lab.syphon(hold=Backoff(first=1.0, cap=20.0, jitter=0.0))
    await trio.sleep(300.0)
    longest = max(event.seconds for event in lab.events.of(SyphonHeld))
    lab.primary.heal()
    await trio.sleep(90.0)
    assert await lab.primary.ids() == ["m1"]
    lab.events.all.clear()
    lab.primary.fail(Reset(), SEND, times=1)

    await lab.divert(message("m2"))
    await trio.sleep(30.0)

    assert longest == 20.0
    assert [event.seconds for event in lab.events.of(SyphonHeld)] == [1.0]


async def test_a_slow_send_that_turns_out_done_is_completed_and_not_sent_again(lab):
    await lab.divert(message())
    lab.primary.fail(Slow(15.0), SEND)
    await lab.syphon(attempt_timeout=10.0)

    await trio.sleep(12.0)
    held = lab.events.of(SyphonHeld)
    await trio.sleep(300.0)

    assert len(held) == 1
    assert lab.primary.sends() == 1
    assert await lab.primary.ids() == ["m1"]
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_send_without_an_answer_is_given_up_and_made_again(lab):
    await lab.divert(message())
    lab.primary.fail(Hang(), SEND, times=1)
    await lab.syphon(attempt_timeout=10.0)

    await trio.sleep(120.0)

    assert await lab.primary.ids() == ["m1"]
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_send_is_given_up_after_three_attempt_time_outs(lab):
    await lab.divert(message())
    lab.primary.fail(Hang(), SEND, times=1)
    started = trio.current_time()
    await lab.syphon(attempt_timeout=10.0, hold=Backoff(first=1.0, cap=300.0, jitter=0.0))

    await trio.sleep(60.0)

    # That the answer is late and that it never comes is one failure, and one hold.
    assert [at - started for at in lab.primary.times(SEND)] == pytest.approx([0.0, 31.0])


async def test_what_rests_isnt_given_back_for_a_moment_when_a_send_is_given_up(lab):
    """It would stand before all that the drain hasn't looked at yet."""
    await lab.divert(message("1"))
    await lab.divert(message("2"))
    lab.primary.fail(Hang(), SEND)
    hold = Backoff(first=5.0, cap=300.0, jitter=0.0)
    await lab.syphon(batch=1, attempt_timeout=10.0, hold=hold)

    await trio.sleep(34.9)
    assert lab.secondary.times(SETTLE) == []

    await trio.sleep(0.2)
    assert len(lab.secondary.times(SETTLE)) == 1  # the first, which tries the entity


async def test_while_a_send_has_no_answer_its_entity_gets_no_other(lab):
    await lab.divert(message("1"))
    lab.primary.fail(Hang(), SEND)
    await lab.syphon(attempt_timeout=10.0)
    await trio.sleep(25.0)

    await lab.divert(message("2"))
    await trio.sleep(4.0)

    assert lab.primary.sends() == 1


async def test_a_lost_complete_is_made_good_and_the_message_isnt_sent_again(lab):
    await lab.divert(message())
    lab.secondary.fail(refuse(Unavailable, "lost"), SETTLE, times=1)
    await lab.syphon()

    await trio.sleep(200.0)

    assert lab.primary.sends() == 1
    assert await lab.secondary.ids(QUEUE) == []
    assert len(lab.events.of(SyphonFailed)) == 1


async def test_a_complete_that_hangs_is_made_good_too(lab):
    await lab.divert(message())
    lab.secondary.fail(Hang(), SETTLE, times=1)
    await lab.syphon()

    await trio.sleep(200.0)

    assert lab.primary.sends() == 1
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_complete_whose_answer_is_lost_is_done(lab):
    await lab.divert(message())
    lab.secondary.fail(LoseAnswer(), SETTLE, times=1)
    await lab.syphon()

    await trio.sleep(200.0)

    assert lab.primary.sends() == 1
    assert await lab.secondary.ids(QUEUE) == []


@pytest.fixture(params=["one by one", "together"])
def settling(request, monkeypatch):
    """How the backlog's receiver settles several deliveries."""
    if request.param == "one by one":
        monkeypatch.setattr(faults, "FaultyManyReceiver", FaultyReceiver)


@pytest.mark.usefixtures("settling")
async def test_what_is_completed_needs_no_memory(lab):
    await lab.divert(message("1"), message("2"))
    syphon = lab.make_syphon()
    await lab.nursery.start(syphon.run)

    await trio.sleep(1.0)

    assert await lab.primary.ids() == ["1", "2"]
    assert await lab.secondary.ids(QUEUE) == []
    assert not syphon._transferred._copies


@pytest.mark.usefixtures("settling")
async def test_what_cant_be_completed_is_remembered_for_as_long(lab):
    await lab.divert(message("1"), message("2"), message("3"))
    lab.secondary.fail(refuse(Unavailable, "lost"), SETTLE, times=2)
    syphon = lab.make_syphon()
    await lab.nursery.start(syphon.run)
    await trio.sleep(1.0)
    remembered = len(syphon._transferred._copies)

    await trio.sleep(100.0)

    assert remembered == 2
    assert not syphon._transferred._copies
    assert lab.primary.sends() == 1


async def test_completions_that_fail_together_are_told_once_and_made_good(lab, monkeypatch):
    class Failing(FaultyManyReceiver):
        failed = False

        async def settle_many(self, settlements):
            if not self.failed:
                self.failed = True
                await trio.lowlevel.checkpoint()
                raise Unavailable("lost")
            return await super().settle_many(settlements)

    monkeypatch.setattr(faults, "FaultyManyReceiver", Failing)
    await lab.divert(message("1"), message("2"))
    await lab.syphon()

    await trio.sleep(100.0)

    assert [event.reason for event in lab.events.of(SyphonFailed)] == ["lost"]
    assert lab.primary.sends() == 1
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_syphon_that_ends_between_accept_and_complete_loses_nothing(lab):
    await lab.divert(message())
    lab.secondary.fail(Hang(), SETTLE)
    first = await lab.syphon()
    await trio.sleep(1.0)
    assert await lab.primary.ids() == ["m1"]

    first.cancel()
    lab.secondary.heal()
    await lab.syphon()
    await trio.sleep(100.0)

    # It comes twice, and with the same id: who stopped it couldn't say more.
    assert await lab.primary.ids() == ["m1", "m1"]
    assert await lab.secondary.ids(QUEUE) == []


async def test_a_syphon_that_ends_while_it_sends_loses_nothing(lab):
    await lab.divert(message())
    lab.primary.fail(Hang(), SEND)
    first = await lab.syphon()
    await trio.sleep(1.0)

    first.cancel()
    lab.primary.heal()
    await lab.syphon()
    await trio.sleep(1.0)  # what it held was given back, so nobody waits for a lock

    assert await lab.primary.ids() == ["m1"]
    assert await lab.secondary.ids(QUEUE) == []


# Several entities


async def test_one_entitys_trouble_doesnt_delay_anothers_messages(lab):
    lab.primary.fail(Hang(), SEND, entity=ORDERS)
    for number in range(150):
        await lab.divert(message(f"o{number}"))
    await lab.divert(message("b"), entity=BILLS)
    await lab.syphon()

    await trio.sleep(60.0)

    assert await lab.primary.ids(BILLS) == ["b"]


async def test_one_entitys_outage_doesnt_delay_anothers_later_messages(lab):
    lab.primary.fail(Refuse(), SEND, entity=ORDERS)
    for number in range(150):
        await lab.divert(message(f"o{number}"))
    await lab.syphon()
    await trio.sleep(100.0)

    await lab.divert(message("b"), entity=BILLS)
    await trio.sleep(10.0)

    assert await lab.primary.ids(BILLS) == ["b"]


async def test_a_held_message_is_given_back_when_the_hold_ends(lab):
    await lab.divert(message("1"), message("2"))
    lab.primary.fail(Refuse(), SEND, times=1)
    await lab.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))

    await trio.sleep(6.0)

    # Long before their locks of a minute run out.
    assert sorted(await lab.primary.ids()) == ["1", "2"]


async def test_a_backlog_outlives_a_long_outage(lab):
    lab.primary.fail(Refuse(), SEND)
    for number in range(5):
        await lab.divert(message(f"{number}"))
    await lab.syphon()

    await trio.sleep(3600.0)
    lab.primary.heal()
    await trio.sleep(120.0)

    assert sorted(await lab.primary.ids()) == ["0", "1", "2", "3", "4"]


# What is restored


@pytest.mark.parametrize("session", [None, "s1"])
@pytest.mark.parametrize("life", [None, 600.0])
@pytest.mark.parametrize("due", [None, 60.0])
async def test_session_schedule_and_time_to_live_come_back(lab, session, life, due):
    sent = message(
        session_id=session,
        time_to_live=None if life is None else timedelta(seconds=life),
        scheduled=None if due is None else lab.after(due),
        properties={"number": 1},
        subject="label",
    )
    await lab.divert(sent)
    diverted_at = trio.current_time()
    await lab.syphon()
    await trio.sleep(1.0)

    found = (await lab.primary.messages())[0]

    assert found.properties.keys().isdisjoint(RESERVED)
    assert attrs.evolve(found, time_to_live=None) == attrs.evolve(sent, time_to_live=None)
    if life is None:
        assert found.time_to_live is None
    else:
        spent = lab.primary.times(SEND)[0] - diverted_at if due is None else 0.0
        assert found.time_to_live == timedelta(seconds=life - spent)


async def test_time_to_live_runs_on_in_the_backlog(lab):
    await lab.divert(message(time_to_live=timedelta(seconds=100)))
    await trio.sleep(40.0)
    await lab.syphon()

    await trio.sleep(1.0)

    assert (await lab.primary.messages())[0].time_to_live == timedelta(seconds=60)


async def test_time_to_live_may_begin_anew_as_with_the_legacy_client(lab):
    await lab.divert(message(time_to_live=timedelta(seconds=100)))
    await trio.sleep(400.0)
    await lab.syphon(backlog_ttl=BacklogTimeToLive.RESTART)

    await trio.sleep(1.0)

    assert (await lab.primary.messages())[0].time_to_live == timedelta(seconds=100)


async def test_an_expired_message_is_parked_with_its_reason(lab):
    await lab.divert(message(time_to_live=timedelta(seconds=100)))
    await trio.sleep(100.0)
    await lab.syphon()

    await trio.sleep(1.0)

    assert await lab.primary.ids() == []
    assert await parked(lab) == [("m1", "TTLExpiredException")]


async def test_beside_an_expired_message_the_others_are_moved_at_once(lab):
    await lab.divert(message("1", time_to_live=timedelta(seconds=100)))
    await lab.divert(message("2"))
    await trio.sleep(100.0)
    await lab.syphon()

    await trio.sleep(1.0)

    assert await lab.primary.ids() == ["2"]
    assert len(lab.secondary.times(SETTLE)) == 2  # parked and completed, none was given back


async def test_a_message_that_expires_while_it_waits_its_turn_is_parked(lab):
    await lab.divert(message("1"))
    await lab.divert(message("2", time_to_live=timedelta(seconds=30)))
    lab.primary.fail(Refuse(), SEND, times=1)
    await lab.syphon(
        retry=Backoff(first=1.0, cap=1.0, jitter=0.0), max_drain_rate=1 / 60
    )  # one a minute

    await trio.sleep(200.0)

    assert await lab.primary.ids() == ["1"]
    assert await parked(lab) == [("2", "TTLExpiredException")]


async def test_a_schedule_in_the_past_is_due_at_once(lab):
    await lab.divert(message(scheduled=lab.after(5.0)))
    await trio.sleep(60.0)
    await lab.syphon()
    await trio.sleep(1.0)

    async with lab.primary.store.open_receiver(ORDERS) as receiver:
        with trio.fail_after(1.0):
            received = await receiver.receive(1)

    assert [delivery.message.message_id for delivery in received] == ["m1"]


async def test_the_legacy_clients_time_to_live_runs_from_when_it_was_diverted(lab):
    await lab.divert(
        message("1", time_to_live=timedelta(seconds=100)), envelope=envelope(origin="x")
    )
    await strip(lab)
    await trio.sleep(30.0)
    await lab.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    left = (await lab.primary.messages())[0].time_to_live
    assert left is not None
    assert timedelta(seconds=68) < left <= timedelta(seconds=70)


async def test_a_legacy_time_to_live_past_the_end_of_the_calendar_is_no_limit_of_ours(lab):
    forever = timedelta(days=10_675_199)
    await lab.divert(message(time_to_live=forever))
    await strip(lab)
    await lab.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    assert (await lab.primary.messages())[0].time_to_live == forever


async def test_our_time_to_live_past_the_end_of_the_calendar_is_kept(lab):
    forever = timedelta(days=10_675_199)
    await lab.divert(message(time_to_live=forever))
    await lab.syphon()

    await trio.sleep(1.0)

    assert (await lab.primary.messages())[0].time_to_live == forever


async def strip(lab):
    """Make what is on the backlog what a legacy client would have written."""
    messages = await lab.secondary.messages(QUEUE)
    await lab.secondary.empty(QUEUE)
    legacy = [
        attrs.evolve(
            each, properties={k: v for k, v in each.properties.items() if "pairgate" not in k}
        )
        for each in messages
    ]
    await lab.secondary.store.send(QUEUE, legacy)


# What can never be moved


@pytest.mark.parametrize("error", FAULTS)
async def test_a_message_that_the_primary_can_never_take_is_parked_with_reason_and_origin(
    lab, error
):
    await lab.divert(message())
    lab.primary.fail(refuse(error, "it says why"), SEND)
    await lab.syphon()

    await trio.sleep(5.0)

    assert await parked(lab) == [("m1", error.__name__)]
    text = (await lab.secondary.messages(QUEUE.dead_letter))[0].properties[DEAD_LETTER_DESCRIPTION]
    assert text == "it says why (diverted by gateway-1)"
    assert [event.message_id for event in lab.events.of(Parked)] == ["m1"]


@pytest.mark.parametrize("count", [2, 5])
async def test_only_the_message_at_fault_of_a_batch_is_parked(lab, count):
    await lab.primary.store.create_queue(
        small := EntityPath("small"), QueueProperties(max_message_size=500)
    )
    for number in range(count):
        body = bytes(600 if number == 1 else 1)
        await lab.divert(attrs.evolve(message(f"{number}"), body=body), entity=small)
    await lab.syphon()

    await trio.sleep(5.0)

    assert await lab.primary.ids(small) == ["0", "2", "3", "4"][: count - 1]
    assert await parked(lab) == [("1", "MessageTooLarge")]


async def test_the_reason_of_a_parked_message_isnt_longer_than_a_reason_may_be(lab):
    await lab.divert(message())
    lab.primary.fail(refuse(InvalidRequest, "why " * 10_000), SEND)
    await lab.syphon()

    await trio.sleep(1.0)

    [event] = lab.events.of(Parked)
    assert len(event.description) == MAX_REASON_LENGTH


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
async def test_a_message_is_parked_only_when_the_backlog_says_so(lab, fault):
    await lab.divert(message())
    lab.primary.fail(refuse(InvalidRequest, "no"), SEND)
    lab.secondary.fail(fault, SETTLE, times=1)
    await lab.syphon()

    await trio.sleep(15.0)
    before = lab.events.of(Parked)
    await trio.sleep(100.0)

    assert before == []
    assert len(lab.events.of(Parked)) == 1
    assert await parked(lab) == [("m1", "InvalidRequest")]


async def test_a_message_that_cant_be_parked_now_is_told(lab):
    await lab.divert(message())
    lab.primary.fail(refuse(InvalidRequest, "no"), SEND)
    lab.secondary.fail(refuse(Unavailable, "the backlog is out"), SETTLE, times=1)
    await lab.syphon()

    await trio.sleep(1.0)

    assert [event.reason for event in lab.events.of(SyphonFailed)] == ["the backlog is out"]


async def test_without_a_grace_an_entity_that_is_gone_isnt_waited_for(lab):
    await lab.divert(message())
    lab.primary.fail(refuse(EntityNotFound, "gone"), SEND)
    await lab.syphon(gone_grace=0.0)

    await trio.sleep(1.0)

    assert lab.primary.sends() == 1
    assert await parked(lab) == [("m1", "EntityNotFound")]


@pytest.mark.parametrize("error", [EntityNotFound, EntityDisabled])
async def test_an_entity_that_is_gone_is_waited_for_and_then_its_messages_are_parked(lab, error):
    await lab.divert(message())
    lab.primary.fail(refuse(error, "gone"), SEND)
    await lab.syphon(gone_grace=600.0)

    await trio.sleep(590.0)
    before = await parked(lab)
    await trio.sleep(100.0)

    assert before == []
    assert await parked(lab) == [("m1", error.__name__)]


async def test_an_entity_that_is_gone_once_more_has_a_grace_once_more(lab):
    """It was there meanwhile, and the syphon had nothing for it."""
    await lab.divert(message("m1"))
    lab.primary.fail(refuse(EntityNotFound, "gone"), SEND)
    await lab.syphon(gone_grace=600.0)
    await trio.sleep(700.0)
    lab.primary.heal()
    await trio.sleep(4000.0)

    lab.primary.fail(refuse(EntityDisabled, "off"), SEND)
    await lab.divert(message("m2"))
    await trio.sleep(590.0)
    lab.primary.heal()
    await trio.sleep(60.0)

    assert await parked(lab) == [("m1", "EntityNotFound")]
    assert await lab.primary.ids() == ["m2"]


async def test_an_entity_that_comes_back_within_the_grace_gets_its_messages(lab):
    await lab.divert(message(), entity=EntityPath("later"))
    await lab.syphon(gone_grace=3600.0)
    await trio.sleep(1800.0)

    await lab.primary.store.create_queue(EntityPath("later"), QueueProperties())
    await trio.sleep(100.0)

    assert await lab.primary.ids(EntityPath("later")) == ["m1"]


# Pace and locks


async def test_the_largest_drain_rate_is_kept(lab):
    for number in range(20):
        await lab.divert(message(f"{number}"))
    await lab.syphon(max_drain_rate=2.0, batch=1)

    await trio.sleep(5.0)
    half = len(await lab.primary.ids())
    await trio.sleep(6.0)

    assert 9 <= half <= 11
    assert len(await lab.primary.ids()) == 20


@pytest.mark.parametrize(("rate", "sizes"), [(2.5, [2] * 4), (0.5, [1] * 2), (1000.0, [20])])
async def test_no_more_than_a_seconds_worth_goes_at_once(lab, rate, sizes):
    await lab.divert(*(message(f"{number}") for number in range(20)))
    await lab.syphon(max_drain_rate=rate)

    await trio.sleep(3.0)

    calls = [len(call.messages) for call in lab.primary.calls if call.operation is SEND]
    assert calls == sizes


async def test_after_a_failure_it_begins_gently(lab):
    for number in range(40):
        await lab.divert(message(f"{number}"))
    lab.primary.fail(Refuse(), SEND, times=1)
    await lab.syphon(retry=Backoff(first=1.0, cap=1.0, jitter=0.0))

    await trio.sleep(120.0)

    sizes = [len(call.messages) for call in lab.primary.calls if call.operation is SEND]
    assert sizes[:3] == [40, 1, 2]
    assert all(later <= 4 * earlier for earlier, later in pairwise(sizes))
    assert len(set(await lab.primary.ids())) == 40


async def test_locks_are_renewed_while_a_slow_primary_takes_its_time(lab):
    await lab.divert(message())
    lab.primary.fail(Slow(100.0), SEND)
    started = trio.current_time()
    await lab.syphon(attempt_timeout=50.0)

    await trio.sleep(101.0)

    assert lab.primary.sends() == 1
    assert await lab.secondary.ids(QUEUE) == []
    # A third of a minute between two, not a shower of them when the first lock would have ended.
    renewed = [round(at - started) for at in lab.secondary.times(RENEW)]
    assert renewed == [20, 40, 60, 80, 100]


async def test_a_lock_that_cant_be_renewed_isnt_renewed_for_ever(lab):
    await lab.divert(message())
    lab.primary.fail(Slow(280.0), SEND)
    lab.secondary.fail(Refuse(), RENEW)
    await lab.syphon(attempt_timeout=100.0)

    await trio.sleep(290.0)

    assert len(lab.secondary.times(RENEW)) < 60
    told = [event for event in lab.events.of(SyphonFailed) if event.reason == "refused"]
    assert len(told) == len(lab.secondary.times(RENEW))


async def test_what_comes_again_while_it_is_sent_is_sent_once_and_settled_by_its_new_lock(lab):
    short = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=5))
    await lab.secondary.store.update_queue(QUEUE, short)
    await lab.divert(message("1"))
    await lab.syphon(attempt_timeout=10.0)
    await trio.sleep(1.0)  # once all went well, another batch is taken while one is on its way
    lab.secondary.fail(Refuse(), RENEW)
    lab.primary.fail(Slow(8.0), SEND)
    await lab.divert(message("2"))

    await trio.sleep(7.0)
    [again] = await lab.secondary.deliveries(QUEUE)
    await trio.sleep(2.0)

    assert again.delivery_count == 2
    assert lab.primary.sends() == 2
    assert len(lab.secondary.times(SETTLE)) == 2
    assert await lab.primary.ids() == ["1", "2"]
    assert await lab.secondary.ids(QUEUE) == []


@pytest.mark.parametrize("error", [None, Unavailable, InvalidRequest])
async def test_what_is_moved_or_parked_or_rests_is_in_hand_no_more(lab, error):
    await lab.divert(message())
    if error is not None:
        lab.primary.fail(refuse(error, "no"), SEND)

    async with lab.secondary.broker.open_receiver(QUEUE) as receiver:
        mover = lab.make_syphon()._drain(QUEUE, Progress(None))._mover(receiver)
        [delivery] = await receiver.receive(1)
        unwrapped = envelope().unwrap(delivery.message)
        cargo = Cargo(copy=(QUEUE.key, 1, "id"), delivery=delivery, unwrapped=unwrapped)
        first, twice = mover.take(cargo), mover.take(attrs.evolve(cargo))
        await mover.move(ORDERS, [cargo])
        later = mover.take(attrs.evolve(cargo))

    assert (first, twice, later) == (True, False, True)


@pytest.mark.parametrize(
    ("locks", "seconds"),
    [
        ([], 60.0),
        ([None], 60.0),
        ([90.0], 60.0),  # perhaps the clocks differ
        ([45.0, 30.0], 30.0),
        ([None, 45.0], 45.0),
        ([-5.0, 45.0], 45.0),  # the first is lost
        ([0.1], 0.3),
    ],
)
async def test_locks_are_renewed_in_time_for_the_first_that_ends(lab, locks, seconds):
    mover = lab.make_syphon()._drain(QUEUE, Progress(None))._mover(None)
    await lab.divert(message())
    [delivery] = await lab.secondary.deliveries(QUEUE)
    unwrapped = envelope().unwrap(delivery.message)
    in_hand = [
        Cargo(
            copy=(QUEUE.key, number, "id"),
            delivery=attrs.evolve(delivery, locked_until=None if lock is None else lab.after(lock)),
            unwrapped=unwrapped,
        )
        for number, lock in enumerate(locks)
    ]

    assert mover._lock_left(in_hand) == pytest.approx(seconds)
