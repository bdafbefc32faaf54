"""
A peer, following a script on sockets, ends links and connections; callers get the right errors.
"""

from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities import send_accepted_by
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    PartlyAccepted,
    QuotaExceeded,
    Unavailable,
    Unreachable,
)
from gateway.domain.message import Abandon, AcceptedBy, Complete, DeadLetter, Message
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    ConnectionOpened,
    LinkAttached,
    LinkDetached,
    Modified,
    OtherState,
    Rejected,
    TransferReceived,
)
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.options import EngineOptions
from tests.brokers.amqp.scripted import client, scripted, take
from tests.harness.patience import PATIENCE

ORDERS = EntityPath("orders")
ONE = [Message(message_id="1", body=b"x")]
FORCED = AmqpError(condition="amqp:link:detach-forced", description="idle for too long")
CONDITIONS = [
    ("amqp:not-found", EntityNotFound),
    ("amqp:unauthorized-access", NotAuthorized),
    ("amqp:resource-limit-exceeded", QuotaExceeded),
    ("amqp:link:message-size-exceeded", MessageTooLarge),
    ("amqp:not-allowed", InvalidRequest),
    ("amqp:not-implemented", NotSupported),
    ("com.microsoft:server-busy", Busy),
    ("com.microsoft:entity-disabled", EntityDisabled),
    ("com.microsoft:timeout", OutcomeUnknown),
    ("amqp:internal-error", OutcomeUnknown),
    ("amqp:link:detach-forced", OutcomeUnknown),
    ("nobody:knows", OutcomeUnknown),
]


@pytest.fixture
async def server():
    async with scripted() as server:
        yield server


@pytest.fixture
async def broker(server):
    async with client(server.port) as broker:
        yield broker


async def failure_of(send) -> BrokerError:
    with pytest.raises(BrokerError) as caught, trio.fail_after(PATIENCE):
        await send
    return caught.value


# --- the result of a send


async def test_an_accepted_message_is_sent(server, broker):
    assert await send_accepted_by(broker, ORDERS, ONE) is AcceptedBy.PRIMARY


@pytest.mark.parametrize(("condition", "meaning"), CONDITIONS)
async def test_a_rejection_means_what_its_condition_says(server, broker, condition, meaning):
    error = AmqpError(condition=condition, description="why")
    server.on_transfer = lambda served, event: served.engine.settle(
        event.delivery, Rejected(error=error)
    )

    assert type(await failure_of(broker.send(ORDERS, ONE))) is meaning


@pytest.mark.parametrize("state", [RELEASED, Modified(delivery_failed=True), Rejected()], ids=repr)
async def test_a_released_message_was_not_sent(server, broker, state):
    server.on_transfer = lambda served, event: served.engine.settle(event.delivery, state)

    assert type(await failure_of(broker.send(ORDERS, ONE))) is Unavailable


async def test_a_state_on_the_way_is_no_outcome(server, broker):
    received = OtherState(code=0x23)  # part 3, 3.4.1
    server.on_transfer = lambda served, event: served.engine.update(event.delivery, received)
    async with trio.open_nursery() as nursery:

        async def settle() -> None:
            await server.until(TransferReceived)
            await wait_all_tasks_blocked(0.05)
            [event] = [each for each in server.told if isinstance(each, TransferReceived)]
            server.connections[0].engine.settle(event.delivery, ACCEPTED)

        nursery.start_soon(settle)
        with trio.fail_after(PATIENCE):
            assert await send_accepted_by(broker, ORDERS, ONE) is AcceptedBy.PRIMARY


async def test_an_accept_that_nobody_waits_for_any_more_disturbs_nothing(server, broker):
    held = []

    def hold(served, event):
        held.append((served, event))
        scope.cancel()

    server.on_transfer = hold
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        await broker.send(ORDERS, ONE)
    [(served, event)] = held

    served.engine.settle(event.delivery, ACCEPTED)
    await wait_all_tasks_blocked(0.05)

    assert scope.cancelled_caught
    server.on_transfer = lambda served, event: served.engine.settle(event.delivery, ACCEPTED)
    with trio.fail_after(PATIENCE):
        assert await send_accepted_by(broker, ORDERS, ONE) is AcceptedBy.PRIMARY
    assert len(server.connections) == 1


async def test_a_settlement_without_an_outcome_is_unknown(server, broker):
    server.on_transfer = lambda served, event: served.engine.settle(event.delivery)

    assert type(await failure_of(broker.send(ORDERS, ONE))) is OutcomeUnknown


@pytest.mark.parametrize(("condition", "meaning"), CONDITIONS)
async def test_a_refused_link_means_what_its_condition_says_and_nothing_was_sent(
    server, broker, condition, meaning
):
    error = AmqpError(condition=condition, description="why")
    server.on_attach = lambda served, attached: served.engine.refuse(attached.link, error)
    expected = Unavailable if meaning is OutcomeUnknown else meaning

    assert type(await failure_of(broker.send(ORDERS, ONE))) is expected
    assert type(await failure_of(broker.probe(ORDERS))) is expected


