"""The gauge of the local spool: depth, age, rates and room."""

import random
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.app.assembly.opening import spool_namespace
from gateway.app.assembly.records import OwnFigures, gateway_record
from gateway.app.failure import Failure
from gateway.app.runtime import Runtime
from gateway.app.spooling import MIB, SpoolGauge, SyphonOfSpool, enter_spool
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Diverted, Syphoned
from gateway.domain.message import AcceptedBy, Message
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Hang, Operation
from tests.pairing.harness import Events

ORDERS, QUEUE = EntityPath("orders"), backlog.queue_name("east", 0)


@attrs.frozen
class Stand:
    store: MemoryBroker
    faulty: FaultyBroker
    gauge: SpoolGauge
    events: Events


@pytest.fixture
async def stand(nursery: trio.Nursery, tmp_path: Path) -> Stand:
    clock, events = VirtualClock(), Events()
    store = MemoryBroker(clock, random.Random(0))
    small = attrs.evolve(backlog.QUEUE_PROPERTIES, max_size_in_megabytes=1)
    await store.create_queue(QUEUE, small)
    faulty = FaultyBroker(inner=store)
    await nursery.start(faulty.run)
    gauge = SpoolGauge(spool=store, queue=QUEUE, folder=tmp_path, clock=clock, observer=events)
    return Stand(store, faulty, gauge, events)


# A thread reads the free space of the disk, so that time is real.


async def test_depth_age_and_room_are_those_of_its_queue(stand: Stand) -> None:
    empty = await stand.gauge.read(60.0)
    await stand.store.send(QUEUE, [Message(body=bytes(1000)), Message(body=bytes(1000))])
    began = trio.current_time()
    full = await stand.gauge.read(60.0)
    told = await gateway_record(Runtime(), OwnFigures(spool=stand.gauge))

    assert told.spool == 2
    assert (empty.pending, empty.oldest_age, empty.free_bytes) == (0, None, MIB)
    assert full.pending == 2
    assert full.oldest_age is not None
    assert 0.0 <= full.oldest_age <= trio.current_time() - began + 1.0
    assert full.free_bytes is not None
    assert MIB - 3000 < full.free_bytes <= MIB - 2000


async def test_the_free_disk_bounds_the_room(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.app import spooling

    monkeypatch.setattr(spooling, "free_bytes", lambda _: spooling.LOW_WATER + 100)
    tight = (await stand.gauge.read(60.0)).free_bytes
    monkeypatch.setattr(spooling, "free_bytes", lambda _: 0)

    assert tight == 100
    assert (await stand.gauge.read(60.0)).free_bytes == 0


async def test_a_spool_that_is_not_open_has_the_room_of_its_disk(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.app import spooling

    monkeypatch.setattr(spooling, "free_bytes", lambda _: 0)
    closed = EmbeddedBroker(tmp_path / "no folder yet" / "a.db", VirtualClock(), random.Random(0))
    gauge = attrs.evolve(stand.gauge, spool=closed, folder=tmp_path / "no folder yet")

    told = await gauge.read(60.0)

    assert (told.pending, told.free_bytes) == (None, 0)


async def test_rates_are_of_the_spool_alone_and_of_the_last_ten_seconds(
    stand: Stand, autojump_clock: MockClock
) -> None:
    events = [
        Diverted(entity=ORDERS, accepted_by=AcceptedBy.SPOOL, queue=QUEUE, messages=50),
        Diverted(entity=ORDERS, accepted_by=AcceptedBy.BACKLOG, queue=QUEUE, messages=999),
        Syphoned(entity=ORDERS, queue=QUEUE, messages=999),  # of the secondary's
    ]
    for event in events:
        stand.gauge.report(event)
    out = Syphoned(entity=ORDERS, queue=QUEUE, messages=20)
    SyphonOfSpool(stand.gauge).report(out)
    now = await stand.gauge.read(3.0)
    await trio.sleep(11.0)
    later = await stand.gauge.read(3.0)

    assert (now.rate_in, now.rate_out) == (5.0, 2.0)
    assert (later.rate_in, later.rate_out) == (0.0, 0.0)
    assert stand.events.all == [*events, out]


async def test_a_figure_that_the_spool_does_not_tell_in_time_is_unknown(
    stand: Stand, autojump_clock: MockClock
) -> None:
    stand.faulty.fault = lambda asked, _: Hang() if asked is Operation.MANAGE else None
    gauge = attrs.evolve(stand.gauge, spool=stand.faulty)
    began = trio.current_time()

    told = await gauge.read(3.0)

    assert (told.pending, told.oldest_age, told.free_bytes) == (None, None, None)
    assert timedelta(seconds=trio.current_time() - began) == timedelta(seconds=3)


async def test_a_place_that_no_file_can_have_is_a_failure_of_the_spool(tmp_path: Path) -> None:
    spool = spool_namespace(tmp_path / ("x" * 300))

    async with AsyncExitStack() as stack:
        with pytest.raises(Failure, match=r"namespace \(spool\): .* File name too long"):
            await enter_spool(stack, spool, QUEUE, Runtime(), [])
