"""A wall clock that jumps costs nothing: no message ends before its time, on none of the ways."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
import trio

from gateway.domain.message import Message
from gateway.pairing.options import BacklogTimeToLive, SyphonOptions
from tests.harness.clocks import VirtualClock
from tests.harness.faults import Operation, Refuse
from tests.pairing.harness import ORDERS, QUEUE, Harness, message, send, virtual_time

pytestmark = virtual_time

HOUR = timedelta(hours=1)
SECONDS = timedelta(seconds=5)  # the error that an expiry may have
TRUE = VirtualClock()
# The owners of clocks that are set together: one process, or all of one machine.
WHO = [
    ("gateway",),
    ("syphon",),
    ("secondary",),
    ("primary",),
    ("gateway", "syphon"),
    ("gateway", "syphon", "secondary"),
]
IDS = ["+".join(who) for who in WHO]


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """Each has a clock of its own."""
    async with trio.open_nursery() as nursery:
        names = ("syphon", "primary", "secondary")
        harness = Harness(nursery=nursery, clocks={name: VirtualClock() for name in names})
        await harness.open()
        yield harness
        nursery.cancel_scope.cancel()


def set_clocks(harness: Harness, who: tuple[str, ...], ahead: timedelta) -> None:
    for name in who:
        clock = harness.clock if name == "gateway" else harness.clocks[name]
        clock.skew = ahead


async def send_some(harness: Harness, pair, label: str) -> dict[str, datetime | None]:
    """Messages of all kinds; return when each expires."""
    due = TRUE() + timedelta(seconds=25)
    sent = [
        message(f"{label} hour", time_to_live=HOUR),
        message(f"{label} scheduled", time_to_live=HOUR, scheduled=due),
        message(f"{label} two hours", time_to_live=2 * HOUR),
        message(f"{label} for ever"),
        message(f"{label} for ever, scheduled", scheduled=due),
    ]
    for each in sent:
        await send(pair, each)()
    return {str(each.message_id): true_expiry(each) for each in sent}


def true_expiry(sent: Message) -> datetime | None:
    if sent.time_to_live is None:
        return None
    return max(TRUE(), sent.scheduled or TRUE()) + sent.time_to_live


def of_schedules(found: dict[str, datetime | None]) -> dict[str, datetime | None]:
    return {name: date for name, date in found.items() if name.endswith("scheduled")}


def without_schedules(found: dict[str, datetime | None]) -> dict[str, datetime | None]:
    return {name: date for name, date in found.items() if not name.endswith("scheduled")}


async def home(harness: Harness) -> dict[str, datetime | None]:
    found = await harness.primary.deliveries()
    return {str(each.message.message_id): each.expires for each in found}


def assert_as_sent(
    found: dict[str, datetime | None],
    sent: dict[str, datetime | None],
    longer: timedelta = timedelta(0),
) -> None:
    """No message lives shorter than it was sent to, and none longer than that."""
    assert sorted(found) == sorted(sent)
    for name, expires in sent.items():
        got = found[name]
        if expires is None or got is None:
            assert got is expires
        else:
            assert -SECONDS <= got - expires <= longer + SECONDS, name


def longer_life(who: tuple[str, ...], ahead: timedelta) -> timedelta:
    """
    Return the time that a message may live too long, since no process can know better.

    See the table in docs/explanation/semantics.md.
    """
    if ahead > timedelta(0) and who == ("primary",):
        return ahead  # of the messages that it took while its own clock was in doubt
    if ahead > timedelta(0) and "secondary" in who and "gateway" in who:
        # No clock shows the waiting time of messages that were diverted then: until the outage is
        # over, and the syphon's backoff.
        return timedelta(seconds=60 + 1.2 * SyphonOptions().retry.cap)
    return timedelta(0)


@pytest.mark.parametrize("mode", BacklogTimeToLive)
@pytest.mark.parametrize("healed", [20, 60], ids=["moved while wrong", "moved later"])
@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("who", WHO, ids=IDS)
async def test_a_clock_that_is_wrong_for_16_s_costs_nothing(harness, who, ahead, healed, mode):
    pair = await harness.pair()
    await harness.syphon(backlog_ttl=mode)
    await send(pair, message("known"))()
    harness.primary.fail(Refuse(), Operation.SEND)
    start = trio.current_time()

    sent = await send_some(harness, pair, "before")
    await trio.sleep_until(start + 10)
    set_clocks(harness, who, ahead)
    sent |= await send_some(harness, pair, "while")
    await trio.sleep_until(start + min(healed, 26))
    if healed < 26:
        harness.primary.heal()
        await trio.sleep_until(start + 26)
    set_clocks(harness, who, timedelta(0))
    sent |= await send_some(harness, pair, "after")
    await trio.sleep_until(start + healed)
    harness.primary.heal()
    await trio.sleep_until(start + 600)

    assert await harness.secondary.ids(QUEUE.dead_letter) == []
    found = await home(harness)
    found.pop("known")
    if mode is BacklogTimeToLive.DEDUCT:
        assert_as_sent(found, sent, longer_life(who, ahead))
    else:
        assert sorted(found) == sorted(sent)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("who", [("gateway",), ("syphon",), ("gateway", "syphon")])
async def test_a_clock_that_stays_wrong_costs_nothing(harness, who, ahead):
    pair = await harness.pair()
    await harness.syphon()
    harness.primary.fail(Refuse(), Operation.SEND)

    sent = await send_some(harness, pair, "before")
    await trio.sleep(10)
    set_clocks(harness, who, ahead)
    sent |= await send_some(harness, pair, "after")
    await trio.sleep(600)
    harness.primary.heal()
    await trio.sleep(300)

    assert await harness.secondary.ids(QUEUE.dead_letter) == []
    found = await home(harness)
    if ahead < timedelta(0) and "syphon" in who:
        # By its clock it isn't due yet, and by the backlog's it has lived for a while: no clock
        # is believed that would take something away.
        longest = timedelta(seconds=600 + 1.2 * SyphonOptions().retry.cap)  # in the backlog
        assert_as_sent(of_schedules(found), of_schedules(sent), longest)
        found, sent = without_schedules(found), without_schedules(sent)
    assert_as_sent(found, sent)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_syphon_that_starts_with_a_wrong_clock_believes_the_backlogs(harness, ahead):
    pair = await harness.pair()
    harness.primary.fail(Refuse(), Operation.SEND)
    sent = await send_some(harness, pair, "all")
    await trio.sleep(60)
    harness.primary.heal()

    set_clocks(harness, ("syphon",), ahead)
    await harness.syphon()
    await trio.sleep(60)

    assert await harness.secondary.ids(QUEUE.dead_letter) == []
    found = await home(harness)
    assert_as_sent(of_schedules(found), of_schedules(sent), timedelta(seconds=60))
    assert_as_sent(without_schedules(found), without_schedules(sent))


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_backlog_whose_clock_is_always_wrong_costs_nothing(harness, ahead):
    set_clocks(harness, ("secondary",), ahead)
    pair = await harness.pair()
    await harness.syphon()
    harness.primary.fail(Refuse(), Operation.SEND)
    due = message("due", time_to_live=HOUR)
    expires = TRUE() + HOUR
    await send(pair, due)()
    await trio.sleep(1200)
    harness.primary.heal()
    await trio.sleep(300)

    assert_as_sent(await home(harness), {"due": expires})


async def test_a_message_that_has_expired_by_all_clocks_is_dead_lettered(harness):
    pair = await harness.pair()
    await harness.syphon()
    harness.primary.fail(Refuse(), Operation.SEND)
    await send(pair, message("short", time_to_live=timedelta(seconds=100)))()
    await trio.sleep(200)
    harness.primary.heal()
    await trio.sleep(60)

    assert await harness.secondary.ids(QUEUE.dead_letter) == ["short"]
    assert ORDERS not in await harness.primary.ids()


async def test_a_schedule_that_comes_home_while_the_syphons_clock_is_ahead_isnt_lost(harness):
    """The message had 15 s left by that clock when it came home, and was gone soon after."""
    pair = await harness.pair()
    await harness.syphon()
    harness.primary.fail(Refuse(), Operation.SEND)
    due = TRUE() + timedelta(seconds=25)
    await send(pair, message("m1", time_to_live=HOUR, scheduled=due))()
    await trio.sleep(10)
    set_clocks(harness, ("gateway", "syphon"), HOUR)
    harness.primary.heal()
    await trio.sleep(16)
    set_clocks(harness, ("gateway", "syphon"), timedelta(0))
    await trio.sleep(600)

    assert await home(harness) == {"m1": due + HOUR}


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_message_that_a_namespace_takes_while_its_clock_is_wrong_for_16_s_isnt_lost(
    harness, ahead
):
    pair = await harness.pair()
    await send(pair, message("known"))()
    await trio.sleep(10)
    set_clocks(harness, ("primary",), ahead)
    sent = await send_some(harness, pair, "while")
    await trio.sleep(16)
    set_clocks(harness, ("primary",), timedelta(0))
    async with harness.primary.store.open_receiver(ORDERS) as receiver:
        early = [each.message.message_id for each in await receiver.receive(100)]
    await trio.sleep(600)

    assert early == ["known", "while hour", "while two hours", "while for ever"]
    found = await home(harness)
    found.pop("known")
    assert_as_sent(found, sent, max(ahead, timedelta(0)))
