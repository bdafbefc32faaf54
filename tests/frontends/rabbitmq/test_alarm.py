"""The primary's alarm: one connection hears of it, and none publishes there."""

import trio
from pamqp import commands

from gateway.domain.errors import Unavailable
from tests.frontends.rabbitmq.peers import SLOW, Harness, harness, log_in, log_in_at


async def alarmed(here: Harness) -> None:
    await here.confirmed_once()
    await here.primary.send(0, commands.Connection.Blocked("memory"))
    await trio.testing.wait_all_tasks_blocked()


async def test_no_connection_publishes_to_a_primary_that_one_knows_to_be_blocked(autojump_clock):
    async with harness() as here:
        await alarmed(here)
        other = here.connect()
        async with trio.open_nursery() as logins:
            logins.start_soon(log_in, other)
            primary = await here.dialled.receive()
            await log_in_at(primary)
        await other.send(1, commands.Channel.Open())
        await primary.hears(commands.Channel.Open)
        await primary.send(1, commands.Channel.OpenOk())
        await other.hears(commands.Channel.OpenOk)
        await other.publish(b"second")
        await other.send(1, commands.Basic.Qos(prefetch_count=1))

        await primary.hears(commands.Basic.Qos)
        assert here.pair.bodies() == [b"second"]


async def test_publishes_go_to_the_primary_again_after_its_alarm(autojump_clock):
    async with harness() as here:
        await alarmed(here)
        await here.primary.send(0, commands.Connection.Unblocked())
        await trio.testing.wait_all_tasks_blocked()
        await here.client.publish(b"second")

        await here.primary.hears(commands.Basic.Publish)
        assert here.pair.sent == []


async def test_a_blocked_connection_that_ends_leaves_no_alarm(autojump_clock):
    async with harness() as here:
        await alarmed(here)
        await here.primary.stream.aclose()
        again = await here.next_primary()
        await again.hears(commands.Channel.Open)
        await again.send(1, commands.Channel.OpenOk())
        await here.client.publish(b"second")

        await again.hears(commands.Confirm.Select)
        await again.hears(commands.Basic.Publish)


async def test_a_client_hears_of_the_alarm_only_while_neither_side_takes_publishes(autojump_clock):
    async with harness() as here:
        await alarmed(here)
        await here.client.publish(b"second")
        await here.client.hears(commands.Basic.Ack)  # and nothing before
        here.pair.error = Unavailable("both are down")
        await here.client.publish(b"third")
        assert (await here.client.hears(commands.Connection.Blocked)).reason == "memory"
        await here.client.hears(commands.Basic.Nack)
        await here.primary.send(0, commands.Connection.Unblocked())

        await here.client.hears(commands.Connection.Unblocked)


async def greet_all(here: Harness) -> None:
    """Be alive: RabbitMQ greets each new connection during an alarm."""
    while True:
        other = await here.dialled.receive()
        await other.skip_header()
        await other.send(0, commands.Connection.Start(server_properties={}))


async def test_a_connection_that_stays_blocked_holds_up_no_request(autojump_clock):
    async with harness() as here, trio.open_nursery() as others:
        await alarmed(here)
        others.start_soon(greet_all, here)
        await here.client.send(1, commands.Channel.Close(200, "", 0, 0))

        with trio.fail_after(2 * SLOW):
            await here.client.hears(commands.Channel.CloseOk)
        others.cancel_scope.cancel()


async def test_a_publish_without_a_confirm_in_an_alarm_holds_up_no_request(autojump_clock):
    async with harness() as here, trio.open_nursery() as others:
        await here.confirmed_once()
        others.start_soon(greet_all, here)
        await here.client.publish(b"second")
        await here.primary.hears(commands.Basic.Publish)
        await trio.sleep(0.2)  # less than between two looks at what is late
        await here.primary.send(0, commands.Connection.Blocked("memory"))
        await here.client.hears(commands.Basic.Ack)
        await here.client.send(1, commands.Channel.Close(200, "", 0, 0))

        with trio.fail_after(2 * SLOW):
            await here.client.hears(commands.Channel.CloseOk)
        assert here.pair.bodies() == [b"second"]
        others.cancel_scope.cancel()


async def test_a_connection_that_is_blocked_for_a_moment_is_kept(autojump_clock):
    async with harness() as here:
        await alarmed(here)
        await trio.sleep(SLOW / 2)
        await here.primary.send(0, commands.Connection.Unblocked())
        await trio.sleep(2 * SLOW)
        await here.client.publish(b"second")

        await here.primary.hears(commands.Basic.Publish)
