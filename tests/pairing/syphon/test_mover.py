"""The mover brings backlog messages home: one syphon and one backlog queue at a time."""

from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.copies import CopyStep
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope_fields import RESERVED
from gateway.domain.errors import (
    Busy,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    OutcomeUnknown,
    PartlyAccepted,
    QuotaExceeded,
    SessionRequired,
    Unavailable,
)
from gateway.domain.events.gateway import DeadLettered, SyphonBackedOff, Syphoned, SyphonFailed
from gateway.domain.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, MAX_REASON_LENGTH
from gateway.pairing.options import BacklogTimeToLive
from gateway.pairing.syphon.backlog_message import BacklogMessage, BacklogQueueInfo
from gateway.pairing.syphon.mover import lock_left
from gateway.pairing.syphon.slow_start import EACH, SLOW
from tests.harness.clocks import VirtualClock
from tests.harness.faults import (
    FaultyManyReceiver,
    FaultyReceiver,
    Hang,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    busy,
)
from tests.harness.retained import entries
from tests.pairing.harness import (
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
PROBE = Operation.PROBE
TRANSIENT = [Unavailable, NotAuthorized, QuotaExceeded]
FAULTS = [MessageTooLarge, InvalidRequest, SessionRequired]


async def dead_lettered(harness):
    """Ids and reasons in the dead-letter queue of the backlog queue."""
    messages = await harness.secondary.messages(QUEUE.dead_letter)
    return [(each.message_id, each.properties[DEAD_LETTER_REASON]) for each in messages]


# The one order


async def test_messages_move_to_their_entities(harness):
    await harness.divert(message("1"), message("2"))
    await harness.divert(message("3"), entity=BILLS)
    await harness.syphon()

    await trio.sleep(1.0)

    assert await harness.primary.ids(ORDERS) == ["1", "2"]
    assert await harness.primary.ids(BILLS) == ["3"]
    assert await harness.secondary.ids(QUEUE) == []
    moved = {(event.entity, event.messages) for event in harness.events.of(Syphoned)}
    assert moved == {(ORDERS, 2), (BILLS, 1)}


async def test_a_message_is_completed_only_after_the_primary_took_it(harness):
    await harness.divert(message())
    harness.primary.fail(Slow(5.0), SEND)
    await harness.syphon()

    await trio.sleep(4.9)
    settled_before = harness.secondary.times(SETTLE)
    await trio.sleep(1.0)

    assert settled_before == []
    assert await harness.secondary.ids(QUEUE) == []


@pytest.mark.parametrize("error", TRANSIENT)
async def test_a_message_whose_error_may_pass_is_kept_and_tried_again(harness, error):
    await harness.divert(message())
    harness.primary.fail(refuse(error, "not now"), SEND)
    await harness.syphon()
    await trio.sleep(600.0)
    kept = await harness.secondary.ids(QUEUE)
    harness.primary.heal()

    await trio.sleep(100.0)

    assert kept == ["m1"]
    assert await dead_lettered(harness) == []
    assert await harness.primary.ids() == ["m1"]


class TakesSomeOnly:
    """A namespace that takes every other message of a batch, and says which."""

    def __init__(self, inner, error):
        self.inner, self.error, self.sent = inner, error, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def send(self, entity, messages):
        whole = self.error is None or len(messages) == 1
        taken = messages if whole else messages[::2]
        self.sent += [each.message_id for each in taken]
        await self.inner.send(entity, taken)
        if not whole:
            error, self.error = self.error, None
            raise PartlyAccepted("some", taken, error)


# ActiveMQ Artemis 2.40 with a full address (FAIL): 769 messages came home with 368 copies, since a
# batch of which it took a part was sent again as a whole.
@pytest.mark.parametrize("error", [QuotaExceeded("full"), OutcomeUnknown("lost")])
async def test_messages_that_the_primary_took_of_a_batch_are_not_sent_again(harness, error):
    for number in range(9):
        await harness.divert(message(f"{number}"))
    harness.primary.broker = primary = TakesSomeOnly(harness.primary.broker, error)
    await harness.syphon()

    await trio.sleep(600.0)

    assert sorted(primary.sent) == [f"{number}" for number in range(9)]
    assert await harness.secondary.ids(QUEUE) == []
    moved = sum(event.messages for event in harness.events.of(Syphoned))
    assert moved == 9
    [backed_off] = harness.events.of(SyphonBackedOff)
    assert (backed_off.in_doubt > 0) is isinstance(error, OutcomeUnknown)


async def test_a_message_at_fault_in_a_part_is_found(harness):
    for number in range(4):
        await harness.divert(message(f"{number}"))
    error = MessageTooLarge("too large")
    harness.primary.broker = primary = TakesSomeOnly(harness.primary.broker, error)
    await harness.syphon()

    await trio.sleep(5.0)

    assert sorted(primary.sent) == ["0", "1", "2", "3"]
    assert await dead_lettered(harness) == []


async def test_a_busy_primary_is_left_alone_for_the_pause(harness):
    await harness.divert(message())
    harness.primary.fail(busy(15.0), SEND, times=1)
    await harness.syphon()

    await trio.sleep(60.0)

    first, second = harness.primary.times(SEND)
    assert second - first >= 15.0
    assert await harness.primary.ids() == ["m1"]


async def test_an_entity_is_suspended_as_long_as_the_back_off_says_and_no_longer(harness):
    await harness.divert(message())
    harness.primary.fail(Refuse(), SEND)
    await harness.syphon(retry=Backoff(first=0.25, cap=0.25, jitter=0.0))

    first = await harness.events.first(SyphonBackedOff)

    assert first.seconds == 0.25


# Unknown outcomes


async def test_an_entity_backs_off_longer_after_each_unknown_outcome(harness):
    await harness.divert(message())
    harness.primary.fail(Reset(), SEND)
    await harness.syphon(unknown_retry=Backoff(first=1.0, cap=300.0, jitter=0.0))

    await trio.sleep(400.0)

    assert [event.seconds for event in harness.events.of(SyphonBackedOff)][:6] == [
        1,
        2,
        4,
        8,
        16,
        32,
    ]
    assert await harness.secondary.ids(QUEUE) == ["m1"]


async def test_a_backoff_is_capped_and_ends_with_the_first_success(harness):
    await harness.divert(message())
    harness.primary.fail(Reset(), SEND)
    await harness.syphon(unknown_retry=Backoff(first=1.0, cap=20.0, jitter=0.0))
    await trio.sleep(300.0)
    longest = max(event.seconds for event in harness.events.of(SyphonBackedOff))
    harness.primary.heal()
    await trio.sleep(90.0)
    assert await harness.primary.ids() == ["m1"]
    harness.events.all.clear()
    harness.primary.fail(Reset(), SEND, times=1)

    await harness.divert(message("m2"))
    await trio.sleep(30.0)

    assert longest == 20.0
    assert [event.seconds for event in harness.events.of(SyphonBackedOff)] == [1.0]


async def test_a_slow_send_that_turns_out_done_is_completed_and_not_sent_again(harness):
    await harness.divert(message())
    harness.primary.fail(Slow(15.0), SEND)
    await harness.syphon(attempt_timeout=10.0)

    await trio.sleep(12.0)
    backoffs = harness.events.of(SyphonBackedOff)
    await trio.sleep(300.0)

    assert len(backoffs) == 1
    assert harness.primary.sends() == 1
    assert await harness.primary.ids() == ["m1"]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_send_without_an_answer_is_given_up_and_made_again(harness):
    await harness.divert(message())
    harness.primary.fail(Hang(), SEND, times=1)
    await harness.syphon(attempt_timeout=10.0)

    await trio.sleep(120.0)

    assert await harness.primary.ids() == ["m1"]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_send_is_given_up_after_three_attempt_time_outs(harness):
    await harness.divert(message())
    harness.primary.fail(Hang(), SEND, times=1)
    started = trio.current_time()
    await harness.syphon(
        attempt_timeout=10.0, unknown_retry=Backoff(first=1.0, cap=300.0, jitter=0.0)
    )

    await trio.sleep(60.0)

    # A late answer that then never comes is a single failure, with a single backoff.
    assert [at - started for at in harness.primary.times(SEND)] == pytest.approx([0.0, 31.0])


async def test_a_suspended_message_isnt_given_back_for_a_moment_when_a_send_is_given_up(harness):
    """A released message would stand before all messages that the drain hasn't received yet."""
    await harness.divert(message("1"))
    await harness.divert(message("2"))
    harness.primary.fail(Hang(), SEND)
    backoff = Backoff(first=5.0, cap=300.0, jitter=0.0)
    await harness.syphon(batch=1, attempt_timeout=10.0, unknown_retry=backoff)

    await trio.sleep(34.9)
    assert harness.secondary.times(SETTLE) == []

    await trio.sleep(0.2)
    assert len(harness.secondary.times(SETTLE)) == 1  # the first, which tries the entity


async def test_while_a_send_has_no_answer_its_entity_gets_no_other(harness):
    await harness.divert(message("1"))
    harness.primary.fail(Hang(), SEND)
    await harness.syphon(attempt_timeout=10.0)
    await trio.sleep(25.0)

    await harness.divert(message("2"))
    await trio.sleep(4.0)

    assert harness.primary.sends() == 1


async def test_a_lost_complete_is_made_good_and_the_message_isnt_sent_again(harness):
    await harness.divert(message())
    harness.secondary.fail(refuse(Unavailable, "lost"), SETTLE, times=1)
    await harness.syphon()

    await trio.sleep(200.0)

    assert harness.primary.sends() == 1
    assert await harness.secondary.ids(QUEUE) == []
    assert len(harness.events.of(SyphonFailed)) == 1


async def test_a_complete_that_hangs_is_made_good_too(harness):
    await harness.divert(message())
    harness.secondary.fail(Hang(), SETTLE, times=1)
    await harness.syphon()

    await trio.sleep(200.0)

    assert harness.primary.sends() == 1
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_complete_whose_answer_is_lost_is_done(harness):
    await harness.divert(message())
    harness.secondary.fail(LoseAnswer(), SETTLE, times=1)
    await harness.syphon()

    await trio.sleep(200.0)

    assert harness.primary.sends() == 1
    assert await harness.secondary.ids(QUEUE) == []


def memory_of(syphon):
    """The entries but for those of the depth's model, which keeps its readings for a while."""
    return entries(syphon) - entries(syphon.model)


@pytest.fixture(params=["one by one", "together"])
def settling(request, harness):
    """The backlog's receiver settles several deliveries separately, or together."""
    if request.param == "one by one":
        harness.secondary.broker.receiver = FaultyReceiver


@pytest.mark.usefixtures("settling")
async def test_a_completed_message_needs_no_memory(harness):
    syphon = harness.make_syphon()
    await harness.nursery.start(syphon.run)
    await harness.divert(message("0"))  # its entity is remembered, for probes
    await trio.sleep(1.0)
    idle = memory_of(syphon)

    await harness.divert(message("1"), message("2"))
    await trio.sleep(1.0)

    assert await harness.primary.ids() == ["0", "1", "2"]
    assert await harness.secondary.ids(QUEUE) == []
    assert memory_of(syphon) == idle


@pytest.mark.usefixtures("settling")
async def test_a_message_that_cant_be_completed_is_remembered_for_as_long(harness):
    syphon = harness.make_syphon()
    await harness.nursery.start(syphon.run)
    await harness.divert(message("0"))  # its entity is remembered, for probes
    await trio.sleep(1.0)
    idle, before = memory_of(syphon), harness.primary.sends()
    harness.secondary.fail(refuse(Unavailable, "lost"), SETTLE, times=2)
    await harness.divert(message("1"), message("2"), message("3"))
    await trio.sleep(1.0)
    remembered = memory_of(syphon) - idle

    await trio.sleep(100.0)

    assert remembered == 2
    assert memory_of(syphon) == idle
    assert harness.primary.sends() == before + 1


async def test_completions_that_fail_together_are_told_once_and_made_good(harness):
    class Failing(FaultyManyReceiver):
        failed = False

        async def settle_many(self, settlements):
            if not self.failed:
                self.failed = True
                await trio.lowlevel.checkpoint()
                raise Unavailable("lost")
            return await super().settle_many(settlements)

    harness.secondary.broker.receiver = Failing
    await harness.divert(message("1"), message("2"))
    await harness.syphon()

    await trio.sleep(100.0)

    assert [event.reason for event in harness.events.of(SyphonFailed)] == ["lost"]
    assert harness.primary.sends() == 1
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_syphon_that_ends_between_accept_and_complete_loses_nothing(harness):
    await harness.divert(message())
    harness.secondary.fail(Hang(), SETTLE)
    first = await harness.syphon()
    await trio.sleep(1.0)
    assert await harness.primary.ids() == ["m1"]

    first.cancel()
    harness.secondary.heal()
    await harness.syphon()
    await trio.sleep(100.0)

    # The message comes twice, with the same id: the first syphon couldn't complete its copy.
    assert await harness.primary.ids() == ["m1", "m1"]
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_syphon_that_ends_while_it_sends_loses_nothing(harness):
    await harness.divert(message())
    harness.primary.fail(Hang(), SEND)
    first = await harness.syphon()
    await trio.sleep(1.0)

    first.cancel()
    harness.primary.heal()
    await harness.syphon()
    await trio.sleep(1.0)  # the killed syphon's locks were released, so no receiver waits for one

    assert await harness.primary.ids() == ["m1"]
    assert await harness.secondary.ids(QUEUE) == []


# Several entities


async def test_one_entitys_trouble_doesnt_delay_anothers_messages(harness):
    harness.primary.fail(Hang(), SEND, entity=ORDERS)
    for number in range(150):
        await harness.divert(message(f"o{number}"))
    await harness.divert(message("b"), entity=BILLS)
    await harness.syphon()

    await trio.sleep(60.0)

    assert await harness.primary.ids(BILLS) == ["b"]


async def test_one_entitys_outage_doesnt_delay_anothers_later_messages(harness):
    harness.primary.fail(Refuse(), SEND, entity=ORDERS)
    for number in range(150):
        await harness.divert(message(f"o{number}"))
    await harness.syphon()
    await trio.sleep(100.0)

    await harness.divert(message("b"), entity=BILLS)
    await trio.sleep(10.0)

    assert await harness.primary.ids(BILLS) == ["b"]


async def test_a_suspended_message_is_given_back_when_the_backoff_ends(harness):
    await harness.divert(message("1"), message("2"))
    harness.primary.fail(Refuse(), SEND, times=1)
    await harness.syphon(retry=Backoff(first=5.0, cap=5.0, jitter=0.0))

    await trio.sleep(6.0)

    # Long before their locks of a minute run out.
    assert sorted(await harness.primary.ids()) == ["1", "2"]


async def test_a_backlog_outlives_a_long_outage(harness):
    harness.primary.fail(Refuse(), SEND)
    for number in range(5):
        await harness.divert(message(f"{number}"))
    await harness.syphon()

    await trio.sleep(3600.0)
    harness.primary.heal()
    await trio.sleep(120.0)

    assert sorted(await harness.primary.ids()) == ["0", "1", "2", "3", "4"]


# Properties that are restored


@pytest.mark.parametrize("session", [None, "s1"])
@pytest.mark.parametrize("life", [None, 600.0])
@pytest.mark.parametrize("due", [None, 60.0])
async def test_session_schedule_and_time_to_live_come_back(harness, session, life, due):
    sent = message(
        session_id=session,
        time_to_live=None if life is None else timedelta(seconds=life),
        scheduled=None if due is None else harness.after(due),
        properties={"number": 1},
        subject="label",
    )
    await harness.divert(sent)
    diverted_at = trio.current_time()
    await harness.syphon()
    await trio.sleep(1.0)

    found = (await harness.primary.messages())[0]

    assert found.properties.keys().isdisjoint(RESERVED)
    assert attrs.evolve(found, time_to_live=None) == attrs.evolve(sent, time_to_live=None)
    if life is None:
        assert found.time_to_live is None
    else:
        spent = harness.primary.times(SEND)[0] - diverted_at if due is None else 0.0
        assert found.time_to_live == timedelta(seconds=life - spent)


async def test_time_to_live_runs_on_in_the_backlog(harness):
    await harness.divert(message(time_to_live=timedelta(seconds=100)))
    await trio.sleep(40.0)
    await harness.syphon()

    await trio.sleep(1.0)

    assert (await harness.primary.messages())[0].time_to_live == timedelta(seconds=60)


async def test_time_to_live_may_begin_anew_as_with_the_legacy_client(harness):
    await harness.divert(message(time_to_live=timedelta(seconds=100)))
    await trio.sleep(400.0)
    await harness.syphon(backlog_ttl=BacklogTimeToLive.RESTART)

    await trio.sleep(1.0)

    assert (await harness.primary.messages())[0].time_to_live == timedelta(seconds=100)


async def test_an_expired_message_is_dead_lettered_with_its_reason(harness):
    await harness.divert(message(time_to_live=timedelta(seconds=100)))
    await trio.sleep(100.0)
    await harness.syphon()

    await trio.sleep(1.0)

    assert await harness.primary.ids() == []
    assert await dead_lettered(harness) == [("m1", "TTLExpiredException")]


async def test_beside_an_expired_message_the_others_are_moved_at_once(harness):
    await harness.divert(message("1", time_to_live=timedelta(seconds=100)))
    await harness.divert(message("2"))
    await trio.sleep(100.0)
    await harness.syphon()

    await trio.sleep(1.0)

    assert await harness.primary.ids() == ["2"]
    assert len(harness.secondary.times(SETTLE)) == 2  # dead-lettered, completed


async def test_a_message_that_expires_while_it_waits_its_turn_is_dead_lettered(harness):
    await harness.divert(message("1"))
    await harness.divert(message("2", time_to_live=timedelta(seconds=30)))
    harness.primary.fail(Refuse(), SEND, times=1)
    await harness.syphon(
        retry=Backoff(first=1.0, cap=1.0, jitter=0.0), max_drain_rate=1 / 60
    )  # one attempt a minute

    await trio.sleep(200.0)

    assert await harness.primary.ids() == ["1"]
    assert await dead_lettered(harness) == [("2", "TTLExpiredException")]


async def test_a_schedule_in_the_past_is_due_at_once(harness):
    await harness.divert(message(scheduled=harness.after(5.0)))
    await trio.sleep(60.0)
    await harness.syphon()
    await trio.sleep(1.0)

    async with harness.primary.store.open_receiver(ORDERS) as receiver:
        with trio.fail_after(1.0):
            received = await receiver.receive(1)

    assert [delivery.message.message_id for delivery in received] == ["m1"]


async def test_the_legacy_clients_time_to_live_runs_from_when_it_was_diverted(harness):
    await harness.divert(
        message("1", time_to_live=timedelta(seconds=100)), envelope=envelope(origin="x")
    )
    await strip(harness)
    await trio.sleep(30.0)
    await harness.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    left = (await harness.primary.messages())[0].time_to_live
    assert left is not None
    assert timedelta(seconds=68) < left <= timedelta(seconds=70)


async def test_a_legacy_time_to_live_past_the_end_of_the_calendar_is_no_limit_of_ours(harness):
    forever = timedelta(days=10_675_199)
    await harness.divert(message(time_to_live=forever))
    await strip(harness)
    await harness.syphon(envelope=envelope(accept_legacy=True))

    await trio.sleep(1.0)

    assert (await harness.primary.messages())[0].time_to_live == forever


async def test_our_time_to_live_past_the_end_of_the_calendar_is_kept(harness):
    forever = timedelta(days=10_675_199)
    await harness.divert(message(time_to_live=forever))
    await harness.syphon()

    await trio.sleep(1.0)

    assert (await harness.primary.messages())[0].time_to_live == forever


async def strip(harness):
    """Rewrite the messages on the backlog as a legacy client would have written them."""
    messages = await harness.secondary.messages(QUEUE)
    await harness.secondary.empty(QUEUE)
    legacy = [
        attrs.evolve(
            each, properties={k: v for k, v in each.properties.items() if "pairgate" not in k}
        )
        for each in messages
    ]
    await harness.secondary.store.send(QUEUE, legacy)


# Messages that can never be moved


@pytest.mark.parametrize("error", FAULTS)
async def test_a_message_that_the_primary_can_never_take_is_dead_lettered_with_reason_and_origin(
    harness, error
):
    await harness.divert(message())
    harness.primary.fail(refuse(error, "it says why"), SEND)
    await harness.syphon()

    await trio.sleep(5.0)

    assert await dead_lettered(harness) == [("m1", error.__name__)]
    text = (await harness.secondary.messages(QUEUE.dead_letter))[0].properties[
        DEAD_LETTER_DESCRIPTION
    ]
    assert text == "it says why (diverted by gateway-1)"
    assert [event.message_id for event in harness.events.of(DeadLettered)] == ["m1"]


@pytest.mark.parametrize("count", [2, 5])
async def test_only_the_message_at_fault_of_a_batch_is_dead_lettered(harness, count):
    await harness.primary.store.create_queue(
        small := EntityPath("small"), QueueProperties(max_message_size=500)
    )
    for number in range(count):
        body = bytes(600 if number == 1 else 1)
        await harness.divert(attrs.evolve(message(f"{number}"), body=body), entity=small)
    await harness.syphon()

    await trio.sleep(5.0)

    assert await harness.primary.ids(small) == ["0", "2", "3", "4"][: count - 1]
    assert await dead_lettered(harness) == [("1", "MessageTooLarge")]


async def test_the_reason_of_a_dead_lettered_message_isnt_longer_than_a_reason_may_be(harness):
    await harness.divert(message())
    harness.primary.fail(refuse(InvalidRequest, "why " * 10_000), SEND)
    await harness.syphon()

    await trio.sleep(1.0)

    [event] = harness.events.of(DeadLettered)
    assert len(event.description) == MAX_REASON_LENGTH


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
async def test_a_message_is_dead_lettered_only_when_the_backlog_says_so(harness, fault):
    await harness.divert(message())
    harness.primary.fail(refuse(InvalidRequest, "no"), SEND)
    harness.secondary.fail(fault, SETTLE, times=1)
    await harness.syphon()

    await trio.sleep(15.0)
    before = harness.events.of(DeadLettered)
    await trio.sleep(100.0)

    assert before == []
    assert len(harness.events.of(DeadLettered)) == 1
    assert await dead_lettered(harness) == [("m1", "InvalidRequest")]


async def test_a_message_that_cant_be_dead_lettered_now_is_told(harness):
    await harness.divert(message())
    harness.primary.fail(refuse(InvalidRequest, "no"), SEND)
    harness.secondary.fail(refuse(Unavailable, "the backlog is out"), SETTLE, times=1)
    await harness.syphon()

    await trio.sleep(1.0)

    assert [event.reason for event in harness.events.of(SyphonFailed)] == ["the backlog is out"]


async def test_without_a_grace_an_entity_that_is_gone_isnt_waited_for(harness):
    await harness.divert(message())
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)
    await harness.syphon(gone_grace=0.0)

    await trio.sleep(1.0)

    assert harness.primary.sends() == 1
    assert await dead_lettered(harness) == [("m1", "EntityNotFound")]


