"""Links on which clients send: the answers to each client, and their order."""

from datetime import timedelta

import pytest
import trio

from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import Busy, NotAuthorized, NotSupported, QuotaExceeded, Unavailable
from gateway.domain.message import DataBody, Kind, Message, Typed
from gateway.domain.topics.filters import Rule, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.frontends.amqp.batches import LargeBatch
from gateway.frontends.amqp.pending import HeldBackStream, Pending
from gateway.store.local import memory
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.servicebus.batches import BATCH, decode_content, encode_batch
from tests.frontends.amqp.conftest import OneByOne
from tests.frontends.amqp.sdk import HOST
from tests.frontends.rest_client import ORDERS
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse


@pytest.fixture(params=[False, True], ids=["two steps", "one step"])
async def house(house, request):
    """The namespace takes several batches in one step, or it doesn't."""
    if request.param:
        house.faulty.__class__ = OneByOne
    return house


async def kept(house, entity=ORDERS):
    return [each.message for each in await house.broker.peek(entity, limit=1000)]


async def all_kept(house, entity):
    """As many as there are: a peek has a limit in bytes."""
    found, after = [], 0
    while shown := await house.broker.peek(entity, from_sequence=after, limit=100_000):
        found += shown
        after = shown[-1].sequence_number + 1
    return found


async def test_a_message_is_accepted_once_the_broker_has_it(house, sdk, autojump_clock):
    link = await sdk.sender()

    outcome = await sdk.send(link, Message(message_id="a", body=b"hello"))

    (message,) = await kept(house)
    assert outcome == amqp.ACCEPTED
    assert (message.message_id, message.body) == ("a", b"hello")


async def test_a_message_without_an_id_gets_one(house, sdk, autojump_clock):
    link = await sdk.sender()

    await sdk.send(link, Message(body=b"1"))
    await sdk.send(link, Message(body=b"2"))

    ids = [message.message_id for message in await kept(house)]
    assert len(set(ids)) == 2
    assert None not in ids


async def test_a_batch_becomes_its_messages(house, sdk, autojump_clock):
    link = await sdk.sender()
    batch = encode_batch([Message(message_id=str(number)) for number in range(5)])

    delivery = sdk.engine.send(link, b"batch", batch, message_format=BATCH)

    assert await sdk.outcome(delivery) == amqp.ACCEPTED
    assert [message.message_id for message in await kept(house)] == list("01234")


async def test_a_message_within_the_links_limit_is_answered_whatever_other_limits_are(
    house, autojump_clock
):
    small = EngineOptions(max_partial=100_000)
    house.change(max_message_size=1_000_000, max_pending_bytes=100_000, engine=small)
    sdk = await house.client()
    link = await sdk.sender()

    largest = await sdk.send(link, Message(body=bytes(999_000)))
    next_one = await sdk.send(link, Message(body=b"next"))
    beyond = await sdk.send(link, Message(body=bytes(1_000_001)))

    assert (largest, next_one) == (amqp.ACCEPTED, amqp.ACCEPTED)
    assert beyond.error.condition == "amqp:link:message-size-exceeded"


async def batched(sdk, link, *messages):
    """The outcome of a batch of these messages."""
    batch = encode_batch(messages)
    return await sdk.outcome(sdk.engine.send(link, b"batch", batch, message_format=BATCH))


async def attach_to_large(house, largest):
    """A link, which isn't answered yet, to a queue with messages of that size; and its client."""
    large = EntityPath("large")
    await house.broker.create_queue(large, QueueProperties(max_message_size=largest))
    house.change(max_message_size=largest)
    sdk = await house.client()
    return sdk.attach(we_send=True, address=large.name), sdk


# azservicebus reads "com.microsoft:max-message-batch-size" as a uint64 (messageBatch), and the SDKs
# for .NET (#57941), Python and Node do likewise; none counts the messages of a batch any more.
@pytest.mark.parametrize(
    ("largest", "of_batches"), [(500_000, 500_000), (1_048_576, 1_048_576), (2_000_000, 1_048_576)]
)
async def test_a_link_states_the_largest_batch(house, largest, of_batches, autojump_clock):
    link, sdk = await attach_to_large(house, largest)

    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)

    stated = answer.properties["com.microsoft:max-message-batch-size"]
    assert stated == Typed(Kind.ULONG, of_batches)