@pytest.mark.parametrize("condition", [condition for condition, _ in CONDITIONS])
async def test_a_link_that_ends_leaves_what_is_under_way_unknown(server, broker, condition):
    error = AmqpError(condition=condition, description="why")
    server.on_transfer = lambda served, event: served.detach_all(error)

    assert type(await failure_of(broker.send(ORDERS, ONE))) is OutcomeUnknown


async def test_a_message_that_waited_for_credit_goes_on_the_next_link(server, broker):
    """The first link has credit for one message, and ends with it."""

    def stingy(served, attached):
        served.engine.accept(attached.link)
        served.engine.grant(attached.link, 1 if server.count(LinkAttached) == 1 else 100)

    outcomes: list[AcceptedBy | type[BrokerError]] = []

    async def send():
        try:
            outcomes.append(await send_accepted_by(broker, ORDERS, ONE))
        except BrokerError as error:
            outcomes.append(type(error))

    server.on_attach, accept = stingy, server.on_transfer
    server.on_transfer = lambda served, event: None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        nursery.start_soon(send)
        await server.until(TransferReceived)
        await wait_all_tasks_blocked(0.01)
        server.on_transfer = accept
        server.connections[0].detach_all(FORCED)

    assert sorted(outcomes, key=str) == [OutcomeUnknown, AcceptedBy.PRIMARY]


async def test_without_credit_a_send_waits_as_long_as_its_caller(server, broker):
    server.on_attach = lambda served, attached: served.engine.accept(attached.link)
    with trio.move_on_after(0.2) as scope:
        await broker.send(ORDERS, ONE)
    assert scope.cancelled_caught

    for served in server.connections:
        for link in served.links:
            served.engine.grant(link, 1)
    with trio.fail_after(PATIENCE):
        await broker.send(ORDERS, ONE)
    assert server.count(TransferReceived) == 1


async def test_a_message_above_the_limit_is_not_sent(server, broker):
    server.on_attach = lambda served, attached: (
        served.engine.accept(attached.link, max_message_size=1000),
        served.engine.grant(attached.link, 10),
    )

    big = Message(message_id="2", body=bytes(1000))
    assert type(await failure_of(broker.send(ORDERS, [*ONE, big]))) is MessageTooLarge
    assert server.count(TransferReceived) == 0


async def test_a_schedule_that_nobody_would_keep_is_refused(server, broker):
    later = Message(message_id="2", scheduled=datetime.now(UTC))

    assert type(await failure_of(broker.send(ORDERS, [*ONE, later]))) is NotSupported
    assert server.count(TransferReceived) == 0


async def test_of_several_messages_one_that_is_refused_makes_the_outcome_unknown(server, broker):
    first, second, third = (Message(message_id=each) for each in "123")
    accept = server.on_transfer
    error = AmqpError(condition="amqp:resource-limit-exceeded")

    def second_only(served, event):
        if server.count(TransferReceived) == 2:
            served.engine.settle(event.delivery, Rejected(error=error))
        else:
            accept(served, event)

    server.on_transfer = second_only
    some = await failure_of(broker.send(ORDERS, [first, second, third]))
    server.told.clear()
    alike = await failure_of(broker.send(ORDERS, ONE * 3))
    server.on_transfer = lambda served, event: served.engine.settle(
        event.delivery, Rejected(error=error)
    )
    none = await failure_of(broker.send(ORDERS, ONE * 3))

    assert (type(alike), type(none)) == (OutcomeUnknown, QuotaExceeded)
    assert isinstance(some, PartlyAccepted)
    assert [some.has_accepted(each) for each in (first, second, third)] == [True, False, True]
    assert isinstance(some.why, QuotaExceeded)


# ActiveMQ Artemis, "AMQP: Links and routing": the capability queue of a terminus asks for anycast.
# Without it Artemis 2.40 made an address without a queue, and accepted what it then dropped.
async def test_a_plain_broker_is_asked_for_a_queue(server, broker):
    await broker.send(ORDERS, ONE)
    async with broker.open_receiver(ORDERS):
        attached = [event for event in server.told if isinstance(event, LinkAttached)]

    sent, received = attached
    assert sent.target.capabilities == received.source.capabilities == ("queue",)


async def test_rabbitmq_is_asked_for_no_capability(server, broker):
    server.properties = {"product": "RabbitMQ", "version": "4.0.1"}

    await broker.send(ORDERS, ONE)

    [attached] = [event for event in server.told if isinstance(event, LinkAttached)]
    assert attached.target.capabilities == ()