@pytest.mark.parametrize("error", [EntityNotFound, EntityDisabled])
async def test_an_entity_that_is_gone_is_waited_for_and_then_its_messages_are_dead_lettered(
    harness, error
):
    await harness.divert(message())
    harness.primary.fail(refuse(error, "gone"), SEND)
    await harness.syphon(gone_grace=600.0)

    await trio.sleep(590.0)
    before = await dead_lettered(harness)
    await trio.sleep(100.0)

    assert before == []
    assert await dead_lettered(harness) == [("m1", error.__name__)]


async def test_an_entity_that_is_gone_once_more_has_a_grace_once_more(harness):
    """The entity was there in between, while the syphon had no message for it."""
    await harness.divert(message("m1"))
    harness.primary.fail(refuse(EntityNotFound, "gone"), SEND)
    await harness.syphon(gone_grace=600.0)
    await trio.sleep(700.0)
    harness.primary.heal()
    await trio.sleep(4000.0)

    harness.primary.fail(refuse(EntityDisabled, "off"), SEND)
    await harness.divert(message("m2"))
    await trio.sleep(590.0)
    harness.primary.heal()
    await trio.sleep(60.0)

    assert await dead_lettered(harness) == [("m1", "EntityNotFound")]
    assert await harness.primary.ids() == ["m2"]


