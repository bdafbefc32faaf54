"""Each lock is renewed when it is due."""

from math import inf

import attrs
import pytest
import trio

from gateway.listening.locks import LockRenewals
from tests.listening.harness import virtual_time

pytestmark = virtual_time

MANY = 100  # renewals: a lock that is renewed without a pause would go on for ever


@attrs.define(eq=False)
class Paper:
    """A lock that is to be renewed every ten seconds, as a rule."""

    renew_at: float
    takes: float = 0.0
    holds: float = 10.0
    renewed: list[float] = attrs.field(factory=list)

    async def renew(self) -> None:
        assert len(self.renewed) < MANY
        self.renewed.append(trio.current_time())
        await trio.sleep(self.takes)
        self.renew_at = trio.current_time() + self.holds


async def test_each_lock_is_renewed_when_it_is_due(nursery):
    began = trio.current_time()
    locks = LockRenewals()
    await nursery.start(locks.run)
    late, soon = Paper(began + 9.0), Paper(began + 4.0)
    locks.watch(late)
    await trio.sleep(1.0)
    locks.watch(soon)
    await trio.sleep(20.0)

    assert [round(at - began, 1) for at in soon.renewed] == [4.0, 14.0]
    assert [round(at - began, 1) for at in late.renewed] == [9.0, 19.0]


async def test_a_forgotten_lock_is_never_renewed_again(nursery):
    locks = LockRenewals()
    await nursery.start(locks.run)
    resting, busy = Paper(trio.current_time() + 5.0), Paper(trio.current_time(), takes=3.0)
    locks.watch(resting)
    locks.watch(busy)
    await trio.sleep(1.0)
    locks.forget(resting)
    locks.forget(busy)
    await trio.sleep(100.0)

    assert (len(resting.renewed), len(busy.renewed)) == (0, 1)


async def test_a_renewal_that_hangs_holds_up_no_other(nursery):
    locks = LockRenewals()
    await nursery.start(locks.run)
    hangs, well = Paper(trio.current_time(), takes=inf), Paper(trio.current_time())
    locks.watch(hangs)
    locks.watch(well)
    await trio.sleep(35.0)

    assert (len(hangs.renewed), len(well.renewed)) == (1, 4)


@pytest.mark.parametrize("holds", [0.0, 0.1, 0.5, 0.6])
async def test_a_lock_is_renewed_with_pauses_however_short_it_is(nursery, holds):
    began = trio.current_time()
    locks = LockRenewals()
    await nursery.start(locks.run)
    short = Paper(began, holds=holds)
    locks.watch(short)
    await trio.sleep(3.1)

    assert [at - began for at in short.renewed] == pytest.approx([0.0, 0.6, 1.2, 1.8, 2.4, 3.0])
