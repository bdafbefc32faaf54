"""Tokens for a peer that ends their links, drops or refuses tokens: on a socket, with a script."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized, Unavailable
from gateway.domain.message import Message
from gateway.wire.amqp.events import RELEASED, LinkAttached
from tests.brokers.amqp.doorkeeper import guarded
from tests.harness.patience import PATIENCE

ONE = [Message(message_id="1", body=b"x")]


async def test_each_link_has_a_name_of_its_own():
    """rhea as a server, and others, find a link by its name alone, whatever its direction."""
    async with guarded() as (doorkeeper, broker):
        await broker.send(EntityPath("a"), ONE)

    attached = [each for each in doorkeeper.server.told if isinstance(each, LinkAttached)]
    assert len(attached) == len({each.name for each in attached}) == 3


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])
async def test_tokens_find_another_way_when_the_peer_ends_their_links(noticed):
    async with guarded() as (doorkeeper, broker):
        await broker.send(EntityPath("a"), ONE)
        doorkeeper.send_away()
        if noticed:
            await broker.send(EntityPath("a"), ONE)  # the answer comes behind the detaches
        with trio.fail_after(PATIENCE):
            await broker.send(EntityPath("b"), ONE)

        assert len(doorkeeper.server.connections) == 1


async def test_a_token_without_an_answer_does_not_hold_up_the_others():
    async with guarded(token_lifetime=1.0) as (doorkeeper, broker):
        for name in ("a", "b"):
            await broker.send(EntityPath(name), ONE)
        doorkeeper.deaf_to = {"a"}

        await doorkeeper.until("a", "b", "a", "b")


async def test_a_token_that_the_peer_has_dropped_is_replaced():
    async with guarded() as (doorkeeper, broker):
        await broker.send(EntityPath("a"), ONE)
        doorkeeper.drop_tokens()
        await wait_all_tasks_blocked(0.01)
        with trio.fail_after(PATIENCE):
            await broker.send(EntityPath("a"), ONE)

        assert doorkeeper.put == ["a", "a"]


async def test_a_new_token_that_is_refused_is_no_reason_for_another():
    async with guarded() as (doorkeeper, broker):
        doorkeeper.never = {"a"}
        for _ in range(2):
            with trio.fail_after(PATIENCE), pytest.raises(NotAuthorized):
                await broker.send(EntityPath("a"), ONE)

        assert doorkeeper.put == ["a", "a"]  # a token for each send


async def test_a_token_that_is_given_back_is_not_waited_for():
    async with guarded() as (doorkeeper, broker):
        doorkeeper.server.on_transfer = lambda served, event: served.engine.settle(
            event.delivery, RELEASED
        )
        with (
            trio.fail_after(PATIENCE),
            pytest.raises(Unavailable, match="didn't accept the request"),
        ):
            await broker.send(EntityPath("a"), ONE)


async def test_a_token_that_was_refused_is_not_renewed():
    async with guarded(token_lifetime=1.0) as (doorkeeper, broker):
        await broker.send(EntityPath("a"), ONE)
        doorkeeper.refused = {"a"}
        doorkeeper.drop_tokens()
        await wait_all_tasks_blocked(0.01)
        with trio.fail_after(PATIENCE), pytest.raises(NotAuthorized):
            await broker.send(EntityPath("a"), ONE)

        put = doorkeeper.put.count("a")
        with trio.fail_after(PATIENCE):
            await broker.send(EntityPath("b"), ONE)
            while doorkeeper.put.count("b") < 2:  # the token of `a` would have been due before
                await doorkeeper.news.park()
        assert doorkeeper.put.count("a") == put