async def test_an_entity_that_comes_back_within_the_grace_gets_its_messages(harness):
    await harness.divert(message(), entity=EntityPath("later"))
    await harness.syphon(gone_grace=3600.0)
    await trio.sleep(1800.0)

    await harness.primary.store.create_queue(EntityPath("later"), QueueProperties())
    await trio.sleep(100.0)

    assert await harness.primary.ids(EntityPath("later")) == ["m1"]


# Rate limit and locks


async def test_the_largest_drain_rate_is_kept(harness):
    for number in range(20):
        await harness.divert(message(f"{number}"))
    await harness.syphon(max_drain_rate=2.0, batch=1)

    await trio.sleep(5.0)
    half = len(await harness.primary.ids())
    await trio.sleep(6.0)

    assert 9 <= half <= 11
    assert len(await harness.primary.ids()) == 20


@pytest.mark.parametrize(("rate", "sizes"), [(2.5, [2] * 4), (0.5, [1] * 2), (1000.0, [20])])
async def test_no_more_than_a_seconds_worth_goes_at_once(harness, rate, sizes):
    await harness.divert(*(message(f"{number}") for number in range(20)))
    await harness.syphon(max_drain_rate=rate)

    await trio.sleep(3.0)

    calls = [len(call.messages) for call in harness.primary.calls if call.operation is SEND]
    assert calls == sizes