async def test_a_batch_is_limited_by_its_bytes_alone(house, autojump_clock):
    link, sdk = await attach_to_large(house, 2_000_000)

    many = await batched(sdk, link, *[Message(body=b"x")] * 6000)
    single = await sdk.send(link, Message(body=bytes(1_100_000)))
    beyond = await batched(sdk, link, *[Message(body=bytes(100_000))] * 11)

    assert (many, single) == (amqp.ACCEPTED, amqp.ACCEPTED)
    assert len(await all_kept(house, EntityPath("large"))) == 6001
    assert beyond.error.condition == "amqp:link:message-size-exceeded"
    assert "at most 1048576 expected" in beyond.error.description


async def test_others_run_while_a_batch_is_decoded(house, sdk, autojump_clock):
    link, turns = await sdk.sender(), 0

    async def run_beside():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_beside)
        before = turns
        await batched(sdk, link, *[Message(body=b"x")] * 3000)
        during = turns - before
        nursery.cancel_scope.cancel()

    assert during >= 3000 / 100


class WaysGiven:
    """A turn that counts how often its request gave way."""

    count = 0

    async def give_way(self):
        self.count += 1
        await trio.lowlevel.checkpoint()


async def test_a_large_batch_gives_way_after_each_slice(autojump_clock):
    payload, turn = encode_batch([Message(body=b"x")] * 1000), WaysGiven()
    event = amqp.TransferReceived(None, None, b"", BATCH, payload, settled=False)
    batch = LargeBatch(event, decode_content)

    await batch.prepare(turn)

    assert turn.count == 1000 / 25
    assert len(batch.next_part()) == 1000


async def test_batches_and_messages_of_a_link_keep_their_order(house, sdk, autojump_clock):
    link = await sdk.sender()
    sent = [sdk.transfer(link, Message(message_id="0"))]
    for number in range(1, 6):
        many = [Message(message_id=f"{number}", body=bytes(100))] * 1200
        batch = encode_batch(many)
        sent.append(sdk.engine.send(link, b"%d" % number, batch, message_format=BATCH))
        sent.append(sdk.transfer(link, Message(message_id=f"{number}")))

    outcomes = [await sdk.outcome(delivery) for delivery in sent]

    ids = [each.message.message_id for each in await all_kept(house, ORDERS)]
    assert outcomes == [amqp.ACCEPTED] * 11
    assert ids == sorted(ids)
    assert len(ids) == 1 + 5 * 1201


def numbered(count, *, without=(), session="s"):
    """Messages of a session, some of which don't say so."""
    return [
        Message(message_id=str(number), session_id=None if number in without else session)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("without", "told", "stored"),
    [
        ((), amqp.Accepted, 10_000),
        ((100,), amqp.Rejected, 0),
        ((4499,), amqp.Rejected, 0),
    ],
)
async def test_a_batch_in_parts_is_accepted_if_all_are(
    house, sdk, without, told, stored, autojump_clock
):
    sessions = EntityPath("sessions")
    await house.broker.create_queue(sessions, QueueProperties(requires_session=True))
    link = await sdk.sender(sessions.name)

    outcome = await batched(sdk, link, *numbered(10_000, without=without))
    after = await batched(sdk, link, *numbered(3))

    assert type(outcome) is told
    assert after == amqp.ACCEPTED
    ids = [each.message.message_id for each in await all_kept(house, sessions)]
    assert ids == [str(number) for number in (*range(stored), *range(3))]


async def test_a_batch_of_which_a_part_was_stored_has_an_unknown_outcome(
    house, sdk, autojump_clock
):
    sessions = EntityPath("sessions")
    await house.broker.create_queue(sessions, QueueProperties(requires_session=True))
    link = await sdk.sender(sessions.name)
    batch = encode_batch(numbered(10_000, without=(5000,)))

    sdk.engine.send(link, b"batch", batch, message_format=BATCH)
    sdk.transfer(link, Message(session_id="s", message_id="behind"))
    ended = await sdk.until(amqp.LinkDetached)

    assert ended.error.condition == "com.microsoft:timeout"
    assert not [event for event in sdk.told if isinstance(event, amqp.DispositionReceived)]
    assert len(await all_kept(house, sessions)) == 4500
    again = await sdk.sender(sessions.name)
    assert await sdk.send(again, Message(session_id="s")) == amqp.ACCEPTED


