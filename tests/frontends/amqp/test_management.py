"""Requests to an entity's `$management`."""

from datetime import UTC, datetime, timedelta

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Message, MessageState, ReceiveMode
from gateway.domain.topics.filters import DEFAULT_RULE, Rule
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.exchange import NodeRequest, build_request
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.identity import identity_of
from gateway.wire.amqp.management.identity import request as identity_request
from gateway.wire.amqp.management.requests import request_of
from gateway.wire.amqp.messages.sections import (
    APPLICATION_PROPERTIES,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    split_sections,
)
from gateway.wire.amqp.servicebus.deliveries import decode_delivery, token_of
from tests.frontends.amqp.management import ask, reply_at, reply_to
from tests.frontends.rest_client import ORDERS, POLICIES, wall_clock
from tests.harness.faults import Hang, LoseAnswer, Operation, SwallowAnswer, no_fault

SQ = EntityPath("sq")
DEFERRED = amqp.Modified(delivery_failed=True, undeliverable_here=True)


@pytest.fixture
async def sessions(house):
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True))
    return house


async def take(sdk, link):
    transfer = await sdk.delivery(link)
    token = token_of(transfer.tag)
    return transfer, decode_delivery(transfer.payload, lock_token=token)


async def deferred(house, sdk):
    """The sequence number of a message that was put aside."""
    await house.broker.send(ORDERS, [Message(message_id="a")])
    link = await sdk.receiver(credit=1)
    transfer, delivery = await take(sdk, link)
    await sdk.settle(transfer, DEFERRED)
    sdk.engine.detach(link)
    return delivery.sequence_number


async def session(house, sdk, name="s"):
    await house.broker.send(SQ, [Message(message_id="a", session_id=name)])
    source = amqp.Terminus(address="sq", filters={"com.microsoft:session-filter": name})
    return await sdk.attached(we_send=False, address="sq", source=source)


async def test_a_lock_is_renewed(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [Message()])
    transfer, delivery = await take(sdk, await sdk.receiver(credit=1))
    await trio.sleep(40)

    answer = await ask(sdk, ops.RenewLocks(tokens=(delivery.lock_token,)))
    await trio.sleep(40)

    assert (answer.until[0] - delivery.locked_until).total_seconds() == pytest.approx(40, abs=0.1)
    assert await sdk.settle(transfer, amqp.ACCEPTED) == amqp.ACCEPTED


async def test_a_lock_that_is_lost_is_told_with_410(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [Message()])
    _, delivery = await take(sdk, await sdk.receiver(credit=1))
    await trio.sleep(61)

    reply = await reply_to(sdk, ops.RenewLocks(tokens=(delivery.lock_token,)))

    assert (reply.status, reply.condition) == (410, "com.microsoft:message-lock-lost")


async def test_a_message_that_a_lost_link_had_locked_is_settled_by_its_token(
    house, sdk, autojump_clock
):
    await house.broker.send(ORDERS, [Message()])
    link = await sdk.receiver(credit=1)
    _, delivery = await take(sdk, link)
    sdk.engine.detach(link)

    other = await house.client()
    done = ops.UpdateDisposition(status=ops.Disposition.COMPLETED, tokens=(delivery.lock_token,))
    await ask(other, done)

    assert await house.broker.peek(ORDERS) == []


async def test_a_completion_without_an_answer_is_unknown_on_its_link_and_by_request(
    house, sdk, autojump_clock
):
    await house.broker.send(ORDERS, [Message()])
    transfer, delivery = await take(sdk, await sdk.receiver(credit=1))
    house.breaks(Operation.SETTLE, LoseAnswer())
    first = await sdk.settle(transfer, amqp.ACCEPTED)
    house.faulty.fault = no_fault
    tokens = (delivery.lock_token,)
    done = ops.UpdateDisposition(status=ops.Disposition.COMPLETED, tokens=tokens)

    other = await house.client()
    replies = [await reply_to(other, each) for each in (done, ops.RenewLocks(tokens=tokens))]

    assert first.error.condition == "com.microsoft:timeout"
    assert [(each.status, each.condition) for each in replies] == [
        (408, "com.microsoft:timeout")
    ] * 2