async def test_after_a_failure_it_begins_gently(harness):
    for number in range(40):
        await harness.divert(message(f"{number}"))
    harness.primary.fail(Refuse(), SEND, times=1)
    await harness.syphon(retry=Backoff(first=1.0, cap=1.0, jitter=0.0))

    await trio.sleep(120.0)

    sizes = [len(call.messages) for call in harness.primary.calls if call.operation is SEND]
    assert sizes[:3] == [40, 1, 2]
    assert all(later <= 4 * earlier for earlier, later in pairwise(sizes))
    assert len(set(await harness.primary.ids())) == 40


async def test_locks_are_renewed_while_a_slow_primary_takes_its_time(harness):
    await harness.divert(message())
    harness.primary.fail(Slow(100.0), SEND)
    started = trio.current_time()
    await harness.syphon(attempt_timeout=50.0)

    await trio.sleep(101.0)

    assert harness.primary.sends() == 1
    assert await harness.secondary.ids(QUEUE) == []
    # A third of a minute between two, not a shower of them when the first lock would have ended.
    renewed = [round(at - started) for at in harness.secondary.times(RENEW)]
    assert renewed == [20, 40, 60, 80, 100]


async def test_no_lock_is_lost_that_a_busy_backlog_renews_at_last(harness):
    await harness.divert(*(message(str(number)) for number in range(9)))
    harness.primary.fail(Slow(100.0), SEND)
    harness.secondary.fail(busy(10.0), RENEW)
    await harness.syphon(attempt_timeout=100.0)

    await trio.sleep(55.0)
    while_busy = len(harness.secondary.times(RENEW))
    harness.secondary.heal()
    await trio.sleep(50.0)

    assert len(harness.events.of(SyphonFailed)) == while_busy > 9
    assert await harness.secondary.ids(QUEUE) == []
    assert len(await harness.primary.ids()) == 9
    assert harness.primary.sends() == 1


