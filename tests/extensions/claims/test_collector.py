"""The collector deletes the bodies of a store that no message needs any more, and no others."""

from datetime import timedelta

import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Unavailable
from gateway.domain.message import Complete, DeadLetter, Message
from gateway.extensions.claims import claim as claims
from gateway.extensions.claims.claim import Entry, Keeping, waste
from gateway.extensions.claims.collector import Collector
from gateway.extensions.claims.events import ClaimCollectionFailed, ClaimsCollected
from tests.extensions.claims.harness import A_DAY, LARGE, ORDERS, Harness, virtual_time
from tests.harness.clocks import START

pytestmark = virtual_time
DAY = timedelta(days=1)
KEEPING = Keeping(
    after_completion=timedelta(minutes=10), after_expiry=14 * DAY, at_most=None, done=14 * DAY
)


async def collected(harness: Harness) -> set[str]:
    """The names that one round leaves."""
    await Collector(harness.broker.claim_check).round()
    return set(harness.store.kept)


async def test_a_completed_body_goes_after_a_while_and_the_note_of_it_later(
    harness: Harness,
) -> None:
    await harness.send()
    (name,) = harness.store.bodies
    await harness.take(settle=lambda delivery: Complete())

    await trio.sleep(500)
    assert await collected(harness) == {name, f"{name}.done"}
    await trio.sleep(100)
    assert await collected(harness) == {f"{name}.done"}
    await trio.sleep(15 * A_DAY)
    assert await collected(harness) == set()


async def test_the_body_of_a_message_that_waits_is_never_collected(harness: Harness) -> None:
    await harness.send()
    await trio.sleep(300 * A_DAY)
    await collected(harness)

    assert (await harness.take()).message.body == LARGE


async def test_the_body_of_a_dead_letter_stays_until_it_has_expired_and_longer(
    harness: Harness,
) -> None:
    await harness.send(time_to_live=DAY)
    await harness.take(settle=lambda delivery: DeadLetter(reason="bad"))

    await trio.sleep(14 * A_DAY)
    await collected(harness)
    assert (await harness.take(ORDERS.dead_letter)).message.body == LARGE
    await trio.sleep(A_DAY + 10)
    assert await collected(harness) == set()


async def test_a_clock_of_the_gateway_that_is_ahead_by_years_collects_nothing(
    harness: Harness,
) -> None:
    await harness.send(time_to_live=DAY)
    claim_check = harness.broker.claim_check
    right, claim_check.clock = claim_check.clock, lambda: START + 3650 * DAY
    await collected(harness)
    claim_check.clock = right

    assert (await harness.take()).message.body == LARGE


async def test_a_scheduled_message_lives_from_its_date_on(harness: Harness) -> None:
    await harness.send(time_to_live=DAY, scheduled=START + 30 * DAY)
    await trio.sleep(44 * A_DAY)

    assert len(await collected(harness)) == 1


async def test_where_a_life_may_begin_anew_no_body_expires(harness: Harness) -> None:
    harness.broker.claim_check.lives_anew = True
    await harness.send(time_to_live=DAY)
    await trio.sleep(100 * A_DAY)

    assert len(await collected(harness)) == 1


async def test_without_a_time_to_live_only_keep_at_most_collects() -> None:
    name = claims.new_id("x", Message(), START)
    old = [Entry(name, START)]

    assert list(waste(old, KEEPING, START + 5000 * DAY)) == []
    limited = Keeping(
        after_completion=DAY, after_expiry=DAY, at_most=90 * DAY, done=timedelta(hours=1)
    )
    assert list(waste(old, limited, START + 89 * DAY)) == []
    assert list(waste(old, limited, START + 90 * DAY)) == [name]


async def test_the_note_of_a_completion_goes_only_after_the_body() -> None:
    """A round may be broken off between the two."""
    name = claims.new_id("x", Message(), START)
    both = [Entry(name, START), Entry(f"{name}.done", START)]

    assert list(waste(both, KEEPING, START + 5000 * DAY)) == [name]
    assert list(waste(both[1:], KEEPING, START + 5000 * DAY)) == [f"{name}.done"]


async def test_files_that_others_have_put_there_stay() -> None:
    entries = [Entry("README", START), Entry(f"{'0' * 32}.0.done.bak", START)]

    assert list(waste(entries, KEEPING, START + 5000 * DAY)) == []


async def test_a_round_that_fails_is_told_and_the_next_one_comes(harness: Harness) -> None:
    def out(moment: str, step: str, name: str) -> None:
        if trio.current_time() < 100:
            raise Unavailable("the store is out")

    harness.store.trouble = out
    async with trio.open_nursery() as nursery:
        await nursery.start(Collector(harness.broker.claim_check).run)
        await trio.sleep(4000)
        nursery.cancel_scope.cancel()

    assert len(harness.events.of(ClaimCollectionFailed)) == 1
    assert len(harness.events.of(ClaimsCollected)) == 1


async def test_every_body_of_an_unexpired_message_is_kept() -> None:
    @given(
        days=st.none() | st.integers(0, 400),
        later=st.integers(0, 400),
        age=st.integers(0, 800),
        completed=st.none() | st.integers(0, 800),
    )
    def check(days: int | None, later: int, age: int, completed: int | None) -> None:
        message = Message(
            time_to_live=None if days is None else days * DAY, scheduled=START + later * DAY
        )
        name = claims.new_id("x", message, START)
        entries = [Entry(name, START)]
        if completed is not None:
            entries.append(Entry(f"{name}.done", START + completed * DAY))
        gone = name in waste(entries, KEEPING, START + age * DAY)

        alive = days is None or age <= later + days + 14
        assert not gone or (completed is not None and completed < age) or not alive

    check()