async def test_a_completion_without_an_answer_stays_unknown_when_its_session_is_lost(
    sessions, sdk, autojump_clock
):
    link = await session(sessions, sdk)
    sdk.engine.grant(link, 1)
    transfer, delivery = await take(sdk, link)
    sessions.breaks(Operation.SETTLE, LoseAnswer())
    first = await sdk.settle(transfer, amqp.ACCEPTED)
    sessions.faulty.fault = no_fault
    sdk.engine.detach(link)
    await trio.sleep(1)
    done = ops.UpdateDisposition(
        status=ops.Disposition.COMPLETED, tokens=(delivery.lock_token,), session_id="s"
    )

    reply = await reply_to(sdk, done, "sq")

    assert first.error.condition == "com.microsoft:timeout"
    assert (reply.status, reply.condition) == (408, "com.microsoft:timeout")


async def test_messages_are_shown_without_being_taken(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [Message(message_id=each) for each in "abc"])

    answer = await ask(sdk, ops.Peek(from_sequence=2, limit=10))
    shown = [decode_delivery(each.payload, peeked=True) for each in answer.messages]

    assert [each.message.message_id for each in shown] == ["b", "c"]
    assert [each.delivery_count for each in shown] == [0, 0]


async def test_messages_are_shown_without_their_bodies_on_request(house, sdk, autojump_clock):
    sent = Message(message_id="a", body=b"body", properties={"p": 1}, footer={"f": 2})
    await house.broker.send(ORDERS, [sent])

    answer = await ask(sdk, ops.Peek(from_sequence=0, limit=1, omit_body=True))
    [payload] = [each.payload for each in answer.messages]

    shown = {code: value for code, _, _, value in split_sections(payload)}
    assert list(shown) == [HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, FOOTER]
    assert decode_delivery(payload, peeked=True).message == attrs.evolve(
        sent, body=b"", annotations={}
    )


async def test_scheduled_messages_of_a_topic_are_shown_at_the_topic_alone(
    house, sdk, autojump_clock
):
    topic = EntityPath("news")
    await house.broker.create_topic(topic, TopicProperties())
    await house.broker.create_subscription(topic, "s", SubscriptionProperties())
    later = wall_clock() + timedelta(hours=1)
    await ask(sdk, ops.Schedule(messages=(Message(message_id="a", scheduled=later),)), "news")

    of_topic = await reply_to(sdk, ops.Peek(from_sequence=0, limit=10), "news")
    of_reader = await reply_to(sdk, ops.Peek(from_sequence=0, limit=10), "news/Subscriptions/s")

    assert (of_topic.status, of_reader.status) == (200, 204)


async def test_nothing_to_show_is_told_with_204(sdk, autojump_clock):
    reply = await reply_to(sdk, ops.Peek(from_sequence=1, limit=10))

    assert reply.status == 204


async def test_messages_of_one_session_are_shown_however_many_others_there_are(
    sessions, sdk, autojump_clock
):
    names = ["other", "other", "s", "other", "s"]
    await sessions.broker.send(
        SQ, [Message(message_id=str(i), session_id=name) for i, name in enumerate(names)]
    )

    answer = await ask(sdk, ops.Peek(from_sequence=1, limit=2, session_id="s"), "sq")

    shown = [decode_delivery(each.payload, peeked=True) for each in answer.messages]
    assert [each.message.message_id for each in shown] == ["2", "4"]


async def test_a_schedule_is_numbered_and_taken_back(house, sdk, autojump_clock):
    later = wall_clock() + timedelta(seconds=60)
    messages = tuple(Message(message_id=each, scheduled=later) for each in "ab")

    scheduled = await ask(sdk, ops.Schedule(messages=messages))
    await ask(sdk, ops.CancelScheduled(sequence_numbers=scheduled.sequence_numbers[:1]))

    (left,) = await house.broker.peek(ORDERS, limit=10)
    assert left.message.message_id == "b"
    assert left.state is MessageState.SCHEDULED