async def test_a_backlog_that_is_too_busy_to_renew_has_fewer_sends(harness, nursery):
    await harness.divert(message())
    harness.primary.fail(Slow(100.0), SEND)
    harness.secondary.fail(busy(10.0), RENEW)
    async with harness.secondary.broker.open_receiver(QUEUE) as receiver:
        drain = harness.make_drain(attempt_timeout=100.0)
        mover, before = harness.make_mover(drain, receiver), drain.at.backoffs.load.limit
        [delivery] = await receiver.receive(1)
        unwrapped = envelope().unwrap(delivery.message)
        backlog_message = BacklogMessage.of(QUEUE, delivery, unwrapped, trio.current_time())
        mover.claim(backlog_message)
        nursery.start_soon(mover.move, ORDERS, [backlog_message])
        await trio.sleep(10.0)
        nursery.cancel_scope.cancel()

    assert drain.at.backoffs.load.limit < before


async def test_only_the_lock_whose_renewal_failed_is_renewed_again_soon(harness):
    await harness.divert(*(message(str(number)) for number in range(9)))
    harness.primary.fail(Slow(100.0), SEND)
    await harness.syphon(attempt_timeout=100.0)

    await trio.sleep(17.0)
    harness.secondary.fail(Refuse(), RENEW, times=1)
    await trio.sleep(18.0)

    assert len(harness.secondary.times(RENEW)) == 10


