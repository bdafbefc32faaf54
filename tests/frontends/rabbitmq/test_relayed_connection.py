"""A client's connection between a client and a primary of the test, in virtual time."""

import pytest
import trio
from pamqp import body, commands, frame, header

from gateway.domain.errors import Unavailable
from gateway.domain.failover import State
from gateway.frontends.rabbitmq.publishes import MAX_KEPT
from gateway.wire.rabbitmq.frames import HEAD, method_frame
from tests.frontends.rabbitmq.peers import HEADER_OF_OTHERS, SLOW, harness


async def test_a_publish_without_a_confirm_goes_through_the_pair_when_the_primary_is_lost(
    autojump_clock,
):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.stream.aclose()

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.bodies() == [b"second"]
        assert here.states.evidence == ["orders sent", "orders failed"]


async def test_tags_go_on_when_the_primary_is_back(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await here.client.publish(b"second")

        assert (await again.hears(commands.Confirm.Select)).nowait
        await again.hears(commands.Basic.Publish)
        await again.send(1, commands.Basic.Ack(1))
        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.sent == []


async def test_a_primary_that_speaks_nonsense_is_dialled_again(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        with trio.fail_after(60):
            odd = await here.dialled.receive()
        await odd.stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await here.client.publish(b"second")

        await again.hears(commands.Confirm.Select)
        await again.hears(commands.Basic.Publish)


async def test_a_primary_without_a_word_is_given_up(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        began = trio.current_time()
        await here.client.publish(b"second")

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert trio.current_time() - began < SLOW + 1
        assert here.states.evidence == ["orders sent", "orders slow"]


async def test_a_request_is_answered_from_memory_when_the_primary_answers_nobody(autojump_clock):
    declare = commands.Queue.Declare(queue="orders", durable=True)
    async with harness() as here:
        await here.confirmed_once()
        await here.asks(declare, commands.Queue.DeclareOk("orders", 1, 0))
        await trio.sleep(SLOW)
        began = trio.current_time()
        await here.client.send(1, declare)

        answer = await here.client.hears(commands.Queue.DeclareOk)
        assert (answer.queue, answer.message_count) == ("orders", 0)
        assert trio.current_time() - began < SLOW + 1
        assert here.states.evidence == ["orders sent", "connection.start unanswered"]


async def test_a_primary_that_greets_others_may_take_long_for_a_request(autojump_clock):
    declare = commands.Queue.Declare(queue="orders", durable=True)
    async with harness() as here:
        await here.confirmed_once()
        await here.client.send(1, declare)
        await here.primary.hears(commands.Queue.Declare)
        for _ in range(3):
            with trio.fail_after(60):
                other = await here.dialled.receive()
            await other.skip_header()
            await other.send(0, commands.Connection.Start(server_properties={}))
        await here.primary.send(1, commands.Queue.DeclareOk("orders", 7, 0))

        answer = await here.client.hears(commands.Queue.DeclareOk)
        assert answer.message_count == 7
        assert here.states.evidence == ["orders sent"]
        assert await other.stream.receive_some() == b""  # it was only asked for its greeting


async def test_an_entity_without_confirms_alone_leaves_the_wire_to_the_others(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await trio.sleep(SLOW / 2)
        await here.primary.send(0, commands.Connection.Unblocked())  # it's alive

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        await here.primary.send(1, commands.Basic.Ack(2))  # late: the client knows already
        await here.client.publish(b"third", queue="others")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(1, commands.Basic.Ack(3))
        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 3
        assert here.pair.bodies() == [b"second"]


async def test_a_blocked_primary_gets_no_publish(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.send(0, commands.Connection.Blocked("memory"))
        await trio.testing.wait_all_tasks_blocked()
        await here.client.publish(b"second")

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.bodies() == [b"second"]


async def test_a_diverted_entity_goes_through_the_pair_though_the_wire_is_well(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        here.states.state = State.PINNED
        await here.client.publish(b"second")

        await here.client.hears(commands.Basic.Ack)
        assert here.pair.bodies() == [b"second"]


async def test_a_publish_that_the_pair_refuses_is_told_by_a_nack(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        here.pair.error = Unavailable("both are down")
        await here.primary.stream.aclose()
        await here.client.publish(b"second")

        assert (await here.client.hears(commands.Basic.Nack)).delivery_tag == 2


async def test_a_nack_is_an_answer_and_no_outage(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(1, commands.Basic.Nack(2))

        assert (await here.client.hears(commands.Basic.Nack)).delivery_tag == 2
        assert here.pair.sent == []


@pytest.mark.parametrize(
    ("vhost", "exchange", "queue"),
    [("other", "", "orders"), ("/", "amq.topic", ""), ("/", "", "amq.gen-x")],
    ids=["another vhost", "an exchange without a right", "a server-named queue"],
)
async def test_a_publish_that_the_pair_cannot_keep_is_told_by_a_nack(
    autojump_clock, vhost, exchange, queue
):
    async with harness(vhost) as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"second", queue, exchange)

        await here.client.hears(commands.Basic.Nack)
        assert here.pair.sent == []


async def test_a_request_for_a_direct_reply_is_not_stored(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"ask", reply_to="amq.rabbitmq.reply-to")

        await here.client.hears(commands.Basic.Nack)
        assert here.pair.sent == []


async def test_a_publish_to_the_queue_of_a_connection_is_not_stored(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        declare = commands.Queue.Declare(queue="replies", exclusive=True)
        await here.asks(declare, commands.Queue.DeclareOk("replies", 0, 0))
        await here.primary.stream.aclose()
        await here.client.publish(b"answer", "replies")

        await here.client.hears(commands.Basic.Nack)
        assert here.pair.sent == []


async def test_a_login_that_the_primary_never_let_publish_has_no_rights_at_the_pair(
    autojump_clock,
):
    async with harness() as here:
        await here.client.send(1, commands.Channel.Open())
        await here.primary.hears(commands.Channel.Open)
        await here.primary.send(1, commands.Channel.OpenOk())
        await here.client.hears(commands.Channel.OpenOk)
        await here.primary.stream.aclose()
        await here.client.publish(b"first")

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320
        assert here.pair.sent == []


async def test_a_channel_that_the_primary_has_closed_is_opened_again_by_its_number(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.send(1, commands.Basic.Get(queue="missing"))
        await here.primary.hears(commands.Basic.Get)
        await here.primary.send(1, commands.Channel.Close(404, "NOT_FOUND", 60, 70))
        await here.client.hears(commands.Channel.Close)
        await here.client.send(1, commands.Channel.CloseOk(), commands.Channel.Open())

        await here.primary.hears(commands.Channel.CloseOk)
        await here.primary.hears(commands.Channel.Open)
        await here.primary.send(1, commands.Channel.OpenOk())
        await here.client.hears(commands.Channel.OpenOk)


async def test_a_channel_error_names_the_tag_that_the_client_knows(autojump_clock):
    text = "PRECONDITION_FAILED - unknown delivery tag 1"
    async with harness() as here:
        await here.confirmed_once()
        await here.consumes()
        await here.primary.deliver(1, b"one")
        await here.client.hears(commands.Basic.Deliver)
        await here.client.send(1, commands.Basic.Ack(1), commands.Basic.Ack(1))
        await here.primary.send(1, commands.Channel.Close(406, text, 60, 80))

        assert (await here.client.hears(commands.Channel.Close)).reply_text == text


async def test_a_close_in_an_outage_is_answered_after_the_publishes(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"second")
        await here.client.send(0, commands.Connection.Close(200, "", 0, 0))

        await here.client.hears(commands.Basic.Ack)
        await here.client.hears(commands.Connection.CloseOk)


@pytest.mark.parametrize("reason", ["Closed via management plugin", "tidying up"])
async def test_an_operator_who_closes_the_connection_closes_the_clients(autojump_clock, reason):
    text = f"CONNECTION_FORCED - {reason}"
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(0, commands.Connection.Close(320, text, 0, 0))

        await here.primary.hears(commands.Connection.CloseOk)
        assert (await here.client.hears(commands.Connection.Close)).reply_text == text
        assert here.pair.sent == []


@pytest.mark.parametrize(
    "reason",
    [
        "broker forced connection closure with reason 'shutdown'",
        "Node was put into maintenance mode",
        "vhost '/' is down",
    ],
)
async def test_a_node_that_shuts_down_is_an_outage(autojump_clock, reason):
    text = f"CONNECTION_FORCED - {reason}"
    async with harness() as here:
        await here.confirmed_once()
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await here.primary.send(0, commands.Connection.Close(320, text, 0, 0))

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 2
        assert here.pair.bodies() == [b"second"]


@pytest.mark.parametrize("bad", [HEAD.pack(1, 1, 1) + b"xx", HEAD.pack(0, 1, 0) + b"\xce"])
async def test_a_malformed_frame_ends_the_connection_with_the_protocols_own_error(
    autojump_clock, bad: bytes
):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.stream.send_all(bad)

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 501


@pytest.mark.parametrize(
    "frames",
    [
        HEAD.pack(2, 1, 1) + b"x\xce",
        HEAD.pack(8, 1, 0) + b"\xce",
        2 * method_frame(1, commands.Basic.Publish(routing_key="orders")),
        HEADER_OF_OTHERS,
    ],
)
async def test_a_frame_that_can_not_be_there_ends_the_connection_as_in_rabbitmq(
    autojump_clock, frames
):
    async with harness() as here:
        await here.confirmed_once()
        await here.client.stream.send_all(frames)

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 505


async def test_a_login_that_the_primary_ends_without_a_word_ends_as_soon(autojump_clock):
    async with harness() as here:
        client, primary = await here.begins_login()
        began = trio.current_time()
        await primary.stream.aclose()
        ended = await client.stream.receive_some()

        assert (ended, trio.current_time()) == (b"", began)


async def test_a_publish_that_a_closed_channel_cuts_off_leaves_room_for_others(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        content = header.ContentHeader(body_size=2 * MAX_KEPT)
        await here.client.send(1, commands.Basic.Publish(routing_key="orders"))
        await here.client.stream.send_all(frame.marshal(content, 1))
        part = frame.marshal(body.ContentBody(bytes(100_000)), 1)
        for _ in range(MAX_KEPT // 100_000 + 1):
            await here.client.stream.send_all(part)
        await here.primary.send(1, commands.Channel.Close(404, "", 60, 40))
        await here.client.hears(commands.Channel.Close)
        await here.client.send(1, commands.Channel.CloseOk())
        await here.client.send(2, commands.Channel.Open())

        await here.primary.hears(commands.Channel.CloseOk)
        await here.primary.hears(commands.Channel.Open)
