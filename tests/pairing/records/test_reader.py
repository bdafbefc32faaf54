"""A process reads the records of others: requests, trust, and the time for which each holds."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
    Unavailable,
)
from gateway.domain.events.gateway import RecordRefused
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import (
    MOST_RECORDS,
    PairRecords,
    ProcessRecord,
    SyphonRecord,
)
from gateway.domain.health.record_coding import body_of
from gateway.domain.message import Delivery, Message
from gateway.pairing.records.reader import (
    LOOK_LIMIT,
    MISSING,
    MOST_PAGES,
    PAGE,
    RECHECK,
    REFUSED,
    RecordReader,
    no_keys,
)
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import LABEL, Events, virtual_time
from tests.pairing.records.processes import KEYS
from tests.pairing.records.samples import order_of, record_of
from tests.pairing.records.shown import Shown

pytestmark = virtual_time

YEAR = timedelta(days=365)
LOST = Problem(kind="namespace-reach", entity="east", text="namespace east hasn't been reached")


@pytest.fixture
def secondary() -> Shown:
    return Shown()


@pytest.fixture
def reader(secondary: Shown, events: Events) -> RecordReader:
    return RecordReader(
        secondary=secondary,  # type: ignore[arg-type]
        label=LABEL,
        clock=VirtualClock(),
        process="own",
        keys=lambda: KEYS,
        observer=events,
    )


def record(process: str = "p", **fields: object) -> ProcessRecord:
    """A record of a syphon."""
    usual = {"kind": "syphon", "revision": 1, "interval": 30.0, "syphon": SyphonRecord()}
    return record_of(process, **{**usual, **fields})


# Requests


async def test_each_record_is_asked_for_once(secondary: Shown, reader: RecordReader) -> None:
    secondary.put(record("a"), record("b"))
    await reader.look()
    first = secondary.peeks()
    secondary.put(record("c"))
    known = await reader.look()

    assert first == [(0, PAGE), (3, PAGE)]
    assert secondary.peeks() == [(3, PAGE), (4, PAGE)]
    assert (reader.pages, known.consumers) == (2, 0)
    assert {each.process for each in known.alive} == {"a", "b", "c"}


async def test_a_queue_without_news_is_asked_every_twenty_seconds_whether_it_is_another(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record())
    await reader.look()
    asked = []
    for seconds in (0.0, RECHECK - 1.0, 1.0):
        await trio.sleep(seconds)
        secondary.peeks()
        await reader.look()
        asked.append(secondary.peeks())

    assert asked == [[(2, PAGE), (0, 1)], [(2, PAGE)], [(2, PAGE), (0, 1)]]


async def test_an_empty_queue_is_no_other_one(secondary: Shown, reader: RecordReader) -> None:
    await reader.look()
    await reader.look()
    before = secondary.peeks()
    secondary.put(record())
    await reader.look()
    secondary.letters.clear()
    secondary.peeks()
    await reader.look()

    assert before == [(0, PAGE), (0, PAGE)]
    assert secondary.peeks() == [(2, PAGE), (0, 1)]


@pytest.mark.parametrize(
    ("numbers", "first_id", "is_another"),
    [((1, 2), "other", True), ((3, 4), "other", True), ((3, 4), "m3", False), ((4,), "m4", False)],
    ids=["earlier numbers", "the same number", "the same message", "the first has expired"],
)
async def test_a_queue_that_was_created_again_is_read_from_its_begin(
    secondary: Shown,
    reader: RecordReader,
    numbers: tuple[int, ...],
    first_id: str,
    is_another: bool,
) -> None:
    secondary.put(*[record(f"p{number}") for number in (1, 2, 3, 4)])
    del secondary.letters[:2]
    await reader.look()
    secondary.letters.clear()
    for number in numbers:
        name = first_id if number == numbers[0] else f"m{number}"
        message = Message(message_id=name, body=body_of(record(f"new{number}"), LABEL, KEYS))
        secondary.letters.append(Delivery(message=message, sequence_number=number))
    known = await reader.look()

    found = {each.process for each in known.alive}
    assert found == (
        {"p3", "p4"} | ({f"new{number}" for number in numbers} if is_another else set())
    )


async def test_a_look_reads_fifty_pages_and_the_next_one_goes_on(
    secondary: Shown, reader: RecordReader
) -> None:
    for _ in range(MOST_PAGES * PAGE):
        secondary.put_body(b"of somebody else")
    secondary.put(record())
    first = await reader.look()
    pages = reader.pages
    second = await reader.look()

    assert (first.alive, pages) == ((), MOST_PAGES)
    assert [each.process for each in second.alive] == ["p"]


async def test_a_look_beside_another_asks_nothing_and_has_its_answer(
    secondary: Shown, reader: RecordReader, nursery: trio.Nursery
) -> None:
    secondary.put(record())
    secondary.delay = LOOK_LIMIT / 4
    nursery.start_soon(reader.look)
    await trio.sleep(0.1)
    known = await reader.look()

    assert [each.process for each in known.alive] == ["p"]
    assert len(secondary.peeks()) == 2


async def test_a_look_is_repeated_unless_it_is_fresh(
    secondary: Shown, reader: RecordReader
) -> None:
    await reader.look_again(2.0)
    asked = [len(secondary.peeks())]
    for seconds in (1.9, 0.1):
        await trio.sleep(seconds)
        await reader.look_again(2.0)
        asked.append(len(secondary.peeks()))

    assert asked == [1, 0, 1]


async def test_records_that_may_not_be_read_are_asked_for_by_a_look_alone(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.error = NotAuthorized("no right")
    known = await reader.look()
    secondary.peeks()
    await trio.sleep(60.0)
    await reader.look_again(2.0)
    again = secondary.peeks()
    secondary.error = None
    await reader.look()

    assert (known.unknown, again) == ("no right", [])
    assert (reader.may_read, reader.exists) == (True, True)


@pytest.mark.parametrize(
    ("error", "exists", "told"),
    [
        (NotAuthorized("no right"), True, "no right"),
        (NotSupported("no peek"), False, "the secondary can't show messages"),
    ],
)
async def test_a_refusal_tells_whether_there_are_records_at_all(
    secondary: Shown, reader: RecordReader, error: BrokerError, exists: bool, told: str
) -> None:
    secondary.error = error
    known = await reader.look()

    assert (reader.may_read, reader.exists, known.unknown) == (False, exists, told)
    assert known.consumers == 0


async def test_a_secondary_that_takes_too_long_leaves_what_is_known(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record(orders=(order_of(),)))
    before = await reader.look()
    secondary.delay = 2 * LOOK_LIMIT
    after = await reader.look()

    assert after.unknown == "the secondary doesn't answer"
    assert (after.at, after.alive, after.orders) == (None, before.alive, before.orders)
    assert after.since == before.since == before.at


# Trust


async def test_only_another_process_is_another(secondary: Shown, reader: RecordReader) -> None:
    secondary.put(record("own"), record("p"))
    await reader.look()

    assert [each.process for each in reader.others] == ["p"]


async def test_records_with_a_wrong_seal_are_counted_and_reported_once(
    secondary: Shown, reader: RecordReader, events: Events
) -> None:
    reported = []
    for _ in range(3):
        secondary.put_body(body_of(record("forged"), "other label", KEYS))
        await reader.look()
        reported.append(len(events.of(RecordRefused)))
    secondary.put(record("p"))
    known = await reader.look()

    assert ([each.process for each in known.alive], known.refused) == (["p"], 3)
    assert reported == [1, 1, 1]


async def test_records_with_a_wrong_seal_disturb_nobody_who_hears_no_events(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put_body(body_of(record("forged"), "other label", KEYS))

    assert (await attrs.evolve(reader, observer=None).look()).refused == 1


@pytest.mark.parametrize(
    ("revision", "older", "counts"),
    [(2, timedelta(hours=1), True), (1, -timedelta(hours=1), False), (0, timedelta(), False)],
)
async def test_of_the_records_of_a_process_the_highest_revision_counts(
    secondary: Shown, reader: RecordReader, revision: int, older: timedelta, counts: bool
) -> None:
    secondary.put(record(pid=1, revision=1))
    at = VirtualClock()() - older
    secondary.put(record(pid=2, revision=revision, at=at), record("q", pid=3))
    known = await reader.look()

    assert {each.pid for each in known.alive} == {2 if counts else 1, 3}


@pytest.mark.parametrize(
    ("later", "counts"),
    [
        (timedelta(seconds=1), True),
        (timedelta(), False),
        (-timedelta(seconds=1), False),
        (-YEAR, True),
    ],
    ids=["later", "the same", "earlier", "the clock was set back"],
)
@pytest.mark.parametrize("before", ["", "1"])
async def test_of_the_heartbeats_of_an_earlier_version_the_latest_counts(
    secondary: Shown, reader: RecordReader, later: timedelta, counts: bool, before: str
) -> None:
    now = VirtualClock()()
    for pid, at, version in ((1, now, before), (2, now + later, "")):
        secondary.put(record(pid=pid, version=version, at=at))
    known = await reader.look()

    assert [each.pid for each in known.alive] == [2 if counts else 1]


async def test_beyond_the_most_the_process_that_told_longest_ago_is_forgotten(
    secondary: Shown, reader: RecordReader
) -> None:
    told = record()
    for number in range(MOST_RECORDS):
        secondary.put(attrs.evolve(told, process=f"p{number}"))
    secondary.put(attrs.evolve(told, process="p0", revision=2))
    secondary.put(attrs.evolve(told, process="last"))
    known = await reader.look(60.0)

    found = {each.process for each in known.alive}
    assert len(found) == MOST_RECORDS
    assert {"p0", "last"} <= found
    assert "p1" not in found


# The time for which a record holds


async def test_a_process_is_alive_for_three_intervals(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record(interval=30.0))
    await trio.sleep(90.0)
    before = await reader.look()
    await trio.sleep(0.1)
    after = await reader.look()

    assert (len(before.alive), len(before.stale)) == (1, 0)
    assert (len(after.alive), len(after.stale), len(after.ended)) == (0, 1, 0)


async def test_a_process_that_has_ended_is_neither_alive_nor_silent(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record(ended=True))
    known = [await reader.look()]
    await trio.sleep(1000.0)
    known.append(await reader.look())

    assert [(each.alive, each.stale) for each in known] == [((), ())] * 2
    assert [len(each.ended) for each in known] == [1, 1]


async def test_orders_hold_as_long_as_the_secondary_keeps_their_record(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record(orders=(order_of(),), lifetime=timedelta(seconds=600)))
    await trio.sleep(600.0)
    before = await reader.look()
    await trio.sleep(0.1)
    after = await reader.look()

    assert (len(before.orders), len(after.orders)) == (1, 0)


async def test_problems_hold_for_three_of_their_renewals(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record(problems=(LOST,), interval=600.0, renews=120.0))
    await trio.sleep(360.0)
    before = await reader.look()
    await trio.sleep(0.1)
    after = await reader.look()

    assert (before.alive[0].problems, after.alive[0].problems) == ((LOST,), ())


async def test_the_first_record_of_a_process_is_as_old_as_its_date(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record(at=VirtualClock()() - timedelta(seconds=100)))
    known = await reader.look()

    assert (len(known.alive), len(known.stale)) == (0, 1)


async def test_a_record_from_the_future_has_just_come(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record(at=VirtualClock()() + timedelta(hours=1)))
    await reader.look()
    await trio.sleep(90.1)

    assert (await reader.look()).alive == ()


async def test_the_newest_process_is_told_first(secondary: Shown, reader: RecordReader) -> None:
    now = VirtualClock()()
    ages = {"old": 50, "new": 10, "middle": 30}
    for ended in (False, True):
        for name, age in ages.items():
            at = now - timedelta(seconds=age)
            secondary.put(record(f"{name} {ended}", at=at, ended=ended, pid=age))
    known = await reader.look()
    await trio.sleep(200.0)
    later = await reader.look()

    assert [each.pid for each in known.alive] == [10, 30, 50]
    assert [each.pid for each in known.ended] == [10, 30, 50]
    assert [each.pid for each in later.stale] == [10, 30, 50]


# Syphons


async def test_the_last_syphon_is_one_that_told_so_and_no_gateway(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record("gateway", syphon=None))
    before = (await reader.look()).last_syphon
    dates = [VirtualClock()() - timedelta(seconds=age) for age in (20, 10, 15)]
    secondary.put(*[record(f"p{number}", at=date) for number, date in enumerate(dates)])

    assert before is None
    assert (await reader.look()).last_syphon == dates[1]


async def test_a_missing_queue_is_known_to_be_empty_once_a_syphon_was_seen(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.error = EntityNotFound("none")
    before = await reader.look()
    secondary.error = None
    secondary.put(record())
    await reader.look()
    secondary.error = EntityNotFound("none")
    after = await reader.look()

    assert before.unknown == "no syphon has left a heartbeat on the secondary yet"
    assert (before.since, after.unknown) == (None, "")


async def test_a_record_has_the_date_of_the_secondary(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.put(record())
    enqueued = VirtualClock()() - timedelta(seconds=7)
    secondary.letters = [attrs.evolve(secondary.letters[0], enqueued=enqueued)]

    assert (await reader.look()).alive[0].at == enqueued


# Secondaries that count receivers


@attrs.define(eq=False)
class Counting:
    """A queue that shows nothing, and counts who receives from it."""

    active: int | None = 0
    consumers: int = 0
    inspected: list[EntityPath] = attrs.field(factory=list)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        await trio.lowlevel.checkpoint()
        self.inspected.append(entity)
        return EntityInfo(path=entity, active=self.active, other_consumers=self.consumers)


@pytest.mark.parametrize(
    ("active", "consumers", "unknown"),
    [
        (0, 0, ""),
        (0, 2, ""),
        (None, 2, ""),
        (None, 0, "the secondary can't show messages"),
    ],
)
async def test_receivers_are_counted_where_nothing_is_shown(
    reader: RecordReader, active: int | None, consumers: int, unknown: str
) -> None:
    counting = Counting(active, consumers)
    looking = attrs.evolve(reader, secondary=counting)  # type: ignore[arg-type]
    known = await looking.look()

    assert (known.unknown, known.consumers) == (unknown, consumers)
    assert known.last_syphon == (VirtualClock()() if consumers else None)
    assert (looking.may_read, counting.inspected) == (False, [backlog.queue_name(LABEL, 0)])


@attrs.define(eq=False)
class Streamed:
    """The same as a stream, on a namespace that counts receivers."""

    shown: Shown = attrs.field(factory=Shown)
    consumers: int | None = 0  # None: it can't be asked

    async def read_stream(
        self, stream: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        return await self.shown.peek(stream, from_sequence=from_sequence, limit=limit)

    async def create_stream(self, stream: EntityPath, *, keeps: timedelta, most: int) -> None:
        raise AssertionError("a reader makes nothing")

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        await trio.lowlevel.checkpoint()
        if self.consumers is None:
            raise Unavailable("503")
        return EntityInfo(path=entity, active=0, other_consumers=self.consumers)

    def put(self, *records: ProcessRecord) -> None:
        self.shown.put(*records)


@pytest.fixture
def streamed(reader: RecordReader) -> RecordReader:
    return attrs.evolve(reader, secondary=Streamed())  # type: ignore[arg-type]


async def test_receivers_are_counted_as_long_as_no_syphon_tells_of_itself(
    streamed: RecordReader,
) -> None:
    secondary: Any = streamed.secondary
    secondary.put(record("gateway", syphon=None))
    counts = []
    for consumers in (2, None):
        secondary.consumers = consumers
        counts.append((await streamed.look()).consumers)
    secondary.consumers = 2
    secondary.put(record("syphon"))
    known = await streamed.look()

    assert counts == [2, 0]
    assert (len(known.alive), known.consumers) == (2, 0)


async def test_an_expired_record_on_a_stream_hides_no_other(streamed: RecordReader) -> None:
    secondary: Any = streamed.secondary
    secondary.put(record("dead", at=VirtualClock()() - timedelta(hours=1)), record("alive"))
    known = await streamed.look()

    assert [each.process for each in (*known.alive, *known.stale)] == ["alive"]


async def test_an_expired_record_on_a_stream_that_was_created_again_is_old_too(
    streamed: RecordReader,
) -> None:
    secondary: Any = streamed.secondary
    secondary.put(record("first"), record("first"), record("first"))
    await streamed.look()
    secondary.shown.letters.clear()
    expired = record("dead", at=VirtualClock()() - timedelta(hours=1))
    secondary.shown.put_body(body_of(expired, LABEL, KEYS), "another")
    secondary.put(record("alive"))
    known = await streamed.look()

    assert {each.process for each in (*known.alive, *known.stale)} == {"first", "alive"}


async def test_a_record_that_comes_to_a_stream_later_has_just_come(
    streamed: RecordReader,
) -> None:
    secondary: Any = streamed.secondary
    secondary.put(record())
    await streamed.look()
    await trio.sleep(80.0)
    secondary.put(record(revision=2, at=VirtualClock()() - timedelta(hours=3)))
    await streamed.look()
    await trio.sleep(80.0)

    assert len((await streamed.look()).alive) == 1


@pytest.mark.parametrize(
    ("error", "exists"), [(NotSupported("no stream"), False), (NotAuthorized("no right"), True)]
)
async def test_a_stream_that_cannot_be_read_is_one_of_which_receivers_are_known(
    streamed: RecordReader, error: BrokerError, exists: bool
) -> None:
    secondary: Any = streamed.secondary
    secondary.shown.error, secondary.consumers = error, 1
    known = await streamed.look()

    assert (known.unknown, known.unread, known.consumers) == ("", str(error), 1)
    assert (streamed.may_read, streamed.exists) == (False, exists)


async def test_a_missing_stream_is_expected_once_and_one_that_was_read_isnt(
    streamed: RecordReader,
) -> None:
    secondary: Any = streamed.secondary
    secondary.shown.error = EntityNotFound("none")
    await streamed.look()
    versions = [streamed.changes.version]
    for _ in range(2):
        streamed.expect_stream()
        versions.append(streamed.changes.version)
    secondary.shown.error = None
    await streamed.look()
    streamed.expect_stream()

    assert [each - versions[0] for each in versions] == [0, 1, 1]
    assert streamed.may_read
    assert streamed.changes.version == versions[-1] + 1


async def test_without_keys_no_seal_is_checked() -> None:
    assert list(no_keys()) == []


# The begin, and the limits


async def test_a_reader_that_has_not_looked_knows_nothing(secondary: Shown) -> None:
    looking = RecordReader(
        secondary=secondary,  # type: ignore[arg-type]
        label=LABEL,
        clock=VirtualClock(),
    )
    looking.expect_stream()

    assert (looking.may_read, looking.exists, looking.pages) == (None, True, 0)
    assert (looking.known, looking.others) == (PairRecords(), [])
    assert looking.changes.version == 0


async def test_a_reader_keeps_its_source_of_keys(reader: RecordReader) -> None:
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        reader.keys = no_keys


async def test_a_secondary_that_fails_at_first_has_no_unread_stream(
    secondary: Shown, reader: RecordReader
) -> None:
    secondary.error = Unavailable("503")
    known = await reader.look()

    assert (known.unknown, known.unread) == ("503", "")


async def test_a_status_waits_for_a_second_and_refusals_are_repeated_after_an_hour() -> None:
    assert (LOOK_LIMIT, RECHECK, MISSING, REFUSED) == (1.0, 20.0, 600.0, 3600.0)
    assert MOST_PAGES * PAGE == 5000
