"""Syphons leave heartbeats on the secondary, and every gateway sees which of them are alive."""

import json
import random
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import NotAuthorized, NotSupported
from gateway.domain.events.gateway import HeartbeatsNotLeft
from gateway.domain.health.heartbeats import MOST_SHOWN, Heartbeat, SyphonsSeen
from gateway.domain.health.process_records import CountByName, ProcessRecord, SyphonRecord
from gateway.domain.health.record_coding import heartbeat_value
from gateway.domain.message import Message
from gateway.forwarding_broker import ForwardingBroker
from gateway.pairing.provision import provision
from gateway.pairing.records.reader import RecordReader, no_keys
from gateway.pairing.records.writer import SELDOM, RecordWriter
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import LABEL, Events, virtual_time
from tests.pairing.records.processes import Faulty

pytestmark = virtual_time

QUEUE = backlog.heartbeat_queue(LABEL)
INTERVAL = 30.0


@attrs.frozen
class Looking:
    """Sees the syphons alone."""

    reader: RecordReader

    async def look(self) -> SyphonsSeen:
        return (await self.reader.look()).syphons_seen


def body_of(heartbeat: Heartbeat) -> bytes:
    """The heartbeat as an earlier version leaves it."""
    return json.dumps({"pairgate-syphon": heartbeat_value(heartbeat)}).encode()


@attrs.define
class Place:
    """A secondary, and the syphons and gateways that use it."""

    secondary: MemoryBroker
    nursery: trio.Nursery
    events: Events = attrs.field(factory=Events)
    clock: VirtualClock = attrs.field(factory=VirtualClock)  # of the secondary
    reading: VirtualClock = attrs.field(factory=VirtualClock)  # of the gateways
    moved: int = 0
    paused: bool = False
    _syphons: int = 0

    def reader(self, secondary: Broker | None = None) -> Looking:
        reader = RecordReader(
            secondary=secondary or self.secondary, label=LABEL, clock=self.reading
        )
        return Looking(reader)

    async def start(self, host: str, secondary: Broker | None = None) -> Callable[[], None]:
        """Start a syphon's heartbeats; return the scope that ends them."""
        self._syphons += 1
        number = self._syphons
        process, started = f"p-{number}", VirtualClock()()

        async def describe() -> ProcessRecord:
            await trio.lowlevel.checkpoint()
            return ProcessRecord(
                process=process,
                host=host,
                kind="syphon",
                pid=number,
                version="1",
                started=started,
                at=VirtualClock()(),
                interval=INTERVAL,
                syphon=SyphonRecord(moved=CountByName(total=self.moved), paused=self.paused),
            )

        heartbeats = RecordWriter(
            secondary=secondary or self.secondary,
            label=LABEL,
            keys=no_keys,
            describe=describe,
            interval=INTERVAL,
            rng=random.Random(number),
            new_id=lambda: f"id-{number}-{random.random()}",
            observer=self.events,
        )
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await heartbeats.run()

        self.nursery.start_soon(run)
        await trio.sleep(1)
        return scope.cancel


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with trio.open_nursery() as nursery:
        clock = VirtualClock()
        yield Place(MemoryBroker(clock, random.Random(1)), nursery, clock=clock)
        nursery.cancel_scope.cancel()


async def test_a_syphon_that_runs_is_seen_with_its_host_and_what_it_has_moved(place: Place) -> None:
    await place.start("gw-1")
    place.moved = 12
    await trio.sleep(INTERVAL)

    seen = await place.reader().look()

    [heartbeat] = seen.alive
    assert (heartbeat.host, heartbeat.process, heartbeat.pid) == ("gw-1", "syphon", 1)
    assert (heartbeat.moved, heartbeat.interval, heartbeat.paused) == (12, INTERVAL, False)
    assert VirtualClock()() - heartbeat.at < timedelta(seconds=1.1 * INTERVAL)
    assert (seen.count, seen.moves, seen.unknown) == (1, True, "")


async def test_a_syphon_that_ends_is_alive_no_more_after_three_intervals(place: Place) -> None:
    reader = place.reader()
    faulty = Faulty(place.secondary)
    end = await place.start("gw-1", faulty)
    await reader.look()
    faulty.hangs = True  # no last word
    end()

    await trio.sleep(3 * INTERVAL - 2)
    before = await reader.look()
    await trio.sleep(2)
    after = await reader.look()

    assert before.count == 1
    assert (after.count, after.moves, after.last) == (0, False, before.last)
    assert before.gone is None
    assert after.text(VirtualClock()()) == (
        f"no syphon has been seen since {after.last:%F %T} UTC;"
        " the last was syphon on gw-1 (process 1)"
    )


