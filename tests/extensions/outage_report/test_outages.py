"""An outage is one event with true totals, and a report, when all is home again."""

from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain.backlog import heartbeat_queue
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import Unreachable
from gateway.domain.health.process_records import CountByName, GatewayRecord, ProcessRecord
from gateway.domain.health.record_coding import body_of
from gateway.domain.message import Message
from gateway.domain.operators.control import Action, Operator, Order
from gateway.extensions.outage_report.book import OutageBook
from gateway.extensions.outage_report.events import OutageOver
from gateway.extensions.outage_report.markdown import report_of
from gateway.extensions.outage_report.watch import OrderNotes, OutageWatch
from gateway.pairing.control import Control
from gateway.pairing.records.reader import RecordReader
from gateway.telemetry.log import LogObserver
from gateway.telemetry.watch import GatewayWatch
from tests.harness.faults import Operation
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    Harness,
    control_of,
    message,
    refuse,
    send,
    virtual_time,
)

pytestmark = virtual_time
ANN = Operator(name="ann", peer="127.0.0.1:5000")
_QUEUE = QueueProperties()
_MANAGES = (Operation.MANAGE,)


@attrs.frozen
class Scene:
    """A pair with its syphon, whose events a book hears."""

    harness: Harness
    pair: object
    book: OutageBook
    lines: list[str]
    control: Control

    def told(self, kind):
        return self.harness.events.of(kind)


async def staged(harness: Harness, *, syphon: bool = True, reader=None, **options) -> Scene:
    """The events go to a log as well, whose lines are kept."""
    lines: list[str] = []
    events = harness.events
    log = LogObserver(lines.append, as_json=True, level="info", clock=harness.clock)
    watch = GatewayWatch(events, harness.clock)
    book = OutageBook(primary="north", clock=harness.clock, moves=syphon)
    watch.followers += [book.record, log.report]
    harness.events = watch
    pair = await harness.pair(failover_interval=0.0, ping_interval=20.0, **options)
    notes = OrderNotes(book=book, pauses=pair.pauses, states=pair.states)
    book.read_from(pair.broker.sends, lambda: pair.depth.history, orders=notes.in_force)
    service = OutageWatch(book=book, depth=pair.depth, report=watch.report, reader=reader)
    await harness.nursery.start(service.run)
    await harness.nursery.start(notes.run)
    moving = harness.make_syphon(states=pair.states, pauses=pair.pauses)
    if syphon:
        await harness.nursery.start(moving.run)
    harness.events = events
    return Scene(harness, pair, book, lines, control_of(harness, pair, moving))


async def test_an_outage_ends_with_one_event_that_has_the_totals(harness):
    scene = await staged(harness)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    for number in range(5):
        for entity in (ORDERS, BILLS):
            await send(scene.pair, message(f"{entity}-{number}"), entity=entity)()
        await trio.sleep(10.0)
    during = scene.told(OutageOver), scene.book.all()[0]
    harness.primary.heal()

    await trio.sleep(60.0)

    assert during[0] == []
    assert (during[1].ended, during[1].diverted, during[1].moved) == (None, 10, 0)
    [over] = scene.told(OutageOver)
    assert "connection refused" in over.cause
    assert (over.entities, over.diverted, over.moved, over.empty) == (2, 10, 10, True)
    assert 50.0 <= over.seconds < 110.0
    [outage] = scene.book.all()
    assert {each.entity: each.diverted for each in outage.entities} == {"orders": 5, "Bills": 5}
    assert all(each.back is not None for each in outage.entities)


async def test_the_report_names_each_order_that_held_messages_back(harness):
    scene = await staged(harness)
    control, began = scene.control, harness.clock()
    control.execute(Order(action=Action.PAUSE, reason="disk is changed"), ANN)
    await trio.sleep(60.0)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    await send(scene.pair, message("m1"))()
    await trio.sleep(20.0)
    control.execute(Order(action=Action.FAILOVER, targets=("bills",)), ANN)
    harness.primary.heal()
    await trio.sleep(100.0)
    early = scene.told(OutageOver)
    control.execute(Order(action=Action.FAILBACK), ANN)
    control.execute(Order(action=Action.RESUME), ANN)
    await trio.sleep(60.0)

    [outage] = scene.book.all()
    told = [(each.action, each.text) for each in outage.orders]
    text = report_of([outage])

    assert early == []
    assert told == [("pause", "* by ann: disk is changed"), ("failover", "bills by ann")]
    assert [each.since - began for each in outage.orders] == [
        timedelta(seconds=0),
        timedelta(seconds=80),
    ]
    assert {each.ended - began for each in outage.orders} == {timedelta(seconds=180)}
    assert "| pause | * by ann: disk is changed | " in text


