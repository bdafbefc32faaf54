import attrs
import pytest
from trio.testing import wait_all_tasks_blocked

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import RESERVE, reserve
from gateway.domain.envelope_fields import PATH, RESERVED
from gateway.domain.errors import (
    Busy,
    InvalidRequest,
    MessageTooLarge,
    Outcome,
    SessionRequired,
    Unavailable,
)
from gateway.domain.message import AcceptedBy, Message
from gateway.pairing.admission import Admission
from gateway.pairing.entity_cache import EntityCache, KnownEntity
from gateway.pairing.options import Oversized, UnknownEntity
from gateway.wire.amqp.message import encoded_size
from tests.harness.faults import LoseAnswer, Operation, Refuse, busy
from tests.pairing.harness import BILLS, ORDERS, QUEUE, message, outcome_of, send, virtual_time

pytestmark = virtual_time

SEND = Operation.SEND
NO_TRIAL = Backoff(first=1000.0, cap=1000.0)


@pytest.mark.parametrize("encrypts", [False, True])
async def test_an_outage_takes_what_health_takes_and_no_more(harness, encrypts):
    limit = 5000
    pair = await harness.pair(limit=limit, encrypts=encrypts)
    await send(pair)()
    frame = encoded_size(message("big", session_id="s", time_to_live=None)) - 4
    room = limit - reserve(ORDERS, message(session_id="s")) - frame - 8
    fits = attrs.evolve(message("big", session_id="s"), body=bytes(room))
    too_large = attrs.evolve(fits, body=bytes(room + 32))

    healthy = [await outcome_of(send(pair, each)) for each in (fits, too_large)]
    pair.states.force_over(ORDERS)
    failed_over = [await outcome_of(send(pair, each)) for each in (fits, too_large)]

    assert [type(error) for error in healthy] == [type(None), MessageTooLarge]
    assert [type(error) for error in failed_over] == [type(None), MessageTooLarge]
    wrapped = (await harness.secondary.messages(QUEUE))[0]
    assert limit - RESERVE < encoded_size(wrapped) <= limit


LIMIT = 5000
LARGE = Message(message_id="large", body=bytes(LIMIT))


async def test_a_message_for_the_primary_alone_is_refused_in_an_outage_only(harness):
    pair = await harness.pair(limit=LIMIT, oversized=Oversized.PRIMARY_ONLY)

    healthy = await outcome_of(send(pair, LARGE))
    small = await outcome_of(send(pair, message("small")))
    pair.states.force_over(ORDERS)
    failed_over = await outcome_of(send(pair, LARGE))

    assert (healthy, small) == (None, None)
    assert isinstance(failed_over, MessageTooLarge)
    assert "in an outage" in str(failed_over)
    assert pair.broker.ways.admission.oversized == 2
    assert await harness.secondary.messages(QUEUE) == []


async def test_a_message_for_the_primary_alone_that_may_have_arrived_is_not_called_too_large(
    harness,
):
    pair = await harness.pair(limit=LIMIT, oversized=Oversized.PRIMARY_ONLY)
    harness.primary.fail(LoseAnswer(), SEND)

    error = await outcome_of(send(pair, LARGE))

    assert error.outcome is Outcome.UNKNOWN


async def test_a_message_for_the_primary_alone_waits_while_the_primary_is_busy(harness):
    pair = await harness.pair(limit=LIMIT, oversized=Oversized.PRIMARY_ONLY)
    harness.primary.fail(busy(1000.0), SEND)

    error = await outcome_of(send(pair, LARGE))

    assert isinstance(error, Busy)


async def test_a_message_for_the_primary_alone_is_not_hedged(harness):
    pair = await harness.pair(
        limit=LIMIT, oversized=Oversized.PRIMARY_ONLY, hedge_after=0.1, hedge_budget=1.0
    )
    harness.primary.broker.latency = lambda: 0.5

    assert await outcome_of(send(pair, LARGE)) is None
    assert await harness.secondary.messages(QUEUE) == []


async def test_the_primarys_own_limit_is_kept_in_an_outage(harness):
    await harness.primary.store.create_queue(
        small := EntityPath("small"), QueueProperties(max_message_size=500)
    )
    pair = await harness.pair()
    await send(pair, entity=small)()
    await wait_all_tasks_blocked()
    pair.states.force_over(small)

    error = await outcome_of(send(pair, Message(body=bytes(600)), entity=small))

    assert isinstance(error, MessageTooLarge)


async def test_every_member_of_a_batch_is_measured(harness):
    pair = await harness.pair(limit=2000)

    error = await outcome_of(send(pair, message(), Message(body=bytes(2000))))

    assert isinstance(error, MessageTooLarge)
    assert harness.primary.sends() == 0


@pytest.mark.parametrize("name", sorted(RESERVED))
async def test_the_envelopes_property_names_are_refused_in_good_times_too(harness, name):
    pair = await harness.pair()

    error = await outcome_of(send(pair, message(properties={name: "x"})))

    assert isinstance(error, InvalidRequest)
    assert name in str(error)
    assert harness.primary.sends() == 0