async def test_a_batch_with_one_that_is_malformed_is_refused_as_a_whole(house, sdk, autojump_clock):
    link = await sdk.sender()
    good = encode_batch([Message(body=b"x")] * 6000)
    bad = b"\x00\x53\x75\xa0\x02hi"  # a data section that holds no message

    outcome = await sdk.outcome(sdk.engine.send(link, b"1", good + bad, message_format=BATCH))

    assert type(outcome) is amqp.Rejected
    assert await kept(house) == []


async def test_a_body_that_looks_like_a_batch_stays_what_it_is(house, sdk, autojump_clock):
    link = await sdk.sender()
    body = DataBody((encode_message(Message(body=b"1")), encode_message(Message(body=b"2"))))

    await sdk.send(link, Message(body=body))

    (message,) = await kept(house)
    assert message.body == body


async def test_a_message_of_many_frames_arrives_whole(house, sdk, autojump_clock):
    link = await sdk.sender()

    outcome = await sdk.send(link, Message(body=bytes(900_000)))

    (message,) = await kept(house)
    assert outcome == amqp.ACCEPTED
    assert message.body == bytes(900_000)


async def test_messages_of_a_link_keep_their_order_and_each_has_its_answer(
    house, sdk, autojump_clock
):
    link = await sdk.sender()

    deliveries = [sdk.transfer(link, Message(message_id=str(n))) for n in range(350)]
    outcomes = [await sdk.outcome(delivery) for delivery in deliveries]

    assert outcomes == [amqp.ACCEPTED] * 350
    assert [message.message_id for message in await kept(house)] == list(map(str, range(350)))


async def test_a_message_that_is_too_large_is_refused_alone(house, sdk, autojump_clock):
    link = await sdk.sender()

    outcome = await sdk.send(link, Message(body=bytes(1024 * 1024)))

    assert outcome.error.condition == "amqp:link:message-size-exceeded"
    assert await sdk.send(link, Message()) == amqp.ACCEPTED


async def told_size(sdk, address):
    link = sdk.attach(we_send=True, address=address)
    attached = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)
    return attached.max_message_size, link


async def test_a_sender_is_told_how_large_a_message_of_its_entity_may_be(
    house, sdk, autojump_clock
):
    small, news = EntityPath("small"), EntityPath("news")
    await house.broker.create_queue(small, QueueProperties(max_message_size=10_000))
    await house.broker.create_topic(news, TopicProperties(max_message_size=20_000))

    size, link = await told_size(sdk, "small")
    sizes = [size, *[(await told_size(sdk, each))[0] for each in ("news", "orders")]]
    outcome = await sdk.send(link, Message(body=bytes(10_001)))

    assert sizes == [10_000, 20_000, 1024 * 1024]
    assert outcome.error.condition == "amqp:link:message-size-exceeded"
    assert await sdk.send(link, Message(body=bytes(9_000))) == amqp.ACCEPTED


@pytest.mark.parametrize("fault", [Hang(), Refuse(lambda: NotAuthorized("no right to manage"))])
async def test_a_namespace_that_tells_no_size_has_the_gateways(house, sdk, fault, autojump_clock):
    house.breaks(Operation.MANAGE, fault)
    began = trio.current_time()

    size, link = await told_size(sdk, "orders")

    assert size == 1024 * 1024
    assert trio.current_time() - began <= house.frontend.options.probe_timeout + 0.1
    assert await sdk.send(link, Message()) == amqp.ACCEPTED


async def test_an_invalid_message_is_refused_alone(house, sdk, autojump_clock):
    link = await sdk.sender()

    outcome = await sdk.outcome(sdk.engine.send(link, b"tag", b"no message"))

    assert outcome.error.condition == "amqp:decode-error"
    assert await sdk.send(link, Message()) == amqp.ACCEPTED


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (Busy(), "com.microsoft:server-busy"),
        (QuotaExceeded("full"), "amqp:resource-limit-exceeded"),
        (Unavailable("down"), "com.microsoft:container-close"),
    ],
)
async def test_a_definite_failure_is_a_rejection_that_says_why(
    house, sdk, error, condition, autojump_clock
):
    link = await sdk.sender()
    house.breaks(Operation.SEND, Refuse(lambda: error))

    outcome = await sdk.send(link, Message())

    assert outcome.error.condition == condition
    assert outcome.error.description == str(error)
    assert outcome.error.info  # without any, azure-servicebus for Python waits for ever