async def test_an_unscheduled_message_cannot_be_taken_back(sdk, autojump_clock):
    reply = await reply_to(sdk, ops.CancelScheduled(sequence_numbers=(7,)))

    assert (reply.status, reply.condition) == (404, "com.microsoft:message-not-found")


async def test_a_deferred_message_is_received_by_its_number_and_settled_by_its_token(
    house, sdk, autojump_clock
):
    number = await deferred(house, sdk)

    answer = await ask(sdk, ops.ReceiveDeferred(sequence_numbers=(number,)))
    (handed,) = answer.messages
    done = ops.UpdateDisposition(status=ops.Disposition.COMPLETED, tokens=(handed.lock_token,))
    await ask(sdk, done)

    assert decode_delivery(handed.payload).message.message_id == "a"
    assert await house.broker.peek(ORDERS) == []


async def test_a_deferred_message_can_be_received_and_deleted(house, sdk, autojump_clock):
    number = await deferred(house, sdk)

    await ask(
        sdk,
        ops.ReceiveDeferred(sequence_numbers=(number,), mode=ReceiveMode.RECEIVE_AND_DELETE),
    )

    assert await house.broker.peek(ORDERS) == []


async def test_a_message_that_is_taken_away_is_handed_out_however_late(house, sdk, autojump_clock):
    number = await deferred(house, sdk)
    house.breaks(Operation.SETTLE, SwallowAnswer())
    began = trio.current_time()

    answer = await ask(
        sdk,
        ops.ReceiveDeferred(sequence_numbers=(number,), mode=ReceiveMode.RECEIVE_AND_DELETE),
        seconds=5,
    )

    assert decode_delivery(answer.messages[0].payload).message.message_id == "a"
    assert await house.broker.peek(ORDERS) == []
    assert trio.current_time() - began == pytest.approx(30, abs=0.1)


async def test_a_message_that_comes_too_late_to_be_taken_away_stays(house, sdk, autojump_clock):
    number = await deferred(house, sdk)
    house.breaks(Operation.RECEIVE, SwallowAnswer())

    asked = ops.ReceiveDeferred(sequence_numbers=(number,), mode=ReceiveMode.RECEIVE_AND_DELETE)
    reply = await reply_to(sdk, asked, seconds=5)
    await trio.sleep(100)

    assert reply.condition == "com.microsoft:timeout"
    assert len(await house.broker.peek(ORDERS)) == 1


async def test_a_deferred_message_that_is_not_there_changes_nothing(house, sdk, autojump_clock):
    reply = await reply_to(sdk, ops.ReceiveDeferred(sequence_numbers=(7,)))
    number = await deferred(house, sdk)

    assert (reply.status, reply.condition) == (404, "com.microsoft:message-not-found")
    assert await ask(sdk, ops.ReceiveDeferred(sequence_numbers=(number,)))


async def test_a_session_has_a_state(sessions, sdk, autojump_clock):
    await session(sessions, sdk)

    states = [await ask(sdk, ops.GetSessionState(session_id="s"), "sq")]
    await ask(sdk, ops.SetSessionState(session_id="s", state=b"state"), "sq")
    states.append(await ask(sdk, ops.GetSessionState(session_id="s"), "sq"))

    assert [each.state for each in states] == [None, b"state"]


async def test_the_lock_of_a_session_is_renewed(sessions, sdk, autojump_clock):
    link = await session(sessions, sdk)
    await trio.sleep(40)

    answer = await ask(sdk, ops.RenewSession(session_id="s"), "sq")
    await trio.sleep(40)
    sdk.engine.grant(link, 1)
    transfer, _ = await take(sdk, link)

    assert (answer.until - wall_clock()).total_seconds() == pytest.approx(20, abs=0.1)
    assert await sdk.settle(transfer, amqp.ACCEPTED) == amqp.ACCEPTED