async def test_a_message_that_cant_be_encoded_is_the_callers_fault(harness):
    pair = await harness.pair()

    error = await outcome_of(send(pair, message(properties={"n": 2**70})))

    assert isinstance(error, InvalidRequest)


async def test_an_entity_that_needs_sessions_needs_them_in_an_outage(harness):
    await harness.primary.store.create_queue(
        tills := EntityPath("tills"), QueueProperties(requires_session=False)
    )
    pair = await harness.pair()
    pair.entity_cache.store(KnownEntity(entity=tills, requires_session=True))
    pair.states.force_over(tills)

    without = await outcome_of(send(pair, message(), entity=tills))
    accepted_by = await send(pair, message(session_id="s"), entity=tills)()

    assert isinstance(without, SessionRequired)
    assert accepted_by is AcceptedBy.BACKLOG


async def test_an_entity_never_seen_is_diverted(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse())

    accepted_by = await send(pair, entity=EntityPath("never/seen"))()

    assert accepted_by is AcceptedBy.BACKLOG


async def test_an_entity_never_seen_may_be_refused(harness):
    pair = await harness.pair(unknown_entity=UnknownEntity.REFUSE)
    await send(pair, entity=BILLS)()
    harness.primary.fail(Refuse())

    unseen = await outcome_of(send(pair))
    accepted_by = await send(pair, entity=BILLS)()

    assert isinstance(unseen, Unavailable)
    assert unseen.outcome is Outcome.NOT_SENT
    assert accepted_by is AcceptedBy.BACKLOG


async def test_message_ids_are_kept_and_made_where_missing(harness):
    pair = await harness.pair()

    await send(pair, message("mine"), Message(body=b"none"))()

    assert await harness.primary.ids() == ["mine", "id-0"]


async def test_the_envelope_says_where_a_message_belongs(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), SEND)

    await send(pair, entity=BILLS)()

    assert (await harness.secondary.messages(QUEUE))[0].properties[PATH] == "Bills"


@pytest.mark.parametrize("name", ["news/subscriptions/s", "orders/$DeadLetterQueue"])
@pytest.mark.parametrize("failed_over", [False, True])
async def test_nobody_sends_to_a_subscription_or_a_sub_queue_in_an_outage_either(
    harness, name, failed_over
):
    entity = EntityPath(name)
    pair = await harness.pair()
    if failed_over:
        pair.states.force_over(entity)

    with pytest.raises(InvalidRequest, match="a sub-queue or a subscription"):
        await pair.broker.send(entity, [message()])

    assert await harness.secondary.messages(QUEUE) == []


@pytest.fixture
def admission(harness):
    """Counts the bytes of the bodies alone."""
    entity_cache = EntityCache(primary=harness.primary.broker)
    return Admission(entity_cache=entity_cache, measure=lambda each: len(each.body))


async def test_the_size_of_a_send_is_that_of_all_its_messages(admission):
    sizes = [admission.admit(ORDERS, [Message(body=bytes(n)) for n in ns]) for ns in ([], [3, 4])]

    assert sizes == [0, 7]


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
@pytest.mark.parametrize("smaller", ["the primary's", "the backlog's"])
async def test_a_message_of_just_the_smaller_limit_is_taken(admission, smaller, more, fits):
    limits = {"the primary's": 10_000, "the backlog's": 10_000 + RESERVE + 1000} | {smaller: 5000}
    admission.entity_cache.store(
        KnownEntity(entity=ORDERS, max_message_size=limits["the primary's"])
    )
    admission.backlog_limit = limits["the backlog's"]
    reserved = reserve(ORDERS, Message()) if smaller == "the backlog's" else 0

    try:
        admission.admit(ORDERS, [Message(body=bytes(5000 - reserved + more))])
    except MessageTooLarge:
        taken = False
    else:
        taken = True

    assert taken is fits


async def test_a_send_is_for_the_primary_alone_if_one_of_its_messages_is(admission):
    admission.backlog_limit = 5000
    room = 5000 - reserve(ORDERS, Message())
    small, fits, large = (Message(body=bytes(size)) for size in (1, room, room + 1))
    usual = admission.is_for_primary_alone(ORDERS, [large])
    admission.primary_only = True
    alone = [admission.is_for_primary_alone(ORDERS, each) for each in ([fits], [small, large])]
    admission.admit(ORDERS, [fits, large, large])

    assert (usual, alone) == (False, [False, True])
    assert admission.oversized == 2


async def test_a_message_that_is_too_large_is_told_the_limit_and_when(admission):
    admission.backlog_limit = 5000
    room = 5000 - reserve(ORDERS, Message())
    larger = [Message(body=bytes(9000))]
    texts = []
    for primary_only in (False, True):
        admission.primary_only = primary_only
        try:
            admission.admit(ORDERS, larger)
            admission.admit_to_backlog(ORDERS, larger, UnknownEntity.DIVERT)
        except MessageTooLarge as error:
            texts.append(str(error))

    told = f"message of 9000 bytes; the pair accepts {room}"
    assert texts == [told, f"{told} in an outage"]
