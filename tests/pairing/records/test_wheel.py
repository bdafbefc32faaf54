"""An order holds for all processes of the pair, whichever process it was given at."""

from datetime import timedelta

import pytest
import trio
import trio.lowlevel

from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized, Unavailable
from gateway.domain.health.process_records import ORDERS_HOLD
from gateway.domain.message import AcceptedBy
from gateway.domain.operators.control import Action
from tests.pairing.harness import BILLS, ORDERS, QUEUE, Harness, message, send, virtual_time
from tests.pairing.records.processes import Faulty, Member, Members

pytestmark = virtual_time

READ = 2.0  # seconds within which a syphon follows an order
LOCKS_END = 20.0  # seconds


@pytest.fixture
def members(harness: Harness) -> Members:
    return Members(harness=harness, secondary=Faulty(harness.secondary.store))


async def _sent(gateway: Member, *ids: str) -> list[AcceptedBy]:
    assert gateway.pair is not None
    return [await send(gateway.pair, message(each))() for each in ids]


async def test_a_syphon_elsewhere_leaves_pinned_entities_alone(
    harness: Harness, members: Members
) -> None:
    async with members.gateway() as gateway, members.syphon():
        gateway.order(Action.FAILOVER, "orders")
        await trio.sleep(READ)
        pinned = await _sent(gateway, "m1", "m2")
        await harness.divert(message("other"), entity=BILLS)
        await trio.sleep(LOCKS_END)
        held = (await harness.primary.ids(), await harness.primary.ids(BILLS))
        gateway.order(Action.FAILBACK, "orders")
        await trio.sleep(READ + LOCKS_END)

    assert pinned == [AcceptedBy.BACKLOG] * 2
    assert held == ([], ["other"])
    assert sorted(map(str, await harness.primary.ids())) == ["m1", "m2"]


async def test_maintenance_spares_the_primary_through_restarts_of_each_process(
    harness: Harness, members: Members
) -> None:
    async with members.gateway() as gateway, members.syphon():
        gateway.order(Action.FAILOVER, reason="maintenance")
        await trio.sleep(READ)
        await _sent(gateway, "m1")
    async with members.syphon():  # the gateway is down
        await trio.sleep(LOCKS_END)
        async with members.gateway(gateway) as gateway:
            await _sent(gateway, "m2")
            await trio.sleep(LOCKS_END)
        async with members.gateway(gateway) as gateway:
            await _sent(gateway, "m3")
            await trio.sleep(READ)
            spared = not harness.primary.sends()
            gateway.order(Action.FAILBACK)
            await trio.sleep(READ + LOCKS_END)

    assert spared
    assert sorted(map(str, await harness.primary.ids())) == ["m1", "m2", "m3"]


async def test_an_order_taken_back_elsewhere_stays_so_when_its_process_returns(
    harness: Harness, members: Members
) -> None:
    async with members.gateway() as gateway:
        gateway.order(Action.FAILOVER, "orders")
        await trio.sleep(READ)
    async with members.syphon() as syphon:
        await trio.sleep(READ)
        syphon.order(Action.FAILBACK, "orders")
        await trio.sleep(READ)
        async with members.gateway(gateway) as gateway:
            before = await _sent(gateway, "m1")
            await gateway.reader.look()
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.1)
            after = await _sent(gateway, "m2")

    assert (before, after) == ([AcceptedBy.BACKLOG], [AcceptedBy.PRIMARY])


async def test_a_pin_of_a_process_that_is_gone_ends_with_its_record(
    harness: Harness, members: Members
) -> None:
    async with members.syphon():
        async with members.gateway() as gateway:
            gateway.order(Action.FAILOVER, "orders")
            await trio.sleep(READ)
            await _sent(gateway, "m1")
        await trio.sleep(ORDERS_HOLD.total_seconds() - 10 * READ)
        held = await harness.primary.ids()
        await trio.sleep(20 * READ + LOCKS_END)

    assert held == []
    assert await harness.primary.ids() == ["m1"]