@pytest.mark.parametrize("fault", [LoseAnswer(), Hang()])
async def test_an_unknown_outcome_is_neither_accepted_nor_rejected(
    house, sdk, fault, autojump_clock
):
    link = await sdk.sender()
    house.breaks(Operation.SEND, fault)

    delivery = sdk.transfer(link, Message())
    sdk.transfer(link, Message())
    detached = await sdk.until(amqp.LinkDetached)

    assert detached.link == link
    assert detached.error.condition == "com.microsoft:timeout"
    assert not [
        event
        for event in sdk.told
        if isinstance(event, amqp.DispositionReceived) and event.delivery == delivery
    ]


async def test_after_an_unknown_outcome_a_new_link_goes_on(house, sdk, autojump_clock):
    link = await sdk.sender()
    house.breaks(Operation.SEND, LoseAnswer())
    sdk.transfer(link, Message(message_id="a"))
    await sdk.until(amqp.LinkDetached)
    house.breaks(Operation.PROBE, LoseAnswer())

    again = await sdk.sender()

    assert await sdk.send(again, Message(message_id="b")) == amqp.ACCEPTED
    assert [message.message_id for message in await kept(house)] == ["a", "b"]


async def test_of_several_messages_only_the_wrong_one_is_refused(house, sdk, autojump_clock):
    await house.broker.create_queue(EntityPath("s"), QueueProperties(requires_session=True))
    link = await sdk.sender("s")

    deliveries = [
        sdk.transfer(link, Message(message_id=str(n), session_id=None if n == 1 else "s"))
        for n in range(3)
    ]
    outcomes = [await sdk.outcome(delivery) for delivery in deliveries]

    assert [type(outcome) for outcome in outcomes] == [amqp.Accepted, amqp.Rejected, amqp.Accepted]
    assert outcomes[1].error.condition == "amqp:not-allowed"
    assert [m.message_id for m in await kept(house, EntityPath("s"))] == ["0", "2"]


async def test_a_message_without_time_to_live_is_refused(house, sdk, autojump_clock):
    link = await sdk.sender()

    outcomes = [
        await sdk.outcome(sdk.transfer(link, Message(time_to_live=timedelta(seconds=life))))
        for life in (0, 60)
    ]

    assert [type(outcome) for outcome in outcomes] == [amqp.Rejected, amqp.Accepted]
    assert outcomes[0].error.condition == "amqp:not-allowed"
    assert "time to live: more than zero expected" in outcomes[0].error.description


async def test_a_message_that_the_namespace_can_not_do_refuses_no_other_message(
    house, sdk, autojump_clock, monkeypatch
):
    def compiled(_expression, _parameters):
        def matches(subject):
            if subject.message.properties["wrong"]:
                raise NotSupported("this message can't be delivered as it is")
            return True

        return matches

    monkeypatch.setattr(memory, "compile_filter", compiled)
    news, rule = EntityPath("news"), Rule(name="strict", filter=SqlFilter(expression="1 = 1"))
    await house.broker.create_topic(news, TopicProperties())
    await house.broker.create_subscription(news, "all", SubscriptionProperties(), rule)
    link = await sdk.sender("news")

    deliveries = [sdk.transfer(link, Message(properties={"wrong": int(n == 1)})) for n in range(3)]
    outcomes = [await sdk.outcome(delivery) for delivery in deliveries]

    assert [type(outcome) for outcome in outcomes] == [amqp.Accepted, amqp.Rejected, amqp.Accepted]
    assert outcomes[1].error.condition == "amqp:not-implemented"


async def test_a_settled_message_that_fails_ends_the_link(house, sdk, autojump_clock):
    link = await sdk.sender()
    house.breaks(Operation.SEND, Refuse(lambda: Busy()))

    sdk.transfer(link, Message(), settled=True)
    detached = await sdk.until(amqp.LinkDetached)

    assert (detached.link, detached.error.condition) == (link, "com.microsoft:server-busy")