async def test_a_client_that_does_not_hold_a_session_has_lost_it(sessions, sdk, autojump_clock):
    await session(sessions, sdk)
    other = await sessions.client()

    reply = await reply_to(other, ops.GetSessionState(session_id="s"), "sq")

    assert (reply.status, reply.condition) == (410, "com.microsoft:session-lock-lost")


LATE = [
    ops.SetSessionState(session_id="s", state=b"late"),
    ops.RenewSession(session_id="s"),
    ops.ReceiveDeferred(sequence_numbers=(1,), mode=ReceiveMode.RECEIVE_AND_DELETE, session_id="s"),
]


@pytest.mark.parametrize("late", LATE, ids=lambda each: type(each).__name__)
async def test_a_client_that_has_lost_its_session_changes_nothing_for_the_next_one(
    sessions, sdk, late, autojump_clock
):
    """
    The client's link has ended, and the client continues by requests, over the same connection or
    another.
    """
    link = await session(sessions, sdk)
    sdk.engine.grant(link, 1)
    _, delivery = await take(sdk, link)
    sdk.engine.detach(link)
    next_one, elsewhere = await sessions.client(), await sessions.client()
    await session(sessions, next_one)
    await ask(next_one, ops.SetSessionState(session_id="s", state=b"next"), "sq")
    settling = ops.UpdateDisposition(
        status=ops.Disposition.COMPLETED, tokens=(delivery.lock_token,), session_id="s"
    )

    refused = [
        await reply_to(client, each, "sq")
        for client in (sdk, elsewhere)
        for each in (late, settling)
    ]

    assert {each.condition for each in refused} == {"com.microsoft:session-lock-lost"}
    kept = await ask(next_one, ops.GetSessionState(session_id="s"), "sq")
    assert kept.state == b"next"
    assert len(await sessions.broker.peek(SQ, limit=9)) == 2


async def test_a_deferred_message_of_a_session_is_received_and_settled(
    sessions, sdk, autojump_clock
):
    link = await session(sessions, sdk)
    sdk.engine.grant(link, 1)
    transfer, delivery = await take(sdk, link)
    await sdk.settle(transfer, DEFERRED)

    numbers = (delivery.sequence_number,)
    answer = await ask(sdk, ops.ReceiveDeferred(sequence_numbers=numbers, session_id="s"), "sq")
    token = answer.messages[0].lock_token
    done = ops.UpdateDisposition(
        status=ops.Disposition.SUSPENDED, tokens=(token,), reason="why", session_id="s"
    )
    await ask(sdk, done, "sq")

    async with sessions.broker.open_receiver(SQ.dead_letter) as receiver:
        (dead,) = await receiver.receive(1)
        await receiver.settle(dead, Complete())
    assert dead.message.properties["DeadLetterReason"] == "why"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (ops.Disposition.COMPLETED, amqp.ACCEPTED),
        (ops.Disposition.ABANDONED, amqp.Modified(delivery_failed=True)),
        (ops.Disposition.DEFERRED, DEFERRED),
        (ops.Disposition.SUSPENDED, None),  # a rejection, whose error says nothing
    ],
)
async def test_a_settlement_by_request_makes_room_on_the_link_of_its_session(
    sessions, status, outcome, autojump_clock
):
    sessions.change(max_unsettled=2)
    await sessions.broker.send(SQ, [Message(message_id=each, session_id="s") for each in "bcd"])
    sdk = await sessions.client()
    link = await session(sessions, sdk)
    sdk.engine.grant(link, 10)
    taken = [await take(sdk, link) for _ in range(2)]

    tokens = tuple(token_of(transfer.tag) for transfer, _ in taken)
    await ask(sdk, ops.UpdateDisposition(status=status, tokens=tokens, session_id="s"), "sq")
    outcomes = [await sdk.outcome(transfer.delivery) for transfer, _ in taken]
    more = [await take(sdk, link) for _ in range(2)]

    assert len({delivery.message.message_id for _, delivery in more}) == 2
    if outcome is not None:
        assert outcomes == [outcome] * 2
    else:
        assert {type(each) for each in outcomes} == {amqp.Rejected}