async def test_a_lock_that_cant_be_renewed_isnt_renewed_for_ever(harness):
    await harness.divert(message())
    harness.primary.fail(Slow(280.0), SEND)
    harness.secondary.fail(Refuse(), RENEW)
    await harness.syphon(attempt_timeout=100.0)

    await trio.sleep(290.0)

    assert len(harness.secondary.times(RENEW)) < 60
    told = [event for event in harness.events.of(SyphonFailed) if event.reason == "refused"]
    assert len(told) == len(harness.secondary.times(RENEW))


async def test_a_message_that_comes_again_while_it_is_sent_is_sent_once_and_settled_by_its_new_lock(
    harness,
):
    short = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=5))
    await harness.secondary.store.update_queue(QUEUE, short)
    await harness.divert(message("1"))
    await harness.syphon(attempt_timeout=10.0)
    await trio.sleep(1.0)  # once all went well, another batch is taken while one is on its way
    harness.secondary.fail(Refuse(), RENEW)
    harness.primary.fail(Slow(8.0), SEND)
    await harness.divert(message("2"))

    await trio.sleep(7.0)
    [again] = await harness.secondary.deliveries(QUEUE)
    await trio.sleep(2.0)

    assert again.delivery_count == 2
    assert harness.primary.sends() == 2
    assert len(harness.secondary.times(SETTLE)) == 2
    assert await harness.primary.ids() == ["1", "2"]
    assert await harness.secondary.ids(QUEUE) == []


@pytest.mark.parametrize("error", [None, Unavailable, InvalidRequest])
async def test_a_moved_dead_lettered_or_suspended_message_is_claimed_no_more(harness, error):
    await harness.divert(message())
    if error is not None:
        harness.primary.fail(refuse(error, "no"), SEND)

    async with harness.secondary.broker.open_receiver(QUEUE) as receiver:
        mover = harness.make_mover(harness.make_drain(), receiver)
        [delivery] = await receiver.receive(1)
        unwrapped = envelope().unwrap(delivery.message)
        backlog_messages = BacklogMessage.of(QUEUE, delivery, unwrapped, trio.current_time())
        first, twice = mover.claim(backlog_messages), mover.claim(attrs.evolve(backlog_messages))
        await mover.move(ORDERS, [backlog_messages])
        later = mover.claim(attrs.evolve(backlog_messages))

    assert (first, twice, later) == (CopyStep.MOVE, CopyStep.KEEP, CopyStep.MOVE)