async def test_settled_messages_are_sent_although_their_client_has_gone(house, autojump_clock):
    sdk = await house.client()
    link = await sdk.sender()

    for number in range(20):
        sdk.transfer(link, Message(message_id=str(number)), settled=True)
    await sdk.connection.close()
    await trio.testing.wait_all_tasks_blocked()

    assert len(await kept(house)) == 20


async def test_a_queue_that_is_deleted_ends_the_link_with_the_next_send(house, sdk, autojump_clock):
    link = await sdk.sender()
    await house.broker.delete_queue(ORDERS)

    outcome = await sdk.send(link, Message())
    detached = await sdk.until(amqp.LinkDetached)

    assert outcome.error.condition == "amqp:not-found"
    assert (detached.link, detached.error.condition) == (link, "amqp:not-found")


async def test_nobody_attaches_to_what_is_not_there(sdk, autojump_clock):
    error = await sdk.refusal(we_send=True, address=HOST + "nothing")

    assert error.condition == "amqp:not-found"


async def test_nobody_attaches_to_what_is_switched_off(house, sdk, autojump_clock):
    off = QueueProperties(status=EntityStatus.SEND_DISABLED)
    await house.broker.create_queue(EntityPath("off"), off)

    error = await sdk.refusal(we_send=True, address="off")

    assert error.condition == "com.microsoft:entity-disabled"


async def test_nobody_sends_to_dead_letters(sdk, autojump_clock):
    error = await sdk.refusal(we_send=True, address="orders/$DeadLetterQueue")

    assert error.condition == "amqp:not-allowed"


@pytest.mark.parametrize("fault", [Refuse(), Hang()])
async def test_a_link_opens_although_the_namespace_is_down(house, sdk, fault, autojump_clock):
    house.breaks(Operation.PROBE, fault)

    link = await sdk.sender()

    assert await sdk.send(link, Message()) == amqp.ACCEPTED


async def test_a_client_has_credit_for_what_is_not_under_way(house, autojump_clock):
    house.change(window=10)
    sdk = await house.client()
    link = await sdk.sender()
    house.breaks(Operation.SEND, Hang(seconds=5))

    seen = [sdk.engine.credit(link)]
    for _ in range(10):
        sdk.transfer(link, Message(), settled=False)
    await trio.sleep(1)
    seen.append(sdk.engine.credit(link))
    house.faulty.fault = lambda operation, entity: None
    await trio.sleep(30)
    seen.append(sdk.engine.credit(link))

    assert seen == [10, 0, 10]


async def test_too_much_that_is_pending_holds_the_stream_back(autojump_clock):
    ours, theirs = trio.testing.memory_stream_pair()
    pending = Pending(2, 1000)
    stream = HeldBackStream(theirs, pending)
    await ours.send_all(b"data")

    pending.add(999)
    pending.add(1)
    with trio.move_on_after(0.01) as held_back:
        await stream.receive_some()
    pending.drop(999)
    received = await stream.receive_some()

    assert held_back.cancelled_caught
    assert received == b"data"


async def test_a_client_that_ignores_its_credit_is_not_read_any_further(house, autojump_clock):
    house.change(max_pending=50)
    sdk = await house.client()
    link = await sdk.sender()
    house.breaks(Operation.SEND, Hang(seconds=20))

    for number in range(3000):
        sdk.transfer(link, Message(message_id=str(number), body=bytes(1000)), settled=True)
    await trio.sleep(10)
    house.faulty.fault = lambda operation, entity: None
    under_way = house.faulty.under_way(Operation.SEND)
    detached = await sdk.until(amqp.LinkDetached)

    assert under_way == 1
    assert detached.error.condition == "com.microsoft:container-close"


async def test_time_to_live_and_schedule_arrive(house, sdk, autojump_clock):
    link = await sdk.sender()

    await sdk.send(link, Message(time_to_live=timedelta(seconds=90), subject="s", priority=3))

    (message,) = await kept(house)
    assert message.time_to_live == timedelta(seconds=90)
    assert (message.subject, message.priority) == ("s", 3)