# "absolute-expiry-time: Ignored on input (header TTL is observed)" (AMQP 1.0 in Azure Service Bus
# and Event Hubs protocol guide). Artemis 2.40 accepts and drops a message whose date is past.
async def test_a_producers_clock_ends_no_message_at_a_plain_broker(server, broker):
    minute, past = timedelta(seconds=60), datetime(2026, 1, 1, tzinfo=UTC)
    guess = Message(time_to_live=minute, absolute_expiry=past)

    await broker.send(ORDERS, [guess, Message(absolute_expiry=past)])

    told = [event for event in server.told if isinstance(event, TransferReceived)]
    first, second = (decode_message(event.payload) for event in told)
    assert (first.time_to_live, first.absolute_expiry) == (minute, None)
    assert second.absolute_expiry == past  # without a time to live it is the producer's wish


# --- management


async def test_an_existing_queue_need_not_be_made_and_a_missing_one_cannot_be(server, broker):
    assert type(await failure_of(broker.create_queue(ORDERS, QueueProperties()))) is EntityExists

    gone = AmqpError(condition="amqp:not-found")
    server.on_attach = lambda served, attached: served.engine.refuse(attached.link, gone)
    assert type(await failure_of(broker.create_queue(ORDERS, QueueProperties()))) is NotSupported
    assert type(await failure_of(broker.inspect(ORDERS))) is EntityNotFound
    assert type(await failure_of(broker.list_queues())) is NotSupported


async def test_the_limit_of_a_message_is_that_of_the_link(server, broker):
    server.on_attach = lambda served, attached: served.engine.accept(
        attached.link, max_message_size=12345
    )

    assert (await broker.inspect(ORDERS)).max_message_size == 12345


# --- links


async def test_an_idle_detach_is_no_error(server, broker):
    await broker.send(ORDERS, ONE)
    server.connections[0].detach_all(FORCED)
    await wait_all_tasks_blocked(0.01)

    assert await send_accepted_by(broker, ORDERS, ONE) is AcceptedBy.PRIMARY
    assert len(server.connections) == 1


async def test_an_idle_connection_that_is_closed_is_no_error(server, broker):
    await broker.send(ORDERS, ONE)
    with trio.fail_after(PATIENCE):
        await server.connections[0].connection.close(
            AmqpError(condition="amqp:connection:forced", description="idle")
        )
    await wait_all_tasks_blocked(0.01)

    assert await send_accepted_by(broker, ORDERS, ONE) is AcceptedBy.PRIMARY


async def test_a_limit_that_a_connection_meets_is_an_outage_and_no_full_queue(server, broker):
    silence = AmqpError(
        condition="amqp:resource-limit-exceeded", description="local-idle-timeout expired"
    )
    server.on_attach = lambda served, attached: served.engine.close(silence)

    error = await failure_of(broker.send(ORDERS, ONE))

    assert type(error) is Unavailable
    assert "local-idle-timeout" in str(error)


LIMITS = [
    "amqp:resource-limit-exceeded",
    "amqp:connection:forced",
    "amqp:not-allowed",
    "com.microsoft:server-busy",
]


@pytest.mark.parametrize("condition", LIMITS)
async def test_a_refused_connection_is_an_outage_whatever_the_peer_says_of_it(
    server, broker, condition
):
    full = AmqpError(condition=condition, description="5000 connections are open")

    def refuse(served, event):
        served.engine.open()
        served.engine.close(full)

    server.on_open = refuse
    errors = [await failure_of(broker.try_send(ORDERS, ONE)) for _ in range(3)]

    assert all(error.counts_as_outage for error in errors)
    assert all(error.outcome is Outcome.NOT_SENT for error in errors)
    assert "5000 connections" in str(errors[-1])


@pytest.mark.parametrize("condition", LIMITS)
async def test_a_connection_that_a_busy_peer_ends_makes_no_entity_busy(server, broker, condition):
    end = AmqpError(condition=condition, description="too much")
    server.on_attach = lambda served, attached: served.engine.close(end)

    error = await failure_of(broker.send(ORDERS, ONE))

    assert type(error) is Unavailable
    assert "too much" in str(error)


async def test_a_refused_login_is_no_outage(server, broker):
    refused = AmqpError(condition="amqp:unauthorized-access", description="who are you")
    server.on_open = lambda served, event: served.engine.close(refused)

    error = await failure_of(broker.send(ORDERS, ONE))

    assert type(error) is NotAuthorized


async def test_a_receiver_outlives_an_idle_detach(server, broker):
    def hand_out(served, attached):
        take(served, attached)
        if server.count(LinkAttached) == 2:
            served.engine.send(attached.link, b"t", encode_message(ONE[0]))

    server.on_attach = hand_out
    async with broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:

        async def detach():
            await wait_all_tasks_blocked(0.01)
            server.connections[0].detach_all(FORCED)

        nursery.start_soon(detach)
        with trio.fail_after(PATIENCE):
            [delivery] = await receiver.receive(1)

        assert delivery.message.message_id == "1"


