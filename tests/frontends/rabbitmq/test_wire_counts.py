"""The publishes that the primary has answered are in the counters of the pair."""

from collections import Counter

import trio
from pamqp import commands

from tests.frontends.rabbitmq.peers import Harness, harness


def counted(here: Harness) -> Counter[tuple[str, str, str]]:
    """The messages by who has accepted them, outcome, and error."""
    rows = here.sends.all()
    return Counter({(row.accepted_by, row.outcome, row.error): row.messages for row in rows})


ACCEPTED = ("primary", "accepted", "")


async def published(here: Harness, count: int) -> None:
    for number in range(count):
        await here.client.publish(b"%d" % number)
        await here.primary.hears(commands.Basic.Publish)


async def test_confirmed_publishes_count_as_accepted_by_the_primary(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await published(here, 3)
        await trio.sleep(1)
        await here.primary.send(1, commands.Basic.Ack(4, multiple=True))
        await here.client.hears(commands.Basic.Ack)

        assert counted(here) == {ACCEPTED: 4}
        [durations] = here.sends.durations()
        assert durations.seconds.total == 3
        assert here.sends.slowest_since(1) == 1


async def test_a_nack_counts_as_refused(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await published(here, 1)
        await here.primary.send(1, commands.Basic.Nack(2))
        await here.client.hears(commands.Basic.Nack)

        assert counted(here) == {ACCEPTED: 1, ("", "not-sent", "QuotaExceeded"): 1}


async def test_publishes_whose_channel_ends_before_their_confirms_count_as_unknown(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await published(here, 2)
        await here.primary.send(1, commands.Channel.Close(404, "NOT_FOUND - no exchange", 60, 40))
        await here.client.hears(commands.Channel.Close)

        assert counted(here) == {ACCEPTED: 1, ("", "unknown", "OutcomeUnknown"): 2}


async def test_the_only_publish_of_a_channel_that_ends_counts_with_the_primarys_error(
    autojump_clock,
):
    async with harness() as here:
        await here.confirmed_once()
        await published(here, 1)
        await here.primary.send(1, commands.Channel.Close(404, "NOT_FOUND - no exchange", 60, 40))
        await here.client.hears(commands.Channel.Close)

        assert counted(here) == {ACCEPTED: 1, ("", "not-sent", "EntityNotFound"): 1}


async def test_publishes_of_a_client_that_has_gone_count_as_unknown(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await published(here, 1)
        await here.client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()

        assert counted(here) == {ACCEPTED: 1, ("", "unknown", "Cancelled"): 1}


async def test_a_publish_that_the_pair_has_is_left_to_its_own_count(autojump_clock):
    async with harness() as here:
        await here.confirmed_once()
        await published(here, 1)
        here.is_down = True
        await here.primary.stream.aclose()
        await here.client.hears(commands.Basic.Ack)

        assert counted(here) == {ACCEPTED: 1}


async def test_a_committed_transaction_counts_with_its_publishes(autojump_clock):
    async with harness() as here:
        await here.client.send(1, commands.Channel.Open())
        await here.primary.hears(commands.Channel.Open)
        await here.primary.send(1, commands.Channel.OpenOk())
        await here.client.hears(commands.Channel.OpenOk)
        await here.asks(commands.Tx.Select(), commands.Tx.SelectOk())
        await published(here, 2)
        await here.asks(commands.Tx.Rollback(), commands.Tx.RollbackOk())
        await published(here, 3)
        await here.asks(commands.Tx.Commit(), commands.Tx.CommitOk())

        assert counted(here) == {ACCEPTED: 3}
