"""Records in a stream, as on RabbitMQ: it keeps what has expired, and each refusal is logged."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from random import Random

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, EntityExists, EntityNotFound, NotAuthorized
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import GatewayRecord, ProcessRecord, SyphonRecord
from gateway.domain.health.record_coding import body_of, record_in
from gateway.domain.message import Delivery, Message
from gateway.pairing.provision import provision
from gateway.pairing.records.following import PATIENCE
from gateway.pairing.records.reader import LOOK_LIMIT, MISSING, PAGE, REFUSED, RecordReader
from gateway.pairing.records.writer import FIGURES, USUAL, RecordWriter
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import LABEL, Events, virtual_time
from tests.pairing.records.processes import KEYS
from tests.pairing.records.samples import order_of, record_of

pytestmark = virtual_time

MINUTE = 60
LOST = Problem(kind="namespace-reach", entity="east", text="namespace east hasn't been reached")


@attrs.define(eq=False)
class Streaming:
    """A namespace with one stream, which drops nothing."""

    error: BrokerError | None = None
    consumers: int = 0
    delay: float = 0.0  # seconds of a read
    reads: int = 0
    messages: list[Message] = attrs.field(factory=list)
    made: list[EntityPath] = attrs.field(factory=list)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await trio.lowlevel.checkpoint()
        self.messages += messages

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        await trio.lowlevel.checkpoint()
        return EntityInfo(
            path=entity, properties=QueueProperties(), active=0, other_consumers=self.consumers
        )

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> None:
        await trio.lowlevel.checkpoint()

    async def create_stream(self, stream: EntityPath, *, keeps: timedelta, most: int) -> None:
        await trio.lowlevel.checkpoint()
        if stream in self.made:
            raise EntityExists("there")
        self.made.append(stream)

    async def read_stream(
        self, stream: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        self.reads += 1
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        first = max(0, from_sequence - 1)
        found = self.messages[first : first + limit]
        return [
            Delivery(message=each, sequence_number=first + 1 + index)
            for index, each in enumerate(found)
        ]

    async def leave(self, record: ProcessRecord) -> None:
        await self.send(
            EntityPath("records"), [Message(message_id="m", body=body_of(record, LABEL, KEYS))]
        )


@pytest.fixture
def secondary() -> Streaming:
    return Streaming()


def reader(secondary: Streaming) -> RecordReader:
    return RecordReader(
        secondary=secondary,  # type: ignore[arg-type]
        label=LABEL,
        clock=VirtualClock(),
        keys=lambda: KEYS,
    )


def writer(secondary: Streaming, told: ProcessRecord) -> RecordWriter:
    async def describe() -> ProcessRecord:
        await trio.lowlevel.checkpoint()
        return told

    ids = count()
    return RecordWriter(
        secondary=secondary,  # type: ignore[arg-type]
        label=LABEL,
        keys=lambda: KEYS,
        describe=describe,
        interval=30.0,
        rng=Random(1),
        new_id=lambda: f"m{next(ids)}",
        observer=Events(),
    )


def writer_beside(secondary: Streaming, looking: RecordReader) -> RecordWriter:
    return attrs.evolve(writer(secondary, syphon(1)), on_left=looking.expect_stream)


def syphon(revision: int, **fields: object) -> ProcessRecord:
    return record(revision, syphon=SyphonRecord(), kind="syphon", interval=30.0, **fields)


def record(revision: int, **fields: object) -> ProcessRecord:
    return record_of(revision=revision, **fields)


async def test_records_that_have_expired_tell_nothing_although_the_stream_has_them(
    secondary: Streaming,
) -> None:
    await secondary.leave(syphon(1, process="dead"))
    await secondary.leave(record(1, orders=(order_of(),)))
    await trio.sleep(20)
    await secondary.leave(syphon(2, process="dead"))
    await trio.sleep(31 * MINUTE)
    await secondary.leave(record(1, process="new", gateway=GatewayRecord()))

    known = await reader(secondary).look()

    assert [each.process for each in known.alive] == ["new"]
    assert (known.stale, known.orders, known.unknown) == ((), (), "")


async def test_a_record_that_comes_later_counts_whatever_its_date_says(
    secondary: Streaming,
) -> None:
    looking = reader(secondary)
    await secondary.leave(syphon(1))
    await looking.look()
    await secondary.leave(syphon(2, at=VirtualClock()() - timedelta(hours=3)))

    assert len((await looking.look()).alive) == 1


async def test_the_problems_of_a_process_that_is_gone_end_before_its_orders(
    secondary: Streaming,
) -> None:
    looking = reader(secondary)
    await secondary.leave(record(1, orders=(order_of(),), problems=(LOST,), renews=120.0))
    told = [(await looking.look()).alive[0].problems]
    for minutes in (5.5, 1):
        await trio.sleep(minutes * MINUTE)
        known = await looking.look()
        told.append(known.alive[0].problems)

    assert told == [(LOST,), (LOST,), ()]
    assert len(known.orders) == 1


async def test_problems_of_an_earlier_version_hold_as_long_as_its_process_is_alive(
    secondary: Streaming,
) -> None:
    looking = reader(secondary)
    await secondary.leave(record(1, problems=(LOST,)))
    await trio.sleep(29 * MINUTE)

    assert (await looking.look()).alive[0].problems == (LOST,)


@pytest.mark.parametrize(("problems", "least", "most"), [((), 1, 3), ((LOST,), 9, 13)])
async def test_a_process_with_problems_tells_them_again_every_two_minutes(
    secondary: Streaming,
    nursery: trio.Nursery,
    problems: tuple[Problem, ...],
    least: int,
    most: int,
) -> None:
    told = record(1, problems=problems)
    await nursery.start(attrs.evolve(writer(secondary, told), interval=USUAL).run)
    await trio.sleep(20 * MINUTE)
    left = [record_in(each.body, LABEL, KEYS) for each in secondary.messages]

    assert least <= len(left) <= most
    assert {each.renews for each in left if each is not None} == {FIGURES}


async def test_a_long_stream_is_read_to_its_end(secondary: Streaming) -> None:
    for number in range(3 * PAGE):
        await secondary.leave(record(1, process=f"p{number}", gateway=GatewayRecord()))
    looking = reader(secondary)

    assert len((await looking.look()).alive) == 3 * PAGE
    await secondary.leave(syphon(1, process="syphon"))
    assert len((await looking.look()).alive) == 3 * PAGE + 1
    assert looking.pages == 2


@pytest.mark.parametrize(
    ("error", "pause"), [(NotAuthorized("read"), REFUSED), (EntityNotFound("none"), MISSING)]
)
async def test_a_refused_read_is_repeated_seldom_and_consumers_are_told_meanwhile(
    secondary: Streaming, error: BrokerError, pause: float
) -> None:
    looking = reader(secondary)
    secondary.error, secondary.consumers = error, 1
    for _ in range(10):
        known = await looking.look()
    before = secondary.reads
    secondary.error = None
    await secondary.leave(syphon(1))
    await trio.sleep(pause - 1)
    still = await looking.look()
    await trio.sleep(1)
    await secondary.leave(syphon(2))
    after = await looking.look()

    assert before == 1
    assert (known.consumers, still.alive, looking.may_read) == (1, (), True)
    assert (len(after.alive), after.consumers) == (1, 0)


async def test_orders_reach_nobody_that_is_known_while_the_stream_cannot_be_read(
    secondary: Streaming,
) -> None:
    looking = reader(secondary)
    secondary.error = NotAuthorized("read access to queue refused")
    refused = (await looking.look()).reach_unknown
    secondary.error = None
    await trio.sleep(REFUSED)

    assert refused == "read access to queue refused"
    assert (await looking.look()).reach_unknown == ""


async def test_a_missing_stream_is_read_as_soon_as_a_record_was_left_on_it(
    secondary: Streaming, nursery: trio.Nursery
) -> None:
    looking = reader(secondary)
    secondary.error = EntityNotFound("none")
    await looking.look()
    missing = (looking.may_read, looking.exists)
    secondary.error = None
    await nursery.start(writer_beside(secondary, looking).run)
    await trio.testing.wait_all_tasks_blocked()

    assert missing == (False, False)
    assert (looking.may_read, looking.exists) == (None, True)
    assert [each.process for each in (await looking.look()).alive] == ["p"]
    assert looking.may_read


async def test_a_refused_stream_is_not_read_again_for_each_record_of_its_own(
    secondary: Streaming, nursery: trio.Nursery
) -> None:
    looking = reader(secondary)
    secondary.error = NotAuthorized("read access to queue refused")
    await looking.look()
    await nursery.start(writer_beside(secondary, looking).run)
    await trio.sleep(10 * MINUTE)
    await looking.look()

    assert len(secondary.messages) > 10
    assert secondary.reads == 1


async def test_a_reading_with_patience_is_shared_with_a_status_that_waits_less(
    secondary: Streaming, nursery: trio.Nursery
) -> None:
    looking = reader(secondary)
    await secondary.leave(syphon(1))
    await looking.look()
    secondary.delay = 2.0  # of each of two pages
    await secondary.leave(syphon(2, process="second"))
    nursery.start_soon(looking.look, PATIENCE)
    await trio.sleep(1)
    began = trio.current_time()
    meanwhile = await looking.look()
    waited = trio.current_time() - began
    await trio.sleep(3)

    assert (len(meanwhile.alive), meanwhile.unknown, waited) == (1, "", LOOK_LIMIT)
    assert {each.process for each in looking.known.alive} == {"p", "second"}


async def test_syphons_of_earlier_versions_are_known_by_their_consumers(
    secondary: Streaming,
) -> None:
    secondary.consumers = 2
    await secondary.leave(record(1, gateway=GatewayRecord()))
    known = await reader(secondary).look()

    assert (known.consumers, known.syphons_seen.consumers, len(known.alive)) == (2, 2, 1)


async def test_provisioning_makes_the_stream_once(secondary: Streaming) -> None:
    made = [await provision(secondary, LABEL, 1) for _ in range(2)]  # type: ignore[arg-type]

    assert secondary.made == [each for each in made[0] if "syphons" in each.name]
    assert secondary.made[0] not in made[1]