@pytest.mark.parametrize("ahead", [-7200.0, 0.0, 7200.0])
async def test_a_short_lock_is_renewed_in_time_whatever_the_clock_says(harness, ahead):
    short = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=timedelta(seconds=15))
    await harness.secondary.store.update_queue(QUEUE, short)
    await harness.divert(message())
    harness.primary.fail(Slow(52.0), SEND)
    syphon = harness.make_syphon(attempt_timeout=40.0)
    syphon.clock = VirtualClock(skew=timedelta(seconds=ahead))
    await harness.nursery.start(syphon.run)

    await trio.sleep(53.0)

    assert harness.primary.sends() == 1
    assert await harness.secondary.ids(QUEUE) == []
    assert harness.events.of(SyphonFailed) == []


@pytest.mark.parametrize(
    ("told", "locks", "seconds"),
    [
        (60, [], 60.0),
        (60, [None], 60.0),
        (60, [90.0], 60.0),  # perhaps the clocks differ
        (60, [45.0, 30.0], 30.0),
        (60, [None, 45.0], 45.0),
        (60, [-5.0, 45.0], 45.0),  # the first is lost
        (60, [0.0, 45.0], 45.0),
        (60, [0.1], 0.3),
        (15, [90.0], 15.0),
        (300, [300.0], 300.0),
        (None, [60.0], 15.0),  # as short as a backlog queue's may be
    ],
)
async def test_locks_are_renewed_in_time_for_the_first_that_ends(harness, told, locks, seconds):
    info = BacklogQueueInfo(lock_duration=None if told is None else timedelta(seconds=told))
    await harness.divert(message())
    [delivery] = await harness.secondary.deliveries(QUEUE)
    unwrapped = envelope().unwrap(delivery.message)
    claimed = [
        BacklogMessage.of(
            QUEUE,
            attrs.evolve(delivery, locked_until=None if lock is None else harness.after(lock)),
            unwrapped,
            trio.current_time(),
        )
        for lock in locks
    ]

    left = lock_left(claimed, harness.clock(), info.shortest_lock)

    assert left == pytest.approx(seconds)


async def test_no_more_messages_are_locked_than_the_rate_moves_within_their_lock(harness):
    await harness.divert(*[message(str(number)) for number in range(400)])
    syphon, held = harness.make_syphon(max_drain_rate=4.0), list[int]()
    await harness.nursery.start(syphon.run)
    for _ in range(90):
        await trio.sleep(1.0)
        held.append(sum(syphon.copies.values()))

    lock = (await harness.secondary.store.inspect(QUEUE)).properties.lock_duration
    assert 0 < max(held) <= 4.0 * lock.total_seconds() / 3.0
    assert len(await harness.primary.ids()) >= 300


# One mover, by itself


@asynccontextmanager
async def moving(harness, *, in_session=False, **options):
    """A mover at the backlog queue with locks of a minute, and the messages that it has claimed."""
    async with harness.secondary.broker.open_receiver(QUEUE) as receiver:
        drain = harness.make_drain(**options)
        mover = (
            drain.at.mover(receiver, in_session=True)
            if in_session
            else harness.make_mover(drain, receiver, lock=60.0)
        )
        claimed = [
            BacklogMessage.of(QUEUE, each, envelope().unwrap(each.message), trio.current_time())
            for each in await receiver.receive(100)
        ]
        for each in claimed:
            mover.claim(each)
        yield mover, claimed


def sizes(harness):
    return [len(call.messages) for call in harness.primary.calls if call.operation is SEND]


async def test_messages_that_must_wait_go_one_at_first_and_twice_as_many_each_time(harness):
    await harness.divert(*[message(str(number)) for number in range(10)])

    async with moving(harness) as (mover, claimed):
        due = trio.current_time() + 30.0
        left = await mover.move(ORDERS, claimed, wait_until=due)

    assert left == []
    assert sizes(harness) == [1, 2, 4, 3]
    assert harness.primary.times(SEND)[0] == due


async def test_messages_that_neednt_wait_go_in_one_send_and_are_progress(harness):
    await harness.divert(*[message(str(number)) for number in range(10)])

    async with moving(harness) as (mover, claimed):
        waiting = mover.progress.record_waiting()
        await trio.sleep(10.0)
        await mover.move(ORDERS, claimed)

        assert (waiting, mover.progress.record_waiting()) == (0.0, 0.0)

    assert sizes(harness) == [10]


@pytest.mark.parametrize(
    ("in_session", "confirmed", "moved"),
    [(True, False, []), (True, True, ["2"]), (False, False, ["2"])],
)
async def test_a_session_stops_at_a_message_whose_dead_lettering_isnt_confirmed(
    harness, in_session, confirmed, moved
):
    await harness.divert(message("1"), message("2"))
    # Outside a session the whole batch is refused first.
    harness.primary.fail(refuse(InvalidRequest, "no"), SEND, times=1 if in_session else 2)
    if not confirmed:
        harness.secondary.fail(Refuse(), SETTLE, times=1)

    async with moving(harness, in_session=in_session) as (mover, claimed):
        left = await mover.move(ORDERS, claimed)

    assert await harness.primary.ids() == moved
    assert [each.unwrapped.message.message_id for each in left] == ([] if moved else ["2"])


