"""A process leaves its record on the secondary: dates, contents, failures."""

import random
from collections.abc import Sequence
from datetime import timedelta
from itertools import count, pairwise
from typing import Any

import attrs
import pytest
import trio

from gateway.changes import Changes
from gateway.domain.billing import UPKEEP
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
    Unavailable,
)
from gateway.domain.events.gateway import HeartbeatsNotLeft
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import ORDERS_HOLD, GatewayRecord, ProcessRecord
from gateway.domain.health.record_coding import record_in
from gateway.domain.message import Delivery, Message
from gateway.pairing.records.place import place_of
from gateway.pairing.records.writer import (
    ANSWER_LIMIT,
    FIGURES,
    LAST_WORD,
    SELDOM,
    SOON,
    USUAL,
    RecordWriter,
)
from tests.pairing.harness import LABEL, Events, virtual_time
from tests.pairing.records.processes import KEYS
from tests.pairing.records.samples import order_of, record_of

pytestmark = virtual_time

INTERVAL = 600.0
DOWN = Unavailable("down")
LOST = Problem(kind="namespace-reach", entity="east", text="namespace east hasn't been reached")


@attrs.define(eq=False)
class Secondary:
    """A queue that records are left on."""

    errors: dict[str, BrokerError] = attrs.field(factory=dict)
    hangs: bool = False
    asked: list[float] = attrs.field(factory=list)  # when each record came, also if it was refused
    left: list[Message] = attrs.field(factory=list)
    upkeep: set[bool] = attrs.field(factory=set)  # whether a send is one of Pairgate's own
    made: int = 0

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        self.asked.append(trio.current_time())
        self.upkeep.add(UPKEEP.get())
        await self._strike("send")
        self.left += messages

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> None:
        self.made += 1
        self.errors.pop("send", None)
        await self._strike("create_queue")

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        await self._strike("peek")
        return ()

    async def _strike(self, method: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if method in self.errors:
            raise self.errors[method]

    @property
    def records(self) -> list[ProcessRecord]:
        found = [record_in(each.body, LABEL, KEYS) for each in self.left]
        return [each for each in found if each is not None]

    @property
    def pauses(self) -> list[float]:
        return [after - before for before, after in pairwise(self.asked)]


@attrs.define(eq=False)
class Process:
    """A gateway that leaves its record."""

    secondary: Secondary
    events: Events
    urgent: Changes = attrs.field(factory=Changes)
    told: dict[str, object] = attrs.field(factory=dict)
    notes: int = 0  # calls of `on_left`

    def _note(self) -> None:
        self.notes += 1

    async def _describe(self) -> ProcessRecord:
        await trio.lowlevel.checkpoint()
        usual = {"interval": 1.0, "gateway": GatewayRecord()}
        return record_of(**{**usual, **self.told})

    def writer(self, **options: Any) -> RecordWriter:
        return self.bare_writer(**{"urgent": self.urgent, "on_left": self._note, **options})

    def bare_writer(self, *, interval: float = INTERVAL, **options: Any) -> RecordWriter:
        """A writer that hears of no urgent news, and tells nobody when it has left a record."""
        numbers = count()
        return RecordWriter(
            secondary=self.secondary,  # type: ignore[arg-type]
            label=LABEL,
            keys=lambda: KEYS,
            describe=self._describe,
            interval=interval,
            rng=random.Random(1),
            new_id=lambda: f"id-{next(numbers)}",
            observer=self.events,
            **options,
        )

    async def run(self, seconds: float, **options: float) -> None:
        """Run for so long, and end in good order."""
        with trio.move_on_after(seconds):
            await self.writer(**options).run()


@pytest.fixture
def secondary() -> Secondary:
    return Secondary()


@pytest.fixture
def process(secondary: Secondary, events: Events) -> Process:
    return Process(secondary, events)


# Dates


async def test_the_first_record_waits_for_its_moment_or_for_urgent_news(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    await nursery.start(process.writer(first_after=50.0).run)
    await trio.sleep(49.0)
    before = len(secondary.left)
    process.urgent.notify()
    await trio.sleep(0.1)

    assert (before, len(secondary.left)) == (0, 1)


async def test_urgent_news_from_before_the_start_wait_for_nothing(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    process.urgent.notify()
    await nursery.start(process.writer(first_after=50.0).run)
    await trio.sleep(0.1)

    assert len(secondary.left) == 1


async def test_a_process_without_urgent_news_begins_at_its_moment(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    began = trio.current_time()
    await nursery.start(process.writer(first_after=50.0).run)
    await trio.sleep(51.0)

    assert secondary.asked == [began + 50.0]


async def test_a_process_with_nothing_new_leaves_a_record_in_each_interval(
    secondary: Secondary, process: Process
) -> None:
    await process.run(10 * INTERVAL)

    assert len(secondary.pauses) >= 10
    assert all(0.8 * INTERVAL <= each <= 1.1 * INTERVAL for each in secondary.pauses[:-1])


@pytest.mark.parametrize(
    "change",
    [{"gateway": GatewayRecord(spooled=1)}, {"problems": (LOST,)}],
    ids=["figures", "problem"],
)
async def test_changed_figures_and_problems_are_told_within_two_minutes(
    secondary: Secondary, process: Process, nursery: trio.Nursery, change: dict[str, object]
) -> None:
    await nursery.start(process.writer().run)
    await trio.sleep(1.0)
    process.told.update(change)
    await trio.sleep(1.1 * FIGURES)
    soon = len(secondary.left)
    await trio.sleep(1.1 * FIGURES)

    assert soon == 2
    assert len(secondary.left) == (3 if "problems" in change else 2)


async def test_a_problem_that_is_over_is_told_too(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    process.told["problems"] = (LOST,)
    await nursery.start(process.writer().run)
    await trio.sleep(1.0)
    process.told.clear()
    await trio.sleep(1.1 * FIGURES)

    assert [each.problems for each in secondary.records] == [(LOST,), ()]


async def test_urgent_news_are_told_at_once(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    await nursery.start(process.writer().run)
    await trio.sleep(1.0)
    process.urgent.notify()
    await trio.sleep(0.1)

    assert len(secondary.left) == 2


async def test_a_short_interval_is_that_of_problems_too(
    secondary: Secondary, process: Process
) -> None:
    await process.run(300.0, interval=30.0)

    assert {each.renews for each in secondary.records} == {30.0}
    assert all(27.0 <= each <= 33.0 for each in secondary.pauses[:-1])


# Contents


async def test_a_record_tells_its_number_and_when_to_expect_the_next_ones(
    secondary: Secondary, process: Process
) -> None:
    await process.run(2 * INTERVAL)

    *others, last = secondary.records
    assert [each.revision for each in secondary.records] == [*range(1, len(others) + 2)]
    assert {(each.interval, each.renews) for each in secondary.records} == {(INTERVAL, FIGURES)}
    assert last.ended
    assert not any(each.ended for each in others)
    assert [each.message_id for each in secondary.left[:2]] == ["id-0", "id-1"]
    assert secondary.left[0].content_type == "application/json"


async def test_a_record_is_a_send_of_pairgates_own(secondary: Secondary, process: Process) -> None:
    await process.run(1.0)

    assert secondary.upkeep == {True}


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_secondary_keeps_a_record_for_three_intervals_or_as_long_as_its_orders_hold(
    secondary: Secondary, process: Process, ordered: bool
) -> None:
    process.told["orders"] = (order_of(),) if ordered else ()
    await process.run(1.0, interval=30.0)

    kept = ORDERS_HOLD if ordered else timedelta(seconds=90)
    assert {each.time_to_live for each in secondary.left} == {kept}


# Failures


@pytest.mark.parametrize(
    ("error", "records"), [(NotSupported("no peek"), 0), (NotAuthorized("no right"), 1), (DOWN, 1)]
)
async def test_a_record_is_left_unless_nobody_could_read_it(
    secondary: Secondary,
    process: Process,
    nursery: trio.Nursery,
    error: BrokerError,
    records: int,
) -> None:
    secondary.errors["peek"] = error
    await nursery.start(process.writer().run)
    await trio.sleep(1.0)

    assert len(secondary.left) == records


@pytest.mark.parametrize(("is_urgent", "pause"), [(True, SOON), (False, FIGURES)])
async def test_a_record_that_is_not_left_in_an_outage_is_repeated_and_not_reported(
    secondary: Secondary, process: Process, is_urgent: bool, pause: float
) -> None:
    secondary.errors["send"] = DOWN
    if is_urgent:
        process.urgent.notify()
    await process.run(4 * pause)

    assert len(secondary.pauses) >= 3
    assert secondary.pauses == pytest.approx([pause] * len(secondary.pauses), rel=0.11)
    assert process.events.all == []
    assert (process.notes, secondary.made) == (0, 0)


async def test_a_refusal_is_reported_once_and_the_next_attempt_is_seldom(
    secondary: Secondary, process: Process
) -> None:
    secondary.errors["send"] = NotAuthorized("no right")
    await process.run(3.5 * SELDOM, interval=30.0)

    assert secondary.pauses == [SELDOM] * 3
    assert [each.reason for each in process.events.of(HeartbeatsNotLeft)] == ["no right"]


async def test_a_refusal_of_a_process_with_a_long_interval_is_repeated_after_it(
    secondary: Secondary, process: Process
) -> None:
    secondary.errors["send"] = NotAuthorized("no right")
    await process.run(3.5 * SELDOM, interval=2 * SELDOM)

    assert secondary.pauses == [2 * SELDOM]


async def test_a_refusal_after_a_record_was_left_is_reported_again(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    await nursery.start(process.writer().run)
    for _ in range(2):
        secondary.errors["send"] = NotAuthorized("no right")
        process.urgent.notify()
        await trio.sleep(1.0)
        secondary.errors.clear()
        process.urgent.notify()
        await trio.sleep(1.0)

    assert len(process.events.of(HeartbeatsNotLeft)) == 2


@pytest.mark.parametrize("others", [None, EntityExists("there")])
async def test_a_missing_queue_is_made_and_has_the_record(
    secondary: Secondary, process: Process, nursery: trio.Nursery, others: BrokerError | None
) -> None:
    secondary.errors["send"] = EntityNotFound("none")
    if others is not None:
        secondary.errors["create_queue"] = others
    await nursery.start(process.writer().run)
    await trio.sleep(1.0)

    assert (secondary.made, len(secondary.left), process.notes) == (1, 1, 1)
    assert process.events.all == []


async def test_a_secondary_without_an_answer_has_five_seconds(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    began = trio.current_time()
    secondary.hangs = True
    process.urgent.notify()
    await nursery.start(process.writer().run)
    await trio.sleep(3 * ANSWER_LIMIT)

    first, second, *_ = secondary.asked
    assert (first - began, second - first) == (ANSWER_LIMIT, ANSWER_LIMIT + SOON)


async def test_a_process_whose_last_record_was_not_left_has_no_last_word(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            await inner.start(process.writer().run)
            await trio.sleep(1.0)
            secondary.errors["send"] = DOWN
            process.urgent.notify()
            await trio.sleep(1.0)
            asked = len(secondary.asked)
            scope.cancel()

    assert asked == len(secondary.asked) == 2


async def test_the_end_of_a_process_waits_a_second_for_its_last_word(
    secondary: Secondary, process: Process
) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            await inner.start(process.writer().run)
            await trio.sleep(1.0)
            secondary.hangs = True
            began = trio.current_time()
            scope.cancel()

    assert len(secondary.asked) == 2
    assert trio.current_time() == began + LAST_WORD


async def test_each_record_that_was_left_is_noted(secondary: Secondary, process: Process) -> None:
    await process.run(1.0)

    assert process.notes == len(secondary.left) == 2


@attrs.define(eq=False)
class Piling(Secondary):
    """A queue whose earlier messages hide the later ones, and may not be deleted."""

    async def send_deletable(self, entity: EntityPath, message: Message) -> object:
        await self.send(entity, [message])
        return "receipt"

    async def delete_sent(self, entity: EntityPath, receipt: object) -> None:
        await trio.lowlevel.checkpoint()
        raise NotAuthorized("no right to delete")


async def test_records_that_pile_up_are_few_and_kept_for_a_fifth_more_than_an_interval(
    events: Events,
) -> None:
    piling = Piling()
    await Process(piling, events).run(4 * INTERVAL)

    first, second, *others = piling.left[:-1]
    assert {first.time_to_live, second.time_to_live} == {timedelta(seconds=3 * INTERVAL)}
    assert {each.time_to_live for each in others} == {timedelta(seconds=1.2 * INTERVAL)}
    assert [each.renews for each in piling.records[:3]] == [FIGURES, FIGURES, INTERVAL]


@attrs.define(eq=False)
class Streaming:
    """A namespace with streams, which notes how one is made."""

    streams: list[tuple[timedelta, int]] = attrs.field(factory=list)
    left: list[Message] = attrs.field(factory=list)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await trio.lowlevel.checkpoint()
        self.left += messages

    async def create_stream(self, stream: EntityPath, *, keeps: timedelta, most: int) -> None:
        await trio.lowlevel.checkpoint()
        self.streams.append((keeps, most))

    async def read_stream(
        self, stream: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        raise AssertionError("a writer may have no right to read")


async def test_a_stream_of_records_keeps_an_hour_and_32_mebibytes() -> None:
    secondary = Streaming()
    place = place_of(secondary, LABEL)  # type: ignore[arg-type]
    assert place is not None
    await place.create()

    assert secondary.streams == [(timedelta(hours=1), 32 * 1024 * 1024)]


async def test_a_record_is_left_on_a_stream_without_reading_it(events: Events) -> None:
    secondary = Streaming()
    await Process(secondary, events).run(1.0)  # type: ignore[arg-type]

    assert len(secondary.left) == 2


async def test_a_writer_keeps_its_source_of_keys(process: Process) -> None:
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        process.writer().keys = lambda: KEYS


async def test_a_process_without_urgent_news_leaves_its_first_record_at_once(
    secondary: Secondary, process: Process, nursery: trio.Nursery
) -> None:
    began = trio.current_time()
    await nursery.start(process.bare_writer().run)
    await trio.sleep(1.0)

    assert secondary.asked == [began]


async def test_a_record_is_left_in_ten_minutes_and_figures_in_two() -> None:
    assert (USUAL, FIGURES, SELDOM) == (600.0, 120.0, 600.0)
    assert (ANSWER_LIMIT, SOON, LAST_WORD) == (5.0, 2.0, 1.0)