async def test_a_delivery_of_a_link_that_has_ended_is_lost(server, broker):
    def hand_out(served, attached):
        take(served, attached)
        served.engine.send(attached.link, b"t", encode_message(ONE[0]))

    server.on_attach = hand_out
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        server.connections[0].detach_all(FORCED)
        await wait_all_tasks_blocked(0.01)

        with pytest.raises(LockLost):
            await receiver.settle(delivery, Complete())


@pytest.mark.parametrize(
    "settlement", [DeadLetter(reason="bad"), Abandon(properties={"a": 1})], ids=repr
)
async def test_a_settlement_that_amqp_lacks_is_not_done_in_another_way(server, broker, settlement):
    def hand_out(served, attached):
        take(served, attached)
        served.engine.send(attached.link, b"t", encode_message(ONE[0]))

    server.on_attach = hand_out
    async with broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)

        with pytest.raises(NotSupported):
            await receiver.settle(delivery, settlement)


async def test_links_that_were_used_longest_ago_are_closed_first(server):
    async with client(server.port, max_senders=2) as broker:
        for name in ("a", "b", "a", "c"):
            await broker.send(EntityPath(name), ONE)
        await server.until(LinkDetached)

        [served] = server.connections
        assert {link.target.address for link in served.links.values()} == {"a", "c"}


async def test_links_that_are_too_many_for_one_connection_go_on_another(server):
    async with client(server.port, max_links=2) as broker, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(broker.open_receiver(ORDERS))

        assert [len(served.links) for served in server.connections] == [2, 1]


@pytest.mark.parametrize(("channel_max", "connections"), [(0, 5), (1, 5), (3, 2), (63, 1)])
async def test_a_peer_with_few_sessions_gets_more_connections(server, channel_max, connections):
    server.options = EngineOptions(channel_max=channel_max)
    queues = [EntityPath(f"q{number}") for number in range(5)]
    async with client(server.port) as broker:
        for _ in range(2):
            for queue in queues:
                await broker.send(queue, ONE)

        assert len(server.connections) == connections


async def test_where_no_session_is_left_links_share_one(server):
    server.options = EngineOptions(channel_max=0)
    server.properties = {"product": "RabbitMQ"}  # each sender has a watch on its queue
    async with client(server.port) as broker:
        for number in range(2):
            await broker.send(EntityPath(f"q{number}"), ONE)

        assert [len(served.links) for served in server.connections] == [2, 2]


# --- connections


async def test_garbage_ends_the_connection_and_what_is_under_way_is_unknown(server, broker):
    server.on_transfer = lambda served, event: None
    async with trio.open_nursery() as nursery:

        async def babble():
            await server.until(TransferReceived)
            await server.connections[0].stream.send_all(b"\x00\x00\x00\x08GARBAGE!" * 10)

        nursery.start_soon(babble)
        error = await failure_of(broker.send(ORDERS, ONE))

    assert type(error) is OutcomeUnknown


async def test_a_server_without_amqp_is_unavailable(nursery):
    async def babble(stream):
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listeners = await nursery.start(trio.serve_tcp, babble, 0)
    port = listeners[0].socket.getsockname()[1]
    async with client(port) as broker:
        error = await failure_of(broker.send(ORDERS, ONE))

    assert error.counts_as_outage
    assert type(error) is Unreachable


async def test_after_a_connection_that_failed_there_is_a_pause(nursery):
    knocks = []

    async def hang_up(stream):
        knocks.append(trio.current_time())
        await stream.aclose()

    errors = []
    listeners = await nursery.start(trio.serve_tcp, hang_up, 0)
    async with client(listeners[0].socket.getsockname()[1]) as broker:
        with trio.fail_after(PATIENCE):
            while len(knocks) < 2:
                errors.append(await failure_of(broker.send(ORDERS, ONE)))

    assert {type(error) for error in errors} == {Unreachable}
    assert knocks[1] - knocks[0] > 0.07  # a tenth of a second, jittered


async def test_many_who_come_at_once_share_one_connection(server, broker):
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(broker.send, EntityPath(f"queue{number % 5}"), ONE)

    assert server.count(ConnectionOpened) == 1
    assert server.count(LinkAttached) == 5


async def test_a_broken_block_says_what_broke_it(server):
    async def breaks():
        async with client(server.port) as broker:
            await broker.send(ORDERS, ONE)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await breaks()


async def test_a_cancelled_block_ends(server):
    with trio.move_on_after(0.2) as scope:
        async with client(server.port) as broker:
            await broker.send(ORDERS, ONE)
            await trio.sleep_forever()

    assert scope.cancelled_caught