@pytest.mark.parametrize("answers", [True, False])
async def test_a_send_to_an_entity_waits_until_the_silence_of_another_is_judged(
    harness, nursery, answers
):
    """Then its own entity is asked: it gets its message only if it answers."""
    await harness.divert(message("o"))
    await harness.divert(message("b"), entity=BILLS)
    harness.primary.fail(Hang(), SEND, PROBE, entity=ORDERS)
    if not answers:
        harness.primary.fail(Hang(), PROBE)

    async with moving(harness) as (mover, [one, other]):
        began = trio.current_time()
        nursery.start_soon(mover.move, ORDERS, [one])
        await trio.sleep(0.5)
        left = await mover.move(BILLS, [other])
        nursery.cancel_scope.cancel()

    asked = [
        (each.operation, each.at - began) for each in harness.primary.asked if each.entity == BILLS
    ]
    judged = pytest.approx(SLOW + EACH + 1.0)
    assert asked == [(PROBE, judged), (SEND, judged)][: 2 if answers else 1]
    assert left == ([] if answers else [other])


async def occupy(load, entered):
    async with load.room(BILLS):
        entered.append(trio.current_time())
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("answers", "room", "held", "backed_off"),
    [(True, 1.0, 1.08, 10.0), (False, 1.27, 1.27, 1.27)],
)
async def test_a_send_without_an_answer_leaves_room_for_others_and_then_its_entity_backs_off(
    harness, nursery, answers, room, held, backed_off
):
    """
    After 0.27 s, by its twenty messages, the primary is asked. If it answers, the send has as long
    as any attempt; if not, the entity backs off at once. The send itself ends after 30 s.
    """
    await harness.divert(*[message(str(number)) for number in range(20)])
    harness.primary.fail(Hang(), SEND)
    if not answers:
        harness.primary.fail(Hang(), PROBE)
    entered, suspended = [], []
    retry = Backoff(first=1.0, cap=1.0, jitter=0.0)

    async with moving(harness, attempt_timeout=10.0, unknown_retry=retry) as (mover, claimed):
        began = trio.current_time()
        nursery.start_soon(mover.move, ORDERS, claimed)
        await wait_all_tasks_blocked()
        for _ in range(8):
            nursery.start_soon(occupy, mover.backoffs.load, entered)
        for at in (held - 0.01, held + 0.01):
            await trio.sleep_until(began + at)
            suspended.append(mover.backoffs.is_suspended(ORDERS))
        event, at = await harness.events.first(SyphonBackedOff), trio.current_time()
        nursery.cancel_scope.cancel()

    assert harness.primary.times(PROBE) == [pytest.approx(began + 0.27)]
    assert entered == [pytest.approx(began)] * 7 + [pytest.approx(began + room)]
    assert suspended == [False, True]
    assert at - began == pytest.approx(backed_off, abs=0.02)
    assert event.seconds == pytest.approx(31.0 - backed_off)


@pytest.mark.parametrize(("backs_off", "least"), [(True, 0.5), (False, 10.0)])
async def test_a_primary_that_says_not_how_long_it_is_busy_is_left_alone_for_the_backoff(
    harness, backs_off, least
):
    await harness.divert(message())
    harness.primary.fail(Refuse(lambda: Busy(retry_after=0.5, backs_off=backs_off)), SEND)
    retry = Backoff(first=0.25, cap=0.25, jitter=0.0)

    async with moving(harness, retry=retry) as (mover, claimed):
        left = await mover.move(ORDERS, claimed)

    [event] = harness.events.of(SyphonBackedOff)
    assert left == claimed
    assert least <= event.seconds <= 1.2 * least


async def test_completions_that_a_busy_backlog_refuses_are_made_after_its_longest_pause(harness):
    await harness.divert(*[message(str(number)) for number in range(3)])
    for seconds in (4.0, 9.0):
        harness.secondary.fail(busy(seconds), SETTLE, times=1)

    async with moving(harness) as (mover, claimed):
        before = mover.backoffs.load.limit
        await mover.move(ORDERS, claimed)

        assert mover.backoffs.load.limit < before

    first, *others = harness.secondary.times(SETTLE)
    assert [at == first for at in others] == [True, True, False, False]
    assert all(9.0 <= at - first <= 10.8 for at in others[2:])
    assert harness.primary.sends() == 1
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_lock_that_ends_earlier_is_renewed_before_the_others(harness):
    await harness.divert(message("1"), message("2"))
    harness.primary.fail(Slow(15.0), SEND)

    async with moving(harness) as (mover, claimed):
        first = claimed[0]
        first.delivery = attrs.evolve(first.delivery, locked_until=harness.after(30.0))
        began = trio.current_time()
        await mover.move(ORDERS, claimed)

    renewed = [call.messages for call in harness.secondary.calls if call.operation is RENEW]
    assert [each.message_id for [each] in renewed] == ["1"]
    assert harness.secondary.times(RENEW) == [began + 10.0]