async def test_an_order_from_before_or_after_an_outage_is_not_of_it(harness):
    scene = await staged(harness)
    control = scene.control
    for action in (Action.PAUSE, Action.RESUME):
        control.execute(Order(action=action), ANN)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    await send(scene.pair, message("m1"))()
    harness.primary.heal()
    await trio.sleep(60.0)
    control.execute(Order(action=Action.PAUSE), ANN)
    await trio.sleep(1.0)

    [outage] = scene.book.all()

    assert outage.ended is not None
    assert outage.orders == ()


async def test_an_outage_lasts_until_another_process_has_emptied_the_backlog(harness):
    scene = await staged(harness, syphon=False)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    await send(scene.pair, message("m1"))()
    harness.primary.heal()
    await trio.sleep(120.0)
    early = scene.told(OutageOver)

    await harness.syphon()
    await trio.sleep(30.0)

    assert early == []
    [over] = scene.told(OutageOver)
    assert (over.diverted, over.moved, over.empty) == (1, None, True)


async def others_record(harness: Harness, revision: int, *, diverted: int, troubled: int | None):
    """Another gateway leaves that record."""
    now = harness.clock()
    record = ProcessRecord(
        process="other",
        host="gw-2",
        kind="serve",
        pid=7,
        version="1",
        started=now,
        at=now,
        interval=600.0,
        revision=revision,
        gateway=GatewayRecord(diverted=CountByName(total=diverted), troubled=troubled),
    )
    body = body_of(record, LABEL, ())
    await harness.secondary.store.send(heartbeat_queue(LABEL), [Message(body=body)])


@pytest.mark.parametrize(("troubled", "seconds"), [(0, 20.0), (None, 140.0)])
async def test_the_event_comes_when_the_other_gateways_have_told_that_their_entities_are_back(
    harness, troubled, seconds
):
    """An earlier version tells nothing of its entities, and of its messages late."""
    await harness.secondary.store.create_queue(heartbeat_queue(LABEL), _QUEUE)
    reader = RecordReader(secondary=harness.secondary.store, label=LABEL, clock=harness.clock)
    scene = await staged(harness, reader=reader)
    scene.book.read_from(
        scene.pair.broker.sends, lambda: scene.pair.depth.history, lambda: reader.known
    )
    await others_record(harness, 1, diverted=0, troubled=troubled)
    await reader.look()
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    await send(scene.pair, message("m1"))()
    await others_record(harness, 2, diverted=4, troubled=None if troubled is None else 1)
    harness.primary.heal()
    await trio.sleep(60.0)
    early = scene.told(OutageOver)
    await others_record(harness, 3, diverted=6, troubled=troubled)

    await trio.sleep(seconds)

    [over] = scene.told(OutageOver)
    assert (over.diverted, over.processes) == (7, 2)
    assert early == []


async def test_an_outage_with_a_depth_that_nobody_tells_ends_unknown(harness):
    scene = await staged(harness, syphon=False)
    harness.secondary.fail(refuse(Unreachable, "no answer"), *_MANAGES)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    await send(scene.pair, message("m1"))()
    harness.primary.heal()

    await trio.sleep(300.0)

    [over] = scene.told(OutageOver)
    assert over.empty is None


async def test_an_outage_of_300_queues_is_tens_of_lines(harness):
    scene = await staged(harness)
    entities = [EntityPath(f"queue-{number}") for number in range(300)]
    for entity in entities:
        await harness.primary.store.create_queue(entity, _QUEUE)
    harness.primary.fail(refuse(Unreachable, "connection refused"))
    for entity in entities:
        await send(scene.pair, message(entity.name), entity=entity)()
    await trio.sleep(75.0)
    harness.primary.heal()

    await trio.sleep(120.0)

    [over] = scene.told(OutageOver)
    assert (over.entities, over.diverted, over.moved) == (300, 300, 300)
    assert len(scene.lines) < 60
