"""A primary that comes back within the failover interval, without what it had before."""

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import EntityNotFound, NotAuthorized, Unavailable, Unreachable
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.pairing.options import OnRefusedCredentials, OnUnreachable, UnknownEntity, WhileSuspect
from tests.harness.faults import Operation
from tests.pairing.harness import (
    BILLS,
    ORDERS,
    Harness,
    message,
    outcome_of,
    reaches,
    refuse,
    send,
    virtual_time,
)

pytestmark = virtual_time

SEND, PROBE = Operation.SEND, Operation.PROBE
BACKLOG, PRIMARY = AcceptedBy.BACKLOG, AcceptedBy.PRIMARY
INTERVAL = 60.0


async def outage(harness: Harness, pair, seconds: float = 5.0) -> None:
    """Orders has a send in an outage of the whole primary, and the primary is back."""
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    assert await send(pair, message("in the outage"))() is BACKLOG
    await trio.sleep(seconds)
    harness.primary.heal()


async def known(harness: Harness, **options):
    """A pair whose primary has accepted a message for each entity."""
    pair = await harness.pair(failover_interval=INTERVAL, **options)
    for entity in (ORDERS, BILLS):
        assert await send(pair, message("before"), entity=entity)() is PRIMARY
    return pair


def empty(harness: Harness) -> None:
    harness.primary.fail(refuse(EntityNotFound, "no such queue"), SEND, PROBE)


@pytest.mark.parametrize("entity", [ORDERS, BILLS], ids=["suspect", "without a send till then"])
@pytest.mark.parametrize("unknown_entity", ["divert", "refuse"])
async def test_a_known_queue_that_an_outage_has_lost_is_diverted_and_named(
    harness: Harness, entity, unknown_entity
) -> None:
    pair = await known(harness, unknown_entity=UnknownEntity(unknown_entity))
    await outage(harness, pair)
    empty(harness)

    for number in range(20):
        assert await send(pair, message(f"{number}"), entity=entity)() is BACKLOG
        await trio.sleep(1.0)

    assert pair.states.state_of(entity) is State.SUSPECT
    [troubled] = [each for each in pair.states.troubled() if each.entity == entity]
    assert "no such queue" in troubled.reason
    assert troubled.missing


async def test_a_link_to_a_lost_queue_is_taken_as_its_sends_are(harness: Harness) -> None:
    pair = await known(harness)
    await outage(harness, pair)
    empty(harness)
    with pytest.raises(Unavailable, match="no such queue; its sends go to the backlog"):
        await pair.broker.probe(ORDERS)
    with pytest.raises(EntityNotFound):
        await pair.broker.probe(EntityPath("misspelt"))


async def test_a_lost_queue_that_is_made_again_is_sent_to_on_the_primary(harness: Harness) -> None:
    pair = await known(harness)
    await outage(harness, pair)
    empty(harness)
    assert await send(pair, message("1"))() is BACKLOG
    await trio.sleep(10.0)
    harness.primary.heal()
    await reaches(pair.states, State.PRIMARY)

    assert await send(pair, message("2"))() is PRIMARY
    assert pair.states.troubled() == []


async def test_a_queue_that_stays_lost_for_the_interval_fails_over(harness: Harness) -> None:
    pair = await known(harness)
    await outage(harness, pair)
    empty(harness)
    await send(pair, message("1"))()
    await trio.sleep(INTERVAL)

    assert pair.states.state_of(ORDERS) is State.SECONDARY
    assert await send(pair, message("2"))() is BACKLOG
    [troubled] = pair.states.troubled()
    assert troubled.missing


async def test_a_queue_that_was_never_there_is_not_found_after_an_outage_either(
    harness: Harness,
) -> None:
    pair = await harness.pair(failover_interval=INTERVAL)
    await outage(harness, pair)
    await trio.sleep(2.0)
    empty(harness)

    assert isinstance(await outcome_of(send(pair, message("1"))), EntityNotFound)


async def test_a_queue_that_is_deleted_in_health_is_not_found(harness: Harness) -> None:
    pair = await known(harness)
    empty(harness)

    assert isinstance(await outcome_of(send(pair, message("1"))), EntityNotFound)
    assert pair.states.state_of(ORDERS) is State.PRIMARY
    assert pair.entity_cache.of(ORDERS) is None


