"""Clients that connect while the primary is away, in virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from pamqp import commands

from gateway.domain.access import AccessPolicy, Right
from gateway.frontends.auth import EMULATOR_POLICY
from tests.frontends.bearer import ISSUER, World
from tests.frontends.rabbitmq.peers import SLOW, Harness, Peer, harness, log_in
from tests.frontends.rest_client import wall_clock

ORDERS = commands.Queue.Declare(queue="orders", durable=True, arguments={"x-max-length": 9})
BIND = commands.Queue.Bind(queue="orders", exchange="events", routing_key="order.#")


@asynccontextmanager
async def outage() -> AsyncIterator[Harness]:
    """A primary that a client has logged in at, published to and declared on, and that is gone."""
    async with harness() as here:
        await here.confirmed_once()
        await here.asks(ORDERS, commands.Queue.DeclareOk("orders", 7, 1))
        await here.asks(BIND, commands.Queue.BindOk())
        here.is_down = True
        await here.primary.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        yield here


async def started(here: Harness) -> Peer:
    client = here.connect()
    await log_in(client)
    await client.send(1, commands.Channel.Open())
    await client.hears(commands.Channel.OpenOk)
    return client


async def test_a_client_that_starts_in_an_outage_publishes_at_once(autojump_clock):
    async with outage() as here:
        client = await started(here)
        await client.send(1, commands.Confirm.Select())
        await client.hears(commands.Confirm.SelectOk)
        await client.publish(b"new")

        assert (await client.hears(commands.Basic.Ack)).delivery_tag == 1
        assert here.pair.bodies() == [b"new"]


async def test_a_client_that_started_in_an_outage_consumes_after_it(autojump_clock):
    async with outage() as here:
        client = await started(here)
        await client.send(1, commands.Basic.Consume(queue="orders", consumer_tag="workers"))
        await client.hears(commands.Basic.ConsumeOk)
        await here.client.stream.aclose()
        here.is_down = False
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await again.hears(commands.Basic.Consume)
        await again.send(1, commands.Basic.ConsumeOk("workers"))
        await again.deliver(1, b"one")

        assert (await client.hears(commands.Basic.Deliver)).delivery_tag == 1


async def test_a_login_that_the_primary_never_accepted_is_told_of_the_outage(autojump_clock):
    async with outage() as here:
        client = here.connect()
        with pytest.raises(AssertionError, match=r"Connection\.Close"):
            await log_in(client, password="wrong")


def policy(**how: Any) -> AccessPolicy:
    entities, rights = how.get("entities", ("orders",)), how.get("rights", {Right.SEND})
    keys = (how.get("key", "secret"),)
    return AccessPolicy(name="anna", keys=keys, rights=frozenset(rights), entities=entities)


async def test_a_policy_admits_a_client_where_the_primary_was_never_met(autojump_clock):
    async with harness(policies=[policy()], starts_in_outage=True) as here:
        client = await started(here)
        await client.send(1, commands.Confirm.Select())
        await client.hears(commands.Confirm.SelectOk)
        await client.publish(b"new")

        assert (await client.hears(commands.Basic.Ack)).delivery_tag == 1
        assert here.pair.bodies() == [b"new"]


async def test_a_client_that_a_policy_admitted_is_judged_by_the_primary_later(autojump_clock):
    async with harness(policies=[policy()], starts_in_outage=True) as here:
        client = await started(here)
        here.is_down = False
        with trio.fail_after(60):
            primary = await here.dialled.receive()
        await primary.skip_header()
        await primary.send(0, commands.Connection.Start(server_properties={}))
        await primary.hears(commands.Connection.StartOk)
        await primary.send(0, commands.Connection.Close(403, "ACCESS_REFUSED", 0, 0))

        assert (await client.hears(commands.Connection.Close)).reply_code == 320


async def test_a_policy_admits_nobody_without_its_key(autojump_clock):
    async with harness(policies=[policy(key="another")], starts_in_outage=True) as here:
        client = here.connect()
        with pytest.raises(AssertionError, match=r"Connection\.Close"):
            await log_in(client)


async def test_the_well_known_key_admits_nobody(autojump_clock):
    known = EMULATOR_POLICY
    async with harness(starts_in_outage=True) as here:
        client = here.connect()
        with pytest.raises(AssertionError, match="has ended"):
            await log_in(client, user=known.name, password=known.keys[0])


@pytest.fixture
async def issuer(nursery: trio.Nursery) -> World:
    world = World()
    await nursery.start(world.issuers.run)
    await trio.testing.wait_all_tasks_blocked()
    return world


def token(issuer: World, **claims: Any) -> str:
    return issuer.bearer("Send", **claims).removeprefix("Bearer ")


async def test_a_token_of_an_issuer_admits_its_client_in_an_outage(issuer, autojump_clock):
    async with harness(authorizer=issuer.authorizer(), starts_in_outage=True) as here:
        client = here.connect()
        await log_in(client, user="", password=token(issuer))
        await client.send(1, commands.Channel.Open(), commands.Confirm.Select())
        await client.hears(commands.Channel.OpenOk)
        await client.hears(commands.Confirm.SelectOk)
        await client.publish(b"new")
        assert (await client.hears(commands.Basic.Ack)).delivery_tag == 1
        await client.publish(b"elsewhere", "invoices")

        await client.hears(commands.Basic.Nack)
        assert here.pair.bodies() == [b"new"]


@pytest.mark.parametrize("claims", [{"exp": 1}, {"aud": "another"}], ids=str)
async def test_a_token_that_is_refused_admits_nobody(issuer, autojump_clock, claims):
    async with harness(authorizer=issuer.authorizer(), starts_in_outage=True) as here:
        client = here.connect()
        with pytest.raises(AssertionError, match=r"Connection\.Close"):
            await log_in(client, password=token(issuer, **claims))


async def test_a_token_counts_until_it_expires_and_then_the_new_one(issuer, autojump_clock):
    soon = int(wall_clock().timestamp()) + 10
    async with harness(authorizer=issuer.authorizer(), starts_in_outage=True) as here:
        client = here.connect()
        await log_in(client, password=token(issuer, exp=soon))
        await client.send(1, commands.Channel.Open(), commands.Confirm.Select())
        await client.hears(commands.Channel.OpenOk)
        await client.hears(commands.Confirm.SelectOk)
        await trio.sleep(10 + ISSUER.clock_skew + 1)
        await client.publish(b"late")
        await client.hears(commands.Basic.Nack)
        await client.send(0, commands.Connection.UpdateSecret(token(issuer), "expired"))
        await client.hears(commands.Connection.UpdateSecretOk)
        await client.publish(b"again")

        await client.hears(commands.Basic.Ack)
        assert here.pair.bodies() == [b"again"]


@pytest.mark.parametrize(
    "other",
    [{"entities": ("invoices",)}, {"rights": {Right.LISTEN}}],
    ids=["another entity", "another right"],
)
async def test_a_policy_lets_its_client_publish_where_it_says(autojump_clock, other):
    async with harness(policies=[policy(**other)], starts_in_outage=True) as here:
        client = await started(here)
        await client.send(1, commands.Confirm.Select())
        await client.hears(commands.Confirm.SelectOk)
        await client.publish(b"new")

        await client.hears(commands.Basic.Nack)
        assert not here.pair.sent


async def test_a_primary_that_does_not_say_a_word_is_an_outage_for_a_new_client(autojump_clock):
    async with harness() as here:
        client = here.connect()
        began = trio.current_time()
        await log_in(client)

        assert SLOW <= trio.current_time() - began < SLOW + 1


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (ORDERS, commands.Queue.DeclareOk),
        (commands.Queue.Declare(queue="orders", passive=True), commands.Queue.DeclareOk),
        (commands.Queue.Declare(queue="mine", exclusive=True), commands.Queue.DeclareOk),
        (BIND, commands.Queue.BindOk),
    ],
    ids=["declared before", "looked for", "exclusive", "bound before"],
)
async def test_the_known_is_declared_in_an_outage(autojump_clock, request_, answer):
    async with outage() as here:
        client = await started(here)
        await client.send(1, request_)

        told = await client.hears(answer)
        assert not getattr(told, "message_count", 0)


async def test_a_declaration_with_large_arguments_is_not_remembered(autojump_clock):
    large = commands.Queue.Declare(queue="large", durable=True, arguments={"x": "y" * 2000})
    async with harness() as here:
        await here.confirmed_once()
        await here.asks(large, commands.Queue.DeclareOk("large", 0, 0))
        here.is_down = True
        await here.primary.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        client = await started(here)
        await client.send(1, large)

        assert (await client.hears(commands.Channel.Close)).reply_code == 404


async def test_other_arguments_than_the_primarys_are_refused_as_there(autojump_clock):
    async with outage() as here:
        client = await started(here)
        await client.send(1, commands.Queue.Declare(queue="orders"))

        close = await client.hears(commands.Channel.Close)
        assert close.reply_code == 406
        assert "inequivalent arg 'durable' for queue 'orders' in vhost '/'" in close.reply_text


async def test_the_unknown_is_refused_as_that_of_a_node_that_is_down(autojump_clock):
    async with outage() as here:
        client = await started(here)
        began = trio.current_time()
        await client.send(1, commands.Queue.Declare(queue="others", durable=True))

        close = await client.hears(commands.Channel.Close)
        assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
        assert "is down or inaccessible" in close.reply_text
        assert 10 <= trio.current_time() - began < 11


async def test_methods_before_the_login_is_done_wait_in_their_order(autojump_clock):
    async with harness() as here:
        client = here.connect()
        async with trio.open_nursery() as logins:
            logins.start_soon(log_in, client)
            primary = await here.dialled.receive()
            await primary.skip_header()
            await primary.send(0, commands.Connection.Start(server_properties={}))
            await primary.hears(commands.Connection.StartOk)
            await primary.send(0, commands.Connection.Tune(2047, 131_072, 0))
            await primary.hears(commands.Connection.TuneOk)
            await primary.hears(commands.Connection.Open)
            await client.send(1, commands.Channel.Open(), ORDERS)
            await trio.testing.wait_all_tasks_blocked()
            await primary.send(0, commands.Connection.OpenOk())

        await primary.hears(commands.Channel.Open)
        await primary.hears(commands.Queue.Declare)


async def test_a_new_token_is_the_one_of_the_next_login(autojump_clock):
    async with outage() as here:
        update = commands.Connection.UpdateSecret("fresh", "it ran out")
        await here.client.send(0, update)
        await here.client.hears(commands.Connection.UpdateSecretOk)
        here.is_down = False
        with trio.fail_after(60):
            again = await here.dialled.receive()
        await again.skip_header()
        await again.send(0, commands.Connection.Start(server_properties={}))

        assert (await again.hears(commands.Connection.StartOk)).response == "\0anna\0fresh"
