"""Receives of one client begin in its turn; those that wait for a message hold nobody up."""

import trio
from trio.testing import MockClock

from gateway.domain.message import Message
from gateway.net.clients import AWAITED
from gateway.wire.amqp import events as amqp
from tests.frontends.limited_site import Site, beside_another, open_site
from tests.frontends.rest_client import ORDERS, head

MANY = 50


async def receive(site: Site, seconds: float, found: list[int]) -> None:
    """A receive over a connection of its own."""
    async with site.rest("Listen") as client:
        found.append((await head(client, seconds=seconds)).status)


async def test_receives_that_do_not_wait_begin_as_many_at_a_time_as_the_share(
    autojump_clock: MockClock,
) -> None:
    async with open_site(share=4) as site:
        site.broker.looks = 2 * AWAITED
        found: list[int] = []
        async with beside_another(site), trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(receive, site, 0, found)

    assert sorted(found) == [201] + [204] * (MANY - 1)
    assert site.broker.most_looking <= 4


async def test_receives_that_wait_begin_in_turn_and_all_of_them_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_site(share=4) as site:
        site.broker.looks = AWAITED / 2
        found: list[int] = []
        async with beside_another(site), trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(receive, site, 60, found)
            await trio.sleep(MANY * AWAITED)
            most = site.broker.most_looking
            await site.broker.send(ORDERS, [Message(body=b"x")] * MANY)
            await trio.sleep(1)

    assert most <= 4
    assert found == [201] * MANY


async def test_links_of_a_client_ask_for_messages_in_its_turn(autojump_clock: MockClock) -> None:
    async with open_site(share=4) as site:
        one = await site.connect().open()
        await one.put_token()
        links = [await one.receiver() for _ in range(MANY)]
        site.broker.looks = AWAITED / 2
        async with beside_another(site):
            for link in links:
                one.engine.grant(link, 1)
            await trio.sleep(MANY * AWAITED)
            most = site.broker.most_looking
            await site.broker.send(ORDERS, [Message(body=b"x")] * MANY)
            arrived = [await one.until(amqp.TransferReceived) for _ in range(MANY)]

    assert most <= 4
    assert {each.link for each in arrived} == set(links)