async def test_a_syphon_that_ends_in_good_order_is_gone_at_once(place: Place) -> None:
    reader = place.reader()
    end = await place.start("gw-1")
    end()
    await trio.sleep(0.1)

    seen = await reader.look()

    assert (seen.count, seen.gone and seen.gone.host) == (0, "gw-1")


YEARS = timedelta(days=3650)


@pytest.mark.parametrize("step", [YEARS, -YEARS], ids=["ahead", "behind"])
async def test_a_gateway_whose_clock_is_wrong_by_years_sees_a_syphon_as_long_as_it_runs(
    place: Place, step: timedelta
) -> None:
    reader = place.reader()
    place.reading.skew = step
    end = await place.start("gw-1")
    await reader.look()
    await trio.sleep(INTERVAL)
    running = await reader.look()
    end()
    await trio.sleep(3 * INTERVAL + 1)

    assert (running.count, (await reader.look()).count) == (1, 0)


async def test_a_clock_of_all_that_is_ahead_for_a_while_keeps_no_dead_syphon_alive(
    place: Place,
) -> None:
    reader = place.reader()
    end = await place.start("gw-1")
    counts = []
    for skew in (timedelta(), YEARS, timedelta()):
        place.clock.skew = place.reading.skew = skew
        await trio.sleep(2 * INTERVAL)
        counts.append((await reader.look()).count)
    end()
    await trio.sleep(3 * INTERVAL + 1)
    seen = await reader.look()

    assert (counts, seen.count) == ([1, 1, 1], 0)
    assert seen.last is not None
    assert seen.last <= VirtualClock()()


async def test_a_syphon_that_lives_for_hours_leaves_a_handful_of_messages(place: Place) -> None:
    reader = place.reader()
    await place.start("gw-1")

    for _ in range(5):
        await trio.sleep(3600)
        assert (await reader.look()).count == 1

    assert len(await place.secondary.peek(QUEUE, limit=100)) <= 4
    assert (await place.secondary.inspect(QUEUE)).dead_lettered == 0


async def test_heartbeats_are_billed_and_leave_the_secondary_idle(place: Place) -> None:
    place.secondary.meter.start()
    await place.start("gw-1")
    await trio.sleep(3 * 3600)

    usage = place.secondary.meter.usage()
    assert usage.sent == 0
    assert usage.per_idle_day == pytest.approx(86_400 / INTERVAL, rel=0.02)


async def test_each_syphon_of_several_is_seen_once(place: Place) -> None:
    for host in ("gw-1", "gw-2"):
        await place.start(host)
    await trio.sleep(2 * INTERVAL)

    seen = await place.reader().look()

    assert {each.host for each in seen.alive} == {"gw-1", "gw-2"}
    assert seen.text(VirtualClock()()).count("has moved 0") == 2


async def test_a_restarted_syphon_is_another_one_until_the_first_is_forgotten(place: Place) -> None:
    reader = place.reader()
    faulty = Faulty(place.secondary)
    end = await place.start("gw-1", faulty)
    faulty.hangs = True  # no last word
    end()
    await place.start("gw-1")
    both = (await reader.look()).count
    await trio.sleep(4 * INTERVAL)

    assert (both, (await reader.look()).count) == (2, 1)


async def test_a_paused_syphon_is_alive_and_moves_nothing(place: Place) -> None:
    place.paused = True
    await place.start("gw-1")

    seen = await place.reader().look()

    assert (seen.count, seen.moves) == (1, False)
    assert "paused" in seen.text(VirtualClock()())


async def test_heartbeats_in_a_queue_that_was_created_again_are_seen(place: Place) -> None:
    reader = place.reader()
    await place.start("gw-1")
    await trio.sleep(3 * INTERVAL)
    await reader.look()
    await place.secondary.delete_queue(QUEUE)

    await trio.sleep(INTERVAL)
    seen = await reader.look()

    assert seen.count == 1
    assert VirtualClock()() - seen.alive[0].at < timedelta(seconds=INTERVAL)


async def test_without_a_queue_nothing_is_known_until_a_syphon_was_seen(place: Place) -> None:
    reader = place.reader()
    before = await reader.look()
    end = await place.start("gw-1")
    await reader.look()
    end()
    await place.secondary.delete_queue(QUEUE)
    await trio.sleep(4 * INTERVAL)

    after = await reader.look()

    assert (before.count, after.count) == (None, 0)
    assert "no syphon has left a heartbeat" in before.text(VirtualClock()())


