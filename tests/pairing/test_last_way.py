"""A failure to connect that is remembered speeds up a diversion, and never becomes an error."""

import random

import attrs
import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.backoff import Backoff
from gateway.domain.errors import OutcomeUnknown, Unavailable
from gateway.domain.events.gateway import SentTwice
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.pairing.options import EntityRule, OnUnreachable, WhileSuspect
from tests.harness.faults import Hang, LoseAnswer, Operation, Refuse, Reset, T, Work
from tests.harness.remembering import RememberingBroker
from tests.pairing.harness import (
    ORDERS,
    QUEUE,
    Harness,
    Namespace,
    Timed,
    message,
    outcome_of,
    send,
    virtual_time,
)

pytestmark = virtual_time

SEND = Operation.SEND
MOMENT = 0.5  # seconds, of the pause
LONG = Backoff(first=5.0, cap=5.0, jitter=0.0)


def remember(namespace: Namespace) -> None:
    """Let the namespace be reached over a connection that isn't dialled again for 5 s."""
    namespace.broker = RememberingBroker(inner=namespace.broker, backoff=LONG, rng=random.Random(0))


@pytest.fixture
async def connected(harness: Harness) -> Harness:
    for each in (harness.primary, harness.secondary):
        remember(each)
        await harness.nursery.start(each.broker.run)
    return harness


async def failed_over(harness: Harness, **options: object):
    """A pair whose primary has just been found down, so that the pause has just begun."""
    pair = await harness.pair(failover_interval=0.0, ping_interval=1000.0, **options)
    harness.primary.fail(Refuse())
    assert await send(pair, message("m0"))() is AcceptedBy.BACKLOG
    assert pair.states.state_of(ORDERS) is State.SECONDARY
    return pair


async def test_a_primary_that_came_back_in_the_pause_takes_what_the_secondary_can_not(
    connected,
):
    pair = await failed_over(connected)
    connected.primary.heal()
    await trio.sleep(MOMENT)
    connected.secondary.fail(Refuse())

    assert await send(pair, message("m1"))() is AcceptedBy.PRIMARY


async def test_a_secondary_that_came_back_in_the_pause_takes_what_the_primary_can_not(
    connected,
):
    pair = await connected.pair(failover_interval=0.0, ping_interval=1000.0)
    connected.secondary.fail(Refuse())
    connected.primary.fail(Refuse())
    assert isinstance(await outcome_of(send(pair, message("m0"))), Unavailable)
    connected.secondary.heal()
    await trio.sleep(MOMENT)

    assert await send(pair, message("m1"))() is AcceptedBy.BACKLOG


async def test_a_handover_in_the_pause_costs_no_producer_an_error(connected):
    """The primary is down for 12 s, back for 0.5 s, and then the secondary dies."""
    pair = await connected.pair()
    end = trio.current_time() + 16.0
    errors = []

    async def produce(number: int) -> None:
        while trio.current_time() < end:
            errors.append(await outcome_of(send(pair, message(f"{number}-{len(errors)}"))))
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(produce, number)
        await trio.sleep(1.0)
        connected.primary.fail(Refuse())
        await trio.sleep(12.0)
        connected.primary.heal()
        await trio.sleep(0.5)
        connected.secondary.fail(Refuse())

    assert [error for error in errors if error is not None] == []


async def test_while_the_backlog_is_left_a_remembered_failure_diverts_at_once(connected):
    pair = await connected.pair(failover_interval=60.0)
    connected.primary.fail(Refuse())
    await send(pair, message("m0"))()
    asked = connected.primary.sends()

    with Timed() as timed:
        assert await send(pair, message("m1"))() is AcceptedBy.BACKLOG

    assert connected.primary.sends() == asked
    assert timed.seconds == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"while_suspect": WhileSuspect.RAISE, "failover_interval": 60.0},
        {"entities": (EntityRule(match="orders", divert=False),)},
    ],
    ids=["suspect entities raise", "the entity isn't diverted"],
)
async def test_a_send_that_is_never_diverted_connects(connected, options):
    pair = await connected.pair(on_unreachable=OnUnreachable.DIVERT, **options)
    connected.primary.fail(Refuse())
    assert isinstance(await outcome_of(send(pair, message("m0"))), Unavailable)
    connected.primary.heal()
    await trio.sleep(MOMENT)

    assert await send(pair, message("m1"))() is AcceptedBy.PRIMARY


