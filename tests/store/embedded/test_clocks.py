"""
Messages of a store live on for the rest of their lives when the wall clock is set by years, in a
process that sees it or while none runs.
"""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest

from gateway.domain.clocks.clock_note import Boot
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Defer, Message
from gateway.domain.storage_queue import Terms
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.store.embedded.files import Disk, this_boot
from gateway.store.local.visibility import LocalVisibility
from tests.store.embedded.stores import ORDERS, stored_ids

HOUR = timedelta(hours=1)
RIGHT = datetime(2026, 6, 1, tzinfo=UTC)
WRONG = [
    pytest.param(datetime(1970, 1, 1, 0, 1, tzinfo=UTC), id="1970"),
    pytest.param(datetime(2020, 1, 1, tzinfo=UTC), id="2020"),
    pytest.param(datetime(2040, 1, 1, tzinfo=UTC), id="2040"),
]


@attrs.define
class Machine:
    """A wall clock that is set by hand, and the time since the boot, which only passes."""

    date: datetime
    boot: str = "first"
    up: timedelta = timedelta(minutes=1)

    def clock(self) -> datetime:
        return self.date

    def pass_time(self, span: timedelta) -> None:
        self.date += span
        self.up += span

    def open(self, folder: Path) -> EmbeddedBroker:
        def this() -> Boot:
            return Boot(self.boot, self.up // timedelta(microseconds=1))

        options = EmbeddedOptions(create_missing=True)
        disk = Disk(boot=this)
        return EmbeddedBroker(folder / "a.db", self.clock, random.Random(0), options, None, disk)


def hours(date: datetime | None) -> int:
    """The hours from the right date on, rounded: the clock stands still while the test runs."""
    assert date is not None
    return round((date - RIGHT) / HOUR)


def mortal(name: str, life: timedelta = 2 * HOUR, **fields: object) -> Message:
    return Message(message_id=name, body=b"x", time_to_live=life, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_message_accepted_by_a_wrong_clock_lives_on_after_a_restart(
    tmp_path: Path, wrong: datetime
) -> None:
    machine = Machine(wrong)
    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("short", HOUR), mortal("long", 3 * HOUR)])
        machine.date = RIGHT
    machine.pass_time(2 * HOUR)

    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("new", HOUR)])
        shown = {each.message.message_id: each for each in await broker.peek(ORDERS, limit=9)}
        async with broker.open_receiver(ORDERS) as receiver:
            taken = {each.message.message_id for each in await receiver.receive(9)}

    assert taken == {"long", "new"}
    assert shown["long"].expires == machine.date + HOUR
    assert shown["long"].enqueued == machine.date - 2 * HOUR
    assert shown["new"].expires == machine.date + HOUR


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_message_accepted_by_a_wrong_clock_lives_on_in_the_process_that_sees_the_step(
    tmp_path: Path, wrong: datetime
) -> None:
    machine = Machine(wrong)
    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("kept")])
        machine.date = RIGHT
        await broker.send(ORDERS, [mortal("new", HOUR)])
        [kept, new] = await broker.peek(ORDERS, limit=9)
    async with machine.open(tmp_path) as broker:
        again = [each.expires for each in await broker.peek(ORDERS, limit=9)]

    assert [hours(kept.expires), hours(new.expires)] == [2, 1]
    assert list(map(hours, again)) == [2, 1]


async def test_a_step_that_is_taken_back_changes_nothing(tmp_path: Path) -> None:
    machine = Machine(RIGHT)
    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("kept")])
        machine.date = RIGHT + timedelta(days=9000)
        await broker.send(ORDERS, [mortal("meanwhile")])
        machine.date = RIGHT
        found = await broker.peek(ORDERS, limit=9)

    assert [hours(each.expires) for each in found] == [2, 2]


@pytest.mark.parametrize("wrong", WRONG[:2])
async def test_after_another_boot_dates_from_before_the_build_are_not_believed(
    tmp_path: Path, wrong: datetime
) -> None:
    machine = Machine(wrong)
    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("kept")])
    machine.date, machine.boot = RIGHT, "second"
    async with machine.open(tmp_path) as broker:
        [kept] = await broker.peek(ORDERS)

    assert kept.expires == RIGHT + 2 * HOUR


async def test_after_another_boot_two_plausible_dates_are_believed(tmp_path: Path) -> None:
    machine = Machine(RIGHT)
    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("gone")])
    machine.date, machine.boot = RIGHT + timedelta(days=9), "second"
    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("new")])

        assert await stored_ids(broker) == ["new"]


async def test_a_schedule_is_a_date_and_a_step_makes_it_due(tmp_path: Path) -> None:
    machine = Machine(datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
    async with machine.open(tmp_path) as broker:
        await broker.send(ORDERS, [mortal("scheduled", scheduled=RIGHT + HOUR)])
        machine.date = RIGHT
    machine.pass_time(HOUR)
    async with machine.open(tmp_path) as broker, broker.open_receiver(ORDERS) as receiver:
        [taken] = await receiver.receive(1)

    assert (taken.enqueued, taken.expires) == (RIGHT + HOUR, RIGHT + 3 * HOUR)


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_hidden_message_is_visible_again_after_its_time_whatever_the_clock_did(
    tmp_path: Path, wrong: datetime
) -> None:
    machine = Machine(RIGHT)
    async with machine.open(tmp_path) as broker:
        visibility = LocalVisibility(broker)
        await broker.send(ORDERS, [Message(message_id="a")])
        [taken] = await visibility.dequeue(ORDERS, 1, lambda _: Terms(hidden=HOUR))
        machine.date = wrong
    machine.pass_time(HOUR / 2)
    async with machine.open(tmp_path) as broker:
        early = await LocalVisibility(broker).dequeue(ORDERS, 1, lambda _: Terms(hidden=HOUR))
    machine.pass_time(HOUR)
    async with machine.open(tmp_path) as broker:
        [again] = await LocalVisibility(broker).dequeue(ORDERS, 1, lambda _: Terms(hidden=HOUR))

    assert taken.delivery.locked_until == RIGHT + HOUR
    assert early == []
    assert again.delivery.locked_until == machine.date + HOUR


async def test_deferred_messages_and_known_ids_live_on_too(tmp_path: Path) -> None:
    once = EntityPath("once")
    machine = Machine(datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
    async with machine.open(tmp_path) as broker:
        await broker.create_queue(once, QueueProperties(requires_duplicate_detection=True))
        await broker.send(once, [mortal("a")])
        async with broker.open_receiver(once) as receiver:
            [taken] = await receiver.receive(1)
            await receiver.settle(taken, Defer())
        machine.date = RIGHT
    async with machine.open(tmp_path) as broker:
        await broker.send(once, [mortal("a")])
        async with broker.open_receiver(once) as receiver:
            [deferred] = await receiver.receive_deferred([taken.sequence_number])
            await receiver.settle(deferred, Complete())
        info = await broker.inspect(once)

    assert deferred.expires == RIGHT + 2 * HOUR
    assert info.active == 0


def test_the_machine_tells_its_boot() -> None:
    boot = this_boot()

    assert boot is not None
    assert boot.id
    assert boot.elapsed > 0