async def test_messages_of_others_in_the_queue_are_ignored(place: Place) -> None:
    await place.secondary.create_queue(QUEUE, QueueProperties())
    bodies = [b"", b"[]", b"{}", b'{"pairgate-syphon": 1}', b"\xff", b"[" * 5000]
    good = Heartbeat(
        syphon="a",
        host="h" * 3000,
        process="syphon",
        pid=1,
        started=VirtualClock()(),
        at=VirtualClock()(),
        interval=INTERVAL,
        moved=1,
    )
    bodies += [body_of(attrs.evolve(good, interval=value)) for value in (0.0, -1.0, float("nan"))]
    bodies += [body_of(attrs.evolve(good, interval=float("inf"))), body_of(good)]
    for body in bodies:
        await place.secondary.send(QUEUE, [Message(body=body)])

    seen = await place.reader().look()

    assert [each.host for each in seen.alive] == ["h" * 100]


async def test_at_most_twenty_syphons_are_shown(place: Place) -> None:
    for number in range(MOST_SHOWN + 5):
        await place.start(f"gw-{number}")

    assert (await place.reader().look()).count == MOST_SHOWN


async def test_a_secondary_that_refuses_heartbeats_is_reported_once(place: Place) -> None:
    faulty = Faulty(place.secondary, {"send": NotAuthorized("no right")})

    await place.start("gw-1", faulty)
    await trio.sleep(10 * SELDOM)

    [event] = place.events.of(HeartbeatsNotLeft)
    assert event == HeartbeatsNotLeft(queue=QUEUE, reason="no right")


async def test_a_missing_queue_that_cant_be_created_is_reported_once(place: Place) -> None:
    faulty = Faulty(place.secondary, {"create_queue": NotAuthorized("needs Manage")})

    await place.start("gw-1", faulty)
    await trio.sleep(10 * SELDOM)
    seen = await place.reader().look()

    assert len(place.events.of(HeartbeatsNotLeft)) == 1
    assert seen.count is None


async def test_a_provisioned_queue_needs_no_right_to_manage(place: Place) -> None:
    await provision(place.secondary, LABEL, 1)
    faulty = Faulty(place.secondary, {"create_queue": NotAuthorized("needs Manage")})

    await place.start("gw-1", faulty)

    assert (await place.reader().look()).count == 1


async def test_a_secondary_that_hangs_delays_neither_the_reader_nor_the_next_heartbeat(
    place: Place,
) -> None:
    reader = place.reader()
    faulty = Faulty(place.secondary, hangs=True)
    await place.start("gw-1", faulty)
    began = trio.current_time()

    hung = await place.reader(faulty).look()
    waited = trio.current_time() - began
    faulty.hangs = False
    await trio.sleep(2 * INTERVAL)

    assert (hung.count, waited) == (None, pytest.approx(1.0))
    assert (await reader.look()).count == 1
    assert place.events.of(HeartbeatsNotLeft) == []


@attrs.frozen(eq=False)
class Consumed(ForwardingBroker):
    """As RabbitMQ: shows no messages, and counts the consumers of others."""

    _inner: MemoryBroker
    consumers: list[int]

    forwards = frozenset()

    @property
    def inner(self) -> Broker:
        return self._inner

    async def send(self, entity: EntityPath, messages: object) -> None:
        pytest.fail("a heartbeat that nobody can read")

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        info = await self._inner.inspect(entity)
        return attrs.evolve(info, other_consumers=self.consumers[0])


async def test_where_messages_cant_be_shown_the_consumers_of_the_backlog_count(
    place: Place,
) -> None:
    await provision(place.secondary, LABEL, 1)
    consumers = [1]
    secondary = Consumed(place.secondary, consumers)
    reader = place.reader(secondary)
    await place.start("gw-1", secondary)

    one = await reader.look()
    consumers[0] = 0
    none = await reader.look()

    assert (one.count, one.moves, one.alive) == (1, True, ())
    assert (none.count, none.moves, none.last) == (0, False, one.at)


async def test_a_secondary_that_tells_nothing_is_said_to(place: Place) -> None:
    faulty = Faulty(place.secondary, {"peek": NotSupported("no peek")})

    seen = await place.reader(faulty).look()

    assert (seen.count, seen.moves) == (None, False)
    assert seen.text(VirtualClock()()) == "not known: the secondary can't show messages"
