"""What has happened, counted; what is red, and for how long."""

import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath
from gateway.domain.events import BusyPause, ConnectionCrashed, Event, Syphoned, SyphonStalled
from gateway.telemetry.watch import LONGEST_TEXT, RED, Watch
from gateway.testing.clocks import VirtualClock

ORDERS = EntityPath("orders")
STALLED = SyphonStalled(pending=5, seconds=60.0)


class Inner:
    def __init__(self) -> None:
        self.heard: list[Event] = []

    def report(self, event: Event) -> None:
        self.heard.append(event)


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def watch(inner: Inner) -> Watch:
    return Watch(inner, VirtualClock())


def moved(messages: int) -> Syphoned:
    return Syphoned(entity=ORDERS, queue=ORDERS, messages=messages)


async def test_every_event_is_counted_and_passed_on(watch: Watch, inner: Inner) -> None:
    pause = BusyPause(entity=ORDERS, seconds=10.0)
    for _ in range(3):
        watch.report(pause)

    assert watch.count(BusyPause) == 3
    assert watch.counts() == {"busy_pause": 3}
    assert inner.heard == [pause] * 3


async def test_the_rate_is_that_of_the_last_minute(watch: Watch, autojump_clock: MockClock) -> None:
    watch.report(moved(600))
    await trio.sleep(30)
    before = watch.rate()
    await trio.sleep(31)

    assert (before, watch.rate(), watch.moved) == (10.0, 0.0, 600)


async def test_much_movement_takes_no_memory(watch: Watch, autojump_clock: MockClock) -> None:
    for _ in range(10_000):
        watch.report(moved(1))
        await trio.sleep(0.1)

    assert watch.rate() == pytest.approx(10.0, rel=0.02)
    assert len(watch._moves) <= 62


async def test_an_error_is_red_for_ten_minutes(watch: Watch, autojump_clock: MockClock) -> None:
    watch.report(STALLED)
    watch.report(STALLED)
    (alarm,) = watch.alarms()
    await trio.sleep(RED.total_seconds() + 1)

    assert (alarm.event, alarm.times) == ("syphon_stalled", 2)
    assert "pending 5" in alarm.text
    assert watch.alarms() == []


async def test_a_traceback_is_for_the_log_alone(watch: Watch) -> None:
    watch.report(ConnectionCrashed(peer="p" * 1000, traceback="secret"))
    (alarm,) = watch.alarms()

    assert "secret" not in alarm.text
    assert len(alarm.text) == LONGEST_TEXT