async def test_a_queue_that_is_deleted_long_after_an_outage_is_not_found(harness: Harness) -> None:
    pair = await known(harness)
    await outage(harness, pair)
    await reaches(pair.states, State.PRIMARY)
    await send(pair, message("1"))()
    await trio.sleep(INTERVAL)
    empty(harness)

    assert isinstance(await outcome_of(send(pair, message("2"))), EntityNotFound)


@pytest.mark.parametrize(
    "options",
    [{"on_unreachable": OnUnreachable.RAISE}, {"while_suspect": WhileSuspect.RAISE}],
    ids=["raised when missing", "raised while suspect"],
)
async def test_an_error_that_is_to_be_raised_is_raised_after_an_outage_too(
    harness: Harness, options
) -> None:
    pair = await known(harness, **options)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    await outcome_of(send(pair, message("1")))
    harness.primary.heal()
    await trio.sleep(1.0)
    empty(harness)

    assert isinstance(await outcome_of(send(pair, message("2"))), EntityNotFound)


def refused(harness: Harness, *operations: Operation) -> None:
    harness.primary.fail(refuse(NotAuthorized, "no such user"), *operations)


@pytest.mark.parametrize("entity", [ORDERS, BILLS], ids=["suspect", "without a send till then"])
async def test_credentials_that_worked_until_an_outage_are_awaited_for_the_interval(
    harness: Harness, entity
) -> None:
    pair = await known(harness)
    await outage(harness, pair)
    refused(harness)

    for number in range(50):
        assert await send(pair, message(f"{number}"), entity=entity)() is BACKLOG
        await trio.sleep(1.0)
    await trio.sleep(INTERVAL)

    assert isinstance(await outcome_of(send(pair, message("late"), entity=entity)), NotAuthorized)


async def test_credentials_that_come_back_end_the_wait(harness: Harness) -> None:
    pair = await known(harness)
    await outage(harness, pair)
    refused(harness)
    assert await send(pair, message("1"))() is BACKLOG
    await trio.sleep(5.0)
    harness.primary.heal()
    await reaches(pair.states, State.PRIMARY)
    assert await send(pair, message("2"))() is PRIMARY
    refused(harness)

    assert isinstance(await outcome_of(send(pair, message("3"))), NotAuthorized)


async def test_credentials_that_had_not_worked_of_late_are_told_after_an_outage(
    harness: Harness,
) -> None:
    pair = await known(harness)
    await trio.sleep(61.0)
    await outage(harness, pair)
    refused(harness)
    await trio.sleep(2.0)

    assert isinstance(await outcome_of(send(pair, message("1"))), NotAuthorized)


async def test_refused_credentials_are_told_in_health(harness: Harness) -> None:
    pair = await known(harness)
    refused(harness)

    for number in range(20):
        assert isinstance(await outcome_of(send(pair, message(f"{number}"))), NotAuthorized)
        await trio.sleep(INTERVAL / 4)
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_refused_credentials_are_an_outage_where_that_is_wanted(harness: Harness) -> None:
    pair = await known(harness, on_refused_credentials=OnRefusedCredentials.DIVERT)
    refused(harness)

    assert await send(pair, message("1"))() is BACKLOG
    assert pair.states.state_of(ORDERS) is State.SUSPECT
    await trio.sleep(INTERVAL + 1.0)
    assert pair.states.state_of(ORDERS) is State.SECONDARY
    assert await send(pair, message("2"))() is BACKLOG
    [troubled] = pair.states.troubled()
    assert "no such user" in troubled.reason
    harness.primary.heal()
    await reaches(pair.states, State.HALF_OPEN)
    await send(pair, message("3"))()
    await reaches(pair.states, State.PRIMARY)
    assert await send(pair, message("4"))() is PRIMARY


async def test_a_return_that_a_receiver_shows_is_the_moment_for_a_probe(harness: Harness) -> None:
    parts = harness.parts(failover_interval=INTERVAL, ping_interval=1800.0)
    pair = parts.assemble()
    await harness.nursery.start(pair.run)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    assert await send(pair, message("in the outage"))() is BACKLOG
    await trio.sleep(2 * 3600.0)
    harness.primary.heal()
    await trio.sleep(10.0)
    before = pair.states.state_of(ORDERS)

    parts.dependencies.returns.notify()
    await trio.sleep(10.0)

    assert before is State.SECONDARY
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_a_pair_asks_its_primary_for_its_identity_before_a_client_comes(
    harness: Harness,
) -> None:
    pair = await harness.pair()
    await trio.sleep(1.0)

    assert pair.destination.has_answered