async def test_a_settlement_by_request_makes_room_on_a_link_of_its_connection(
    house, autojump_clock
):
    house.change(max_unsettled=2)
    await house.broker.send(ORDERS, [Message(message_id=each) for each in "abcd"])
    sdk = await house.client()
    link = await sdk.receiver(credit=10)
    taken = [await take(sdk, link) for _ in range(2)]

    tokens = tuple(token_of(transfer.tag) for transfer, _ in taken)
    await ask(sdk, ops.UpdateDisposition(status=ops.Disposition.COMPLETED, tokens=tokens))
    with trio.fail_after(1):
        more = [(await take(sdk, link))[1].message.message_id for _ in range(2)]

    assert more == ["c", "d"]


async def test_sessions_are_listed(sessions, sdk, autojump_clock):
    await sessions.broker.send(SQ, [Message(session_id=each) for each in "ab"])

    first = await ask(sdk, ops.ListSessions(top=1), "sq")
    second = await ask(sdk, ops.ListSessions(skip=first.skip), "sq")
    empty = await reply_to(sdk, ops.ListSessions(skip=second.skip), "sq")

    assert (first.names, second.names) == (("a",), ("b",))
    assert empty.status == 204


async def test_messages_are_deleted_and_counted(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [Message(message_id=each) for each in "abc"])

    answer = await ask(sdk, ops.DeleteMessages(limit=2))
    early = await reply_to(
        sdk, ops.DeleteMessages(limit=9, before=datetime(2000, 1, 1, tzinfo=UTC))
    )
    rest = await ask(sdk, ops.DeleteMessages(limit=4000))
    empty = await reply_to(sdk, ops.DeleteMessages(limit=1))
    wrong = await reply_to(sdk, ops.DeleteMessages(limit=4001))

    assert (answer.count, rest.count) == (2, 1)
    assert (early.status, empty.status) == (204, 204)
    assert (wrong.status, wrong.condition) == (400, "amqp:not-allowed")


async def test_messages_of_a_session_that_another_connection_holds_are_not_deleted(
    sessions, sdk, autojump_clock
):
    await sessions.broker.send(SQ, [Message(session_id="a")])
    async with sessions.broker.open_session(SQ, "a"):
        refused = await reply_to(sdk, ops.DeleteMessages(limit=1, session_id="a"), "sq")

    assert refused.condition == "com.microsoft:session-lock-lost"
    assert len(await sessions.broker.peek(SQ)) == 1


async def test_the_rules_of_a_subscription_are_changed(house, sdk, autojump_clock):
    topic = EntityPath("t")
    await house.broker.create_topic(topic, TopicProperties())
    await house.broker.create_subscription(topic, "s", SubscriptionProperties())

    await ask(sdk, ops.AddRule(rule=Rule(name="mine")), "t/Subscriptions/s")
    await ask(sdk, ops.RemoveRule(name=DEFAULT_RULE), "t/Subscriptions/s")
    answer = await ask(sdk, ops.ListRules(), "t/Subscriptions/s")

    assert [rule.name for rule in answer.rules] == ["mine"]


async def test_a_queue_has_no_rules(sdk, autojump_clock):
    reply = await reply_to(sdk, ops.ListRules())

    assert (reply.status, reply.condition) == (501, "amqp:not-implemented")


@pytest.mark.parametrize(
    ("right", "operation"),
    [
        ("Send", ops.Peek(from_sequence=1, limit=1)),
        ("Listen", ops.CancelScheduled(sequence_numbers=(1,))),
    ],
)
async def test_each_operation_needs_its_right(house, right, operation, autojump_clock):
    sdk = await house.connect().open()
    await sdk.put_token(policy=next(each for each in POLICIES if each.name == right))

    reply = await reply_to(sdk, operation)

    assert (reply.status, reply.condition) == (401, "amqp:unauthorized-access")