async def test_a_syphon_is_paused_and_limited_from_anywhere(
    harness: Harness, members: Members
) -> None:
    async with members.gateway() as gateway, members.syphon() as syphon, members.syphon() as other:
        gateway.order(Action.PAUSE)
        gateway.order(Action.RATE, rate=5.0)
        await trio.sleep(READ)
        both = [each.syphon.rate for each in (syphon, other) if each.syphon is not None]
        await harness.divert(message("m1"))
        await trio.sleep(LOCKS_END)
        paused = await harness.primary.ids()
        other.order(Action.RESUME)
        await trio.sleep(READ + LOCKS_END)

    assert both == [5.0, 5.0]
    assert paused == []
    assert await harness.primary.ids() == ["m1"]


async def test_a_restarted_syphon_keeps_the_pause_that_was_given_to_it(
    harness: Harness, members: Members
) -> None:
    async with members.syphon() as syphon:
        syphon.order(Action.PAUSE)
        await trio.sleep(0.1)
    for _ in range(3):
        async with members.syphon():
            await trio.sleep(0.9 * ORDERS_HOLD.total_seconds())
    async with members.syphon():
        await harness.divert(message("m1"))
        await trio.sleep(LOCKS_END)

    assert await harness.primary.ids() == []


async def test_the_newest_order_wins_at_all_processes(harness: Harness, members: Members) -> None:
    async with members.gateway() as one, members.gateway() as two, members.syphon() as syphon:
        one.order(Action.FAILOVER, "orders")
        two.order(Action.FAILOVER, "bills", until=harness.clock() + timedelta(hours=1))
        await trio.sleep(READ)
        pins = sorted(each.target for each in syphon.control.state().pins)
        two.order(Action.FAILBACK)
        await trio.sleep(READ)
        await one.reader.look()
        await trio.sleep(0.1)
        left = (syphon.control.state().pins, one.control.state().pins)

    assert pins == ["bills", "orders"]
    assert left == ((), ())


async def test_a_sidecar_that_may_only_send_steers_the_syphon_and_sees_its_own_part(
    harness: Harness, members: Members
) -> None:
    sidecar = Faulty(harness.secondary.store, {"peek": NotAuthorized("no right to receive")})
    async with members.syphon() as syphon, members.gateway(secondary=sidecar) as gateway:
        await gateway.reader.look()
        gateway.order(Action.FAILOVER, "orders")
        await trio.sleep(READ)
        told = await syphon.reader.look()
        await trio.sleep(0.1)
        record = next(each for each in told.alive if each.gateway is not None)
        held = syphon.control.pauses.is_paused(EntityPath("orders"))
        doubt = gateway.control.state().reach_unknown
        [missed] = syphon.control.state().not_reached

    assert doubt == "no right to receive"
    assert missed == f"{record.place}: it may not read on the secondary"
    assert (gateway.reader.known.unknown, record.sees_others) == ("no right to receive", False)
    assert held


async def test_a_syphon_waits_with_the_first_move_until_it_has_read_the_orders(
    harness: Harness, members: Members
) -> None:
    async with members.gateway() as gateway:
        gateway.order(Action.FAILOVER, "orders")
        await trio.sleep(READ)
        await _sent(gateway, "m1")
    members.secondary.errors["peek"] = Unavailable("down")
    async with members.syphon() as syphon:
        await trio.sleep(LOCKS_END)
        blind = syphon.control.pauses.is_paused(QUEUE)
        members.secondary.errors.clear()
        await trio.sleep(LOCKS_END)

    assert blind
    assert await harness.primary.ids(ORDERS) == []


async def test_a_request_to_reload_reaches_the_processes_that_run_and_each_once(
    harness: Harness, members: Members
) -> None:
    async with members.gateway() as gateway, members.syphon() as syphon:
        await trio.sleep(READ)
        before = syphon.book.reloads.version
        gateway.book.ask_reload()
        await trio.sleep(READ)
        first = syphon.book.reloads.version
        async with members.syphon() as later:
            await trio.sleep(LOCKS_END)
            unasked, again = later.book.reloads.version, syphon.book.reloads.version
            syphon.book.ask_reload()
            await trio.sleep(READ)
            answered = later.book.reloads.version

    assert (before, first, again) == (0, 1, 1)
    assert (unasked, answered) == (0, 1)
    assert gateway.book.reloads.version == 0  # it reads once a minute
