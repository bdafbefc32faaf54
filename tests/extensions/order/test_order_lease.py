"""Several gateways send to one ordered entity: one at a time, by a lease on the secondary."""

import attrs
import pytest
import trio

from gateway.capabilities import Sessions
from gateway.domain.errors import Outcome, OutcomeUnknown, Unavailable
from gateway.domain.message import AcceptedBy
from gateway.extensions.order import lease
from gateway.extensions.order.events import OrderLeaseLost, OrderLeaseTaken
from gateway.extensions.order.options import OnLeaseLost, OrderLeaseMode
from gateway.extensions.order.queues import LEASE_PROPERTIES, ordered_queue
from gateway.offering import required
from gateway.pairing.options import EntityRule
from tests.extensions.order.order_lease import (
    KEY,
    LOCK,
    NAME,
    QUEUE,
    Switch,
    asked_for_leases,
    gateway,
    keep_locked,
    status_of,
)
from tests.harness.faults import Hang, Operation, Refuse
from tests.pairing.harness import (
    LABEL,
    Slow,
    Timed,
    virtual_time,
)

pytestmark = virtual_time

PRIMARY, BACKLOG = AcceptedBy.PRIMARY, AcceptedBy.BACKLOG
SOON = 1.0


@pytest.fixture
def ordered() -> bool:
    return True


async def test_without_the_option_nobody_asks_for_a_lease(harness):
    one = await gateway(harness, order_lease=OrderLeaseMode.OFF)

    assert await one.send("a") is PRIMARY
    assert asked_for_leases(harness) == 0
    assert status_of(one.pair).leases is None


async def test_without_a_send_nobody_asks_for_a_lease(harness):
    one = await gateway(harness)
    await trio.sleep(60.0)

    assert asked_for_leases(harness) == 0
    assert status_of(one.pair).leases == 0


async def test_the_orderer_sends_as_ever_and_renews_its_lease(harness):
    one = await gateway(harness)
    for name in "abc":
        assert await one.send(name) is PRIMARY
        await trio.sleep(2 * lease.LEASE)

    assert status_of(one.pair).leases == 1
    assert len(harness.events.of(OrderLeaseTaken)) == 1


async def test_a_send_of_another_gateway_waits_until_the_orderer_lets_go(harness):
    one, other = await gateway(harness), await gateway(harness)
    await one.send("a")

    with Timed() as took:
        assert await other.send("b") is PRIMARY
    with Timed() as took_back:
        assert await one.send("c") is PRIMARY

    assert took.seconds < lease.TENURE + SOON
    assert took_back.seconds < lease.TENURE + lease.FOR_OTHERS + SOON
    assert await harness.primary.ids() == ["a", "b", "c"]
    assert (status_of(one.pair).leases, status_of(other.pair).leases) == (1, 0)


async def test_gateways_that_all_send_take_turns(harness):
    gateways = [await gateway(harness) for _ in range(3)]
    sent = []

    async def send_some(one, number):
        for count in range(10):
            await one.send(f"{number}-{count}")
            sent.append((number, count))

    with Timed() as took:
        async with trio.open_nursery() as nursery:
            for number, one in enumerate(gateways):
                nursery.start_soon(send_some, one, number)

    assert took.seconds < 60.0
    ids = await harness.primary.ids()
    for number in range(3):
        assert [each for each in ids if each.startswith(f"{number}-")] == [
            f"{number}-{count}" for count in range(10)
        ]


async def test_the_orderer_lets_go_once_no_send_is_under_way(harness):
    one, other = await gateway(harness), await gateway(harness)
    await one.send("a")
    harness.primary.fail(Slow(4.0), Operation.SEND, times=1)
    harness.nursery.start_soon(one.send, "b")
    await trio.sleep(0.1)

    with Timed() as took:
        await other.send("c")

    assert 3.9 <= took.seconds < 4.0 + SOON
    assert await harness.primary.ids() == ["a", "b", "c"]


