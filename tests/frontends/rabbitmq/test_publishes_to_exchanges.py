"""Publishes to an exchange in an outage: stored for that exchange, or refused as by the primary."""

import pytest
import trio
from pamqp import commands

from gateway.wire.rabbitmq.frames import method_frame, payload_frame
from tests.frontends.rabbitmq.peers import harness


async def test_a_publish_to_an_exchange_goes_through_the_pair_with_its_routing_key(autojump_clock):
    publish = commands.Basic.Publish(exchange="Shop:Orders", routing_key="key.two")
    async with harness() as here:
        await here.confirmed_once()
        await here.confirmed_at("Shop:Orders")
        await here.primary.stream.aclose()
        await here.client.publish(b"two", "key.two", "Shop:Orders", headers={"CC": ["more"]})

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 3
        [stored] = here.pair.sent
        assert here.pair.entities == ["$exchange/Shop~3AOrders"]
        assert payload_frame(1, stored.publish_method) == method_frame(1, publish)
        assert stored.body == b"two"


async def test_a_publish_to_the_default_exchange_is_for_its_queue(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"second")
        await here.client.hears(commands.Basic.Ack)

        assert here.pair.entities == ["orders"]
        assert here.pair.sent[0].publish_method is None


async def test_a_queue_of_any_name_gets_its_publishes_by_their_exact_routing_key(autojump_clock):
    publish = commands.Basic.Publish(routing_key="orders:high", mandatory=True)
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"second", "orders:high")
        await here.client.hears(commands.Basic.Ack)

        [stored] = here.pair.sent
        assert here.pair.entities == ["$exchange/amq.default"]
        assert payload_frame(1, stored.publish_method) == method_frame(1, publish)


async def test_queues_whose_names_differ_in_case_get_their_own_publishes(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        for queue in ("orders", "Orders"):
            await here.client.publish(queue.encode(), queue)
        for _ in range(2):
            await here.client.hears(commands.Basic.Ack)

        found = dict(zip(here.pair.entities, here.pair.bodies(), strict=True))
        assert found == {"orders": b"orders", "Orders": b"Orders"}


async def test_an_exchange_without_confirms_alone_leaves_the_wire_to_the_others(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.confirmed_at("events")
        await here.client.publish(b"two", "key", "events")
        await here.primary.hears(commands.Basic.Publish)
        await trio.sleep(1)
        await here.primary.send(0, commands.Connection.Unblocked())  # it's alive

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 3
        await here.client.publish(b"three")
        await here.primary.hears(commands.Basic.Publish)
        assert here.pair.entities == ["$exchange/events"]
        assert here.states.evidence[-1] == "$exchange/events slow"


async def test_an_exchange_that_nobody_has_shown_is_not_found(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"two", "key", "unknown")

        close = await here.client.hears(commands.Channel.Close)
        assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 40)
        assert close.reply_text == "NOT_FOUND - no exchange 'unknown' in vhost '/'"
        assert here.pair.sent == []


async def test_a_deleted_exchange_is_not_found(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.confirmed_at("events")
        await here.asks(commands.Exchange.Delete(exchange="events"), commands.Exchange.DeleteOk())
        await here.primary.stream.aclose()
        await here.client.publish(b"two", "key", "events")

        assert (await here.client.hears(commands.Channel.Close)).reply_code == 404
        assert here.pair.sent == []


async def test_a_channel_that_was_closed_for_a_publish_is_opened_again(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"two", "key", "unknown")
        await here.client.publish(b"three")  # it was on its way
        await here.client.hears(commands.Channel.Close)
        await here.client.send(1, commands.Channel.CloseOk(), commands.Channel.Open())
        await here.client.hears(commands.Channel.OpenOk)
        await here.client.send(1, commands.Confirm.Select())
        await here.client.hears(commands.Confirm.SelectOk)
        await here.client.publish(b"four")

        assert (await here.client.hears(commands.Basic.Ack)).delivery_tag == 1
        assert here.pair.bodies() == [b"four"]


@pytest.mark.parametrize(
    "properties",
    [{"expiration": "soon"}, {"user_id": "otto"}, {"headers": {"CC": "more"}}],
    ids=["an expiration", "another user's id", "routes that are no array"],
)
async def test_a_property_that_the_primary_refuses_closes_the_channel(autojump_clock, properties):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"two", **properties)

        close = await here.client.hears(commands.Channel.Close)
        assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 40)
        assert here.pair.sent == []


async def test_a_login_has_the_rights_that_the_primary_has_shown_by_exchange(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        declare = commands.Exchange.Declare(exchange="events", exchange_type="topic")
        await here.asks(declare, commands.Exchange.DeclareOk())
        await here.primary.stream.aclose()
        await here.client.publish(b"two", "key", "events")

        await here.client.hears(commands.Basic.Nack)
        assert here.pair.sent == []


async def test_an_immediate_publish_is_not_stored(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.primary.stream.aclose()
        await here.client.publish(b"two", immediate=True)

        await here.client.hears(commands.Basic.Nack)
        assert here.pair.sent == []


async def test_a_refusal_without_confirms_ends_the_connection(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await here.asks(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk())
        await here.asks(commands.Channel.Open(), commands.Channel.OpenOk())
        await here.primary.stream.aclose()
        await here.client.publish(b"answer", "amq.gen-x")

        assert (await here.client.hears(commands.Connection.Close)).reply_code == 320
