"""A pause of an operator holds back what its target matches, until it is taken back."""

from datetime import UTC, datetime

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.operators.control import Override
from gateway.pairing.syphon.pauses import Pauses
from tests.pairing.harness import BILLS, ORDERS, QUEUE, virtual_time

pytestmark = virtual_time

SINCE = datetime(2027, 1, 1, tzinfo=UTC)


def override(target: str) -> Override:
    return Override(target=target, reason="", operator="ann", since=SINCE)


def paused(pauses: Pauses) -> tuple[bool, bool, bool]:
    return pauses.is_paused(ORDERS), pauses.is_paused(BILLS), pauses.is_paused(QUEUE)


async def test_without_an_order_nothing_is_paused() -> None:
    pauses = Pauses()

    assert paused(pauses) == (False, False, False)
    assert not pauses.holds_back


async def test_a_pause_holds_for_the_entities_or_queues_that_it_matches() -> None:
    for target, expected in (
        ("orders", (True, False, False)),
        ("b*", (False, True, False)),
        (QUEUE.name, (False, False, True)),
        ("*", (True, True, True)),
    ):
        pauses = Pauses()
        pauses.overrides.add([override(target)])

        assert paused(pauses) == expected
        assert pauses.holds_back


async def test_a_pin_holds_back_entities_and_never_a_backlog_queue() -> None:
    pauses = Pauses()
    pauses.pins.add([override("*")])

    assert paused(pauses) == (True, True, False)
    assert pauses.holds_back


async def test_a_pin_holds_back_no_entity_but_its_own() -> None:
    pauses = Pauses()
    pauses.pins.add([override("orders")])

    assert paused(pauses) == (True, False, False)


async def test_while_the_orders_of_others_are_not_known_all_is_paused() -> None:
    pauses = Pauses(blind=True)

    assert paused(pauses) == (True, True, True)
    assert pauses.holds_back


async def test_a_pause_ends_the_receives_of_its_queue_alone_as_soon_as_it_is_applied() -> None:
    pauses, other = Pauses(), QUEUE.dead_letter
    with pauses.until_paused(QUEUE) as scope, pauses.until_paused(other) as untouched:
        pauses.overrides.add([override(QUEUE.name)])
        before = scope.cancel_called
        pauses.apply()

        assert (before, scope.cancel_called, untouched.cancel_called) == (False, True, False)
    with pauses.until_paused(QUEUE) as later:
        assert later.cancel_called


async def test_a_receive_that_has_ended_is_not_cancelled_later() -> None:
    pauses = Pauses()
    with pauses.until_paused(QUEUE) as scope:
        pass
    pauses.overrides.add([override("*")])
    pauses.apply()

    assert not scope.cancel_called


async def test_a_queue_is_resumed_when_the_change_is_applied(nursery: trio.Nursery) -> None:
    pauses, resumed = Pauses(), trio.Event()
    pauses.overrides.add([override("*")])

    async def wait() -> None:
        await pauses.wait_resumed(QUEUE)
        resumed.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    pauses.apply()  # another order, which doesn't concern it
    await wait_all_tasks_blocked()
    early = resumed.is_set()
    pauses.overrides.remove(["*"])
    pauses.apply()
    await wait_all_tasks_blocked()

    assert (early, resumed.is_set()) == (False, True)