async def test_a_send_that_gets_no_lease_in_its_time_isnt_sent(harness):
    one = await gateway(harness, send_timeout=20.0)
    sessions = required(harness.secondary.store, Sessions)
    async with sessions.open_session(QUEUE, NAME) as holder:
        harness.nursery.start_soon(keep_locked, holder)
        with Timed() as took, pytest.raises(Unavailable, match="another gateway has it") as caught:
            await one.send("a")

        assert caught.value.outcome is Outcome.NOT_SENT
        assert took.seconds == pytest.approx(20.0 * lease.WAIT_SHARE, abs=0.5)
        assert await harness.primary.ids() == []


async def test_after_an_orderer_that_ended_the_next_one_begins_at_once(harness):
    one, other = await gateway(harness), await gateway(harness)
    await one.send("a")
    one.stop()

    with Timed() as took:
        assert await other.send("b") is PRIMARY

    assert took.seconds < SOON


@attrs.frozen
class Late:
    """Does the operation `seconds` later, unless it was given up by then."""

    seconds: float

    async def strike(self, work, nursery):
        await trio.sleep(self.seconds)
        return await work()


async def test_an_orderer_that_ends_lets_go_although_the_secondary_stands_still_for_seconds(
    harness,
):
    switch = Switch()
    one, other = await gateway(harness, switch), await gateway(harness)
    await one.send("a")
    switch.fault = Late(3.0)
    one.stop()

    with Timed() as took:
        assert await other.send("b") is PRIMARY

    assert took.seconds < 3.0 + SOON


async def test_after_an_orderer_that_was_killed_the_next_one_waits_for_its_lease_to_run_out(
    harness,
):
    one, other = await gateway(harness), await gateway(harness)
    await one.send("a")
    one.kill()

    with Timed() as took:
        assert await other.send("b") is PRIMARY

    assert lease.LEASE < took.seconds < LOCK + lease.LEASE + SOON


async def test_an_idle_orderer_lets_go(harness):
    one, other = await gateway(harness), await gateway(harness)
    await one.send("a")
    await trio.sleep(lease.IDLE + SOON)

    assert status_of(one.pair).leases == 0

    with Timed() as took:
        await other.send("b")

    assert took.seconds < SOON