async def test_a_namespace_that_does_not_answer_is_told_as_unknown(house, sdk, autojump_clock):
    number = await deferred(house, sdk)
    answer = await ask(sdk, ops.ReceiveDeferred(sequence_numbers=(number,)))
    house.breaks(Operation.SETTLE, Hang())
    began = trio.current_time()

    done = ops.UpdateDisposition(
        status=ops.Disposition.COMPLETED, tokens=(answer.messages[0].lock_token,)
    )
    reply = await reply_to(sdk, done, seconds=5)

    assert reply.condition == "com.microsoft:timeout"
    assert trio.current_time() - began == pytest.approx(5, abs=0.1)


async def test_an_operation_that_is_not_known_is_told_with_501(sdk, autojump_clock):
    reply = await sdk.ask(
        "orders/$management", Message(properties={"operation": "com.microsoft:dance"})
    )

    assert reply.properties["statusCode"].value == 501


async def test_an_invalid_request_is_rejected(sdk, autojump_clock):
    link = await sdk.attached(we_send=True, address="orders/$management")

    outcome = await sdk.send(link, Message())

    assert outcome.error.condition == "amqp:decode-error"


async def test_a_client_that_gives_no_credit_is_owed_only_so_much(sdk, autojump_clock):
    await sdk.attached(we_send=False, address="orders/$management")
    requests = await sdk.attached(we_send=True, address="orders/$management")
    request = build_request(
        request_of(ops.Peek(from_sequence=1, limit=1), request_id="1", reply_to="x")
    )

    for _ in range(1001):
        await sdk.outcome(sdk.engine.send(requests, b"1", request))
    closed = await sdk.until(amqp.ConnectionClosed)

    assert closed.error.condition == "amqp:resource-limit-exceeded"


async def test_a_reply_shows_no_more_than_a_megabyte(house, sdk, autojump_clock):
    big = bytes(400_000)
    await house.broker.send(ORDERS, [Message(message_id=each, body=big) for each in "abcd"])

    first = await ask(sdk, ops.Peek(from_sequence=1, limit=250))
    last = await ask(sdk, ops.Peek(from_sequence=3, limit=250))

    assert [len(answer.messages) for answer in (first, last)] == [2, 2]


async def test_one_message_is_shown_however_large_it_is(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [Message(body=bytes(1_040_000)) for _ in range(2)])

    answer = await ask(sdk, ops.Peek(from_sequence=1, limit=250))

    assert len(answer.messages) == 1


async def test_so_many_messages_are_shown_as_are_asked_for(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [Message() for _ in range(100)])

    counts = [
        len((await ask(sdk, ops.Peek(from_sequence=1, limit=limit))).messages)
        for limit in (1, 32, 33, 70, 100, 250)
    ]

    assert counts == [1, 32, 33, 70, 100, 100]


async def test_a_request_names_only_so_many_messages(sdk, autojump_clock):
    reply = await reply_to(sdk, ops.ReceiveDeferred(sequence_numbers=tuple(range(1, 1002))))

    assert (reply.status, reply.condition) == (400, "amqp:not-allowed")


async def test_the_namespace_tells_who_it_is(house, sdk, autojump_clock):
    request = attrs.evolve(identity_request(), id="7", reply_to="here")

    reply = await reply_at(sdk, "$management", request)

    assert identity_of(reply) == await house.broker.identity()


async def test_the_namespace_itself_has_no_other_management_on_amqp(sdk, autojump_clock):
    reply = await reply_at(sdk, "$management", NodeRequest(operation="x", id="7", reply_to="here"))

    assert reply.condition == "amqp:not-implemented"
    assert "use HTTP" in reply.description


async def test_a_client_without_a_token_is_not_told_who_the_namespace_is(house, autojump_clock):
    stranger = await house.connect().open()

    error = await stranger.refusal(
        we_send=True, address="x", target=amqp.Terminus(address="$management")
    )

    assert error.condition == "amqp:unauthorized-access"