async def test_with_a_spool_remembered_failures_lead_to_it_at_once(connected):
    pair = await failed_over(connected, spool=True)
    connected.secondary.fail(Refuse())
    assert await send(pair, message("m1"))() is AcceptedBy.SPOOL
    asked = connected.primary.sends() + connected.secondary.sends(QUEUE)

    assert await send(pair, message("m2"))() is AcceptedBy.SPOOL
    assert connected.primary.sends() + connected.secondary.sends(QUEUE) == asked


async def test_when_the_spool_fails_too_both_namespaces_are_connected_to(connected):
    pair = await failed_over(connected, spool=True)
    connected.secondary.fail(Refuse())
    await send(pair, message("m1"))()
    connected.spool.fail(Refuse())
    connected.secondary.heal()
    await trio.sleep(MOMENT)

    assert await send(pair, message("m2"))() is AcceptedBy.BACKLOG


async def test_a_secondary_without_connections_is_not_asked_twice(harness):
    pair = await harness.pair(failover_interval=0.0, queues=3)
    harness.primary.fail(Refuse())
    harness.secondary.fail(Refuse())

    assert isinstance(await outcome_of(send(pair)), Unavailable)
    assert len(harness.secondary.times(SEND)) == 3


@attrs.frozen
class BreakOnce:
    """A connection from before the outage: its first use finds out that it is broken."""

    namespace: Namespace

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        self.namespace.heal()
        return await Reset().strike(work, nursery)


async def test_a_broken_connection_to_the_only_backlog_queue_is_not_the_end_of_a_send(harness):
    pair = await failed_over(harness, queues=1)
    harness.secondary.fail(BreakOnce(harness.secondary))

    assert await send(pair, message("m1"))() is AcceptedBy.BACKLOG


async def test_a_backlog_queue_that_breaks_each_connection_is_asked_once_more_only(harness):
    pair = await failed_over(harness, queues=1)
    harness.secondary.fail(Reset())
    before = len(harness.secondary.times(SEND))

    assert isinstance(await outcome_of(send(pair, message("m1"))), OutcomeUnknown)
    assert len(harness.secondary.times(SEND)) - before == 2


async def test_queues_that_hang_are_tried_again_as_long_as_there_is_time(harness):
    """A cluster whose leaders are cut off elects others within some seconds."""
    pair = await failed_over(harness, queues=1, attempt_timeout=3.0, send_timeout=30.0)
    harness.secondary.fail(Hang())
    before = len(harness.secondary.times(SEND))

    async def elect() -> None:
        await trio.sleep(13.0)
        harness.secondary.heal()

    harness.nursery.start_soon(elect)
    with Timed() as timed:
        assert await send(pair, message("m1"))() is AcceptedBy.BACKLOG
    assert timed.seconds == pytest.approx(15.0, abs=0.5)
    assert len(harness.secondary.times(SEND)) - before == 6  # the last one is accepted


async def test_queues_that_hang_get_whole_attempts_only(harness):
    """Each attempt without an answer may have been accepted: a short one more is no help."""
    pair = await failed_over(harness, queues=1, attempt_timeout=3.0, send_timeout=20.0)
    harness.secondary.fail(Hang())
    before = len(harness.secondary.times(SEND))

    assert isinstance(await outcome_of(send(pair, message("m1"))), OutcomeUnknown)
    assert len(harness.secondary.times(SEND)) - before == 5


async def test_a_namespace_used_alone_connects_with_each_send(connected):
    primary = connected.primary
    primary.fail(Refuse())
    assert isinstance(
        await outcome_of(lambda: primary.broker.send(ORDERS, [message()])), Unavailable
    )
    primary.heal()
    await trio.sleep(MOMENT)

    assert await send_accepted_by(primary.broker, ORDERS, [message()]) is AcceptedBy.PRIMARY


async def test_a_send_that_the_primary_may_have_twice_is_reported(harness):
    pair = await harness.pair()
    harness.primary.fail(LoseAnswer(), SEND, times=1)
    harness.secondary.fail(Refuse(), SEND)

    assert await send(pair, message("m1"), message("m2"))() is AcceptedBy.PRIMARY

    assert await harness.primary.ids() == ["m1", "m2", "m1", "m2"]
    assert harness.events.of(SentTwice) == [SentTwice(entity=ORDERS, messages=2, certain=False)]


async def test_a_send_that_the_primary_has_once_is_not_reported_as_sent_twice(harness):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), SEND, times=1)
    harness.secondary.fail(Refuse(), SEND)

    assert await send(pair, message("m1"))() is AcceptedBy.PRIMARY

    assert await harness.primary.ids() == ["m1"]
    assert harness.events.of(SentTwice) == []
