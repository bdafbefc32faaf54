"""A cause lasts from when it was first noted, as long as it's noted now and then."""

import trio

from gateway.pairing.syphon.grace import MAX_CAUSES, RECENT, SILENCE, Grace
from tests.pairing.harness import virtual_time

pytestmark = virtual_time


async def test_a_cause_lasts_since_it_was_noted_first() -> None:
    grace = Grace()
    lasted = [grace.lasted("orders")]
    for seconds in (10.0, SILENCE, 5.0):
        await trio.sleep(seconds)
        lasted.append(grace.lasted("orders"))

    assert lasted == [0.0, 10.0, 10.0 + SILENCE, 15.0 + SILENCE]


async def test_a_cause_that_wasnt_noted_for_an_hour_begins_again() -> None:
    grace = Grace()
    grace.lasted("orders")
    await trio.sleep(SILENCE + 1.0)
    again = grace.lasted("orders")
    await trio.sleep(2.0)

    assert (again, grace.lasted("orders")) == (0.0, 2.0)
    assert SILENCE == 3600.0


async def test_a_cause_that_was_fixed_begins_again_and_no_other_one_does() -> None:
    grace = Grace()
    for key in ("orders", "bills"):
        grace.lasted(key)
    await trio.sleep(10.0)
    grace.forget("orders")
    grace.forget("unknown")

    assert (grace.lasted("orders"), grace.lasted("bills")) == (0.0, 10.0)


async def test_the_causes_that_last_are_those_noted_in_the_last_ten_minutes() -> None:
    grace = Grace()
    grace.lasted("orders")
    await trio.sleep(5.0)
    grace.lasted("bills")
    await trio.sleep(RECENT - 5.0)
    at_the_bound = grace.lasting()
    await trio.sleep(1.0)

    assert at_the_bound == {"orders": RECENT, "bills": RECENT - 5.0}
    assert grace.lasting() == {"bills": RECENT - 4.0}
    assert RECENT == 600.0


async def test_of_more_than_ten_thousand_causes_the_oldest_is_forgotten() -> None:
    grace = Grace()
    for number in range(MAX_CAUSES + 1):
        grace.lasted(f"orders-{number}")
    await trio.sleep(1.0)

    assert len(grace.lasting()) == 10_000
    assert (grace.lasted("orders-1"), grace.lasted("orders-0")) == (1.0, 0.0)