async def test_the_next_orderer_sends_behind_what_the_last_one_diverted(harness):
    one, other = await gateway(harness), await gateway(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    assert await other.send("a") is BACKLOG
    assert await one.send("b") is BACKLOG
    harness.primary.heal()

    assert await other.send("c") is BACKLOG
    assert await harness.primary.ids() == []

    await harness.syphon()
    accepted_by = [await other.send("d")]
    for _ in range(30):
        await trio.sleep(1.0)
        accepted_by.append(await other.send("d"))
    assert accepted_by[-1] is PRIMARY
    ids = await harness.primary.ids()
    assert list(dict.fromkeys(ids)) == ["a", "b", "c", "d"]


async def test_the_knowledge_of_a_gateway_from_before_it_was_orderer_again_doesnt_count(harness):
    one, other = await gateway(harness), await gateway(harness)
    assert await one.send("a") is PRIMARY  # so the gateway knows that the key is at home
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    assert await other.send("b") is BACKLOG
    harness.primary.heal()

    assert await one.send("c") is BACKLOG


async def test_a_diverted_send_whose_answer_comes_after_the_lease_has_an_unknown_outcome(harness):
    """The next orderer may have listed the queue before."""
    switch = Switch()
    one = await gateway(harness, switch, attempt_timeout=60.0, send_timeout=240.0)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await one.send("a")
    harness.secondary.fail(Slow(lease.VALID + 3.0), Operation.SEND, times=1)
    harness.secondary.fail(Hang(), Operation.RENEW, Operation.RECEIVE)
    with pytest.raises(OutcomeUnknown, match="after the end of the lease"):
        await one.send("b")


async def test_without_the_secondary_sends_stop_when_the_lease_has_run_out(harness):
    one = await gateway(harness, send_timeout=8.0)
    await one.send("a")
    harness.secondary.fail(Refuse())
    await trio.sleep(lease.VALID - 2 * lease.RENEW)

    assert await one.send("b") is PRIMARY

    await trio.sleep(2 * lease.RENEW)
    with pytest.raises(Unavailable) as caught:
        await one.send("c")

    assert caught.value.outcome is Outcome.NOT_SENT
    assert [each.queue for each in harness.events.of(OrderLeaseLost)] == [
        ordered_queue(LABEL, KEY.number)
    ]
    harness.secondary.heal()
    assert await one.send("d") is PRIMARY


async def test_on_request_the_last_orderer_goes_on_without_the_secondary(harness):
    options = {"on_lease_lost": OnLeaseLost.SEND, "send_timeout": 8.0}
    one, other = await gateway(harness, **options), await gateway(harness, **options)
    await one.send("a")
    harness.secondary.fail(Refuse())
    await trio.sleep(60.0)

    assert await one.send("b") is PRIMARY
    with pytest.raises(Unavailable):
        await other.send("c")
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    with pytest.raises(Unavailable):
        await one.send("d")


async def test_the_last_orderer_doesnt_go_on_once_another_has_the_lease(harness):
    switch = Switch()
    one = await gateway(harness, switch, on_lease_lost=OnLeaseLost.SEND, send_timeout=8.0)
    other = await gateway(harness, send_timeout=60.0)
    await one.send("a")
    switch.fault = Refuse()
    await trio.sleep(LOCK)
    await other.send("b")
    switch.fault = None
    for number in range(20):
        harness.nursery.start_soon(other.send, f"c{number}")
        await trio.sleep(0.1)

    with Timed() as took:
        await one.send("d")

    assert took.seconds > lease.POLL / 2  # the gateway asked for the lease
    assert status_of(other.pair).leases == 0


async def test_an_orderer_whose_connection_broke_takes_its_lease_again_and_knows_what_it_knew(
    harness,
):
    one = await gateway(harness)
    await one.send("a")
    harness.secondary.fail(Refuse(), Operation.RENEW, times=1)
    await trio.sleep(lease.RENEW + 2 * SOON)
    listed = harness.secondary.times(Operation.MANAGE)

    assert await one.send("b") is PRIMARY
    assert len(harness.events.of(OrderLeaseTaken)) == 2
    assert harness.secondary.times(Operation.MANAGE) == listed


@pytest.mark.parametrize("state", [b"", b"{}", b'{"pairgate-order": 1}', b"\xff", b"[" * 100_000])
async def test_a_state_that_nobody_can_read_is_that_of_an_orderer_that_hasnt_let_go(harness, state):
    sessions = required(harness.secondary.store, Sessions)
    async with sessions.open_session(QUEUE, NAME) as holder:
        await holder.set_state(state)
    one = await gateway(harness)

    with Timed() as took:
        await one.send("a")

    assert lease.LEASE <= took.seconds < lease.LEASE + SOON


async def test_without_the_lease_queue_nothing_is_sent_and_the_error_names_the_queue(harness):
    await harness.secondary.store.delete_queue(QUEUE)
    one = await gateway(harness, send_timeout=4.0)

    with pytest.raises(Unavailable, match="x-pairgate-order"):
        await one.send("a")

    await harness.secondary.store.create_queue(QUEUE, LEASE_PROPERTIES)
    assert await one.send("b") is PRIMARY


async def test_requests_to_let_go_dont_pile_up(harness):
    one = await gateway(harness, send_timeout=60.0)
    sessions = required(harness.secondary.store, Sessions)
    async with sessions.open_session(QUEUE, NAME) as holder:
        harness.nursery.start_soon(keep_locked, holder)
        with pytest.raises(Unavailable):
            await one.send("a")

    assert len(await harness.secondary.messages(QUEUE)) <= 3


async def test_an_entity_that_never_leaves_the_primary_needs_no_lease(harness):
    rule = EntityRule(match="orders", divert=False)
    one = await gateway(harness, entities=(rule,))

    assert await one.send("a") is PRIMARY
    assert asked_for_leases(harness) == 0
