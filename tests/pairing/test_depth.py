"""The depth of the backlog is known, and asking for it stays cheap."""

import random
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, ClassVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain import backlog
from gateway.domain.billing import Operation
from gateway.domain.dead_letters import EXPIRED
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.envelope_fields import PATH
from gateway.domain.errors import BrokerError, NotAuthorized, NotSupported
from gateway.domain.health.backlog_model import NEWS, NO_ANSWER
from gateway.domain.health.depth_history import QueueDepth
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.health.process_records import CountByName, GatewayRecord, ProcessRecord
from gateway.domain.message import DeadLetter, Message, ReceiveMode
from gateway.extensions.order.queues import ordered_queues
from gateway.forwarding_broker import ForwardingBroker
from gateway.pairing.backlog import Rotation
from gateway.pairing.depth import (
    EVERY,
    JITTER,
    NOT_TOLD,
    OFTEN,
    OTHERS_RECEIVE,
    BacklogDepth,
    DepthSampler,
    Reading,
)
from gateway.pairing.options import PairOptions
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.dead_letters import MOST_SHOWN, SHOWN, ExpiryRules
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.harness.faults import NAMESPACE, Fault, FaultyBroker, Hang, Refuse
from tests.pairing.harness import Events

LABEL = "east"
QUEUES = [backlog.queue_name(LABEL, index) for index in range(3)]


@pytest.fixture
async def secondary() -> MemoryBroker:
    broker = MemoryBroker(VirtualClock(), random.Random(1))
    for queue in [*QUEUES, EntityPath("orders")]:
        await broker.create_queue(queue, QueueProperties())
    return broker


def depth_of(secondary: Broker, **options: Any) -> BacklogDepth:
    rotation = Rotation(queues=QUEUES, cooldown=30, rng=random.Random(1), observer=Events())
    return BacklogDepth(
        secondary=secondary, rotation=rotation, label=LABEL, clock=VirtualClock(), **options
    )


def states_at_once() -> EntityStates:
    """States whose failover interval is 0."""
    return EntityStates(
        options=PairOptions(label=LABEL, failover_interval=0.0),
        clock=VirtualClock(),
        observer=Events(),
        rng=random.Random(1),
    )


async def test_all_backlog_queues_count_and_the_oldest_message_tells_the_age(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    await secondary.send(QUEUES[2], [Message()])
    await trio.sleep(90)
    await secondary.send(QUEUES[0], [Message()] * 2)
    await secondary.send(EntityPath("orders"), [Message()])

    reading = await depth_of(secondary).read(3, troubled=False)

    assert (reading.pending, reading.oldest_age) == (3, 90.0)


async def test_without_a_backlog_a_day_of_scrapes_asks_once_a_minute(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    before = secondary.meter.usage().total
    for _ in range(24 * 60 * 4):  # each fifteen seconds
        await depth.read(3, troubled=False)
        await trio.sleep(15)

    assert secondary.meter.usage().total - before == 24 * 60


async def test_without_a_backlog_a_reading_is_a_minute_old_at_most(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    await depth.read(3, troubled=False)
    await secondary.send(QUEUES[0], [Message()])

    await trio.sleep(59.9)
    before = (await depth.read(3, troubled=False)).pending
    await trio.sleep(0.1)

    assert (before, (await depth.read(3, troubled=False)).pending) == (0, 1)


async def test_in_trouble_it_is_asked_more_often(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    await depth.read(3, troubled=False)
    await secondary.send(QUEUES[0], [Message()])
    await trio.sleep(10)

    calm = (await depth.read(3, troubled=False)).pending
    troubled = (await depth.read(3, troubled=True)).pending

    assert (calm, troubled) == (0, 1)


async def test_a_message_that_this_process_dead_letters_is_time_for_a_new_reading(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    await depth.read(3, troubled=False)
    await secondary.send(QUEUES[0], [Message()])
    async with secondary.open_receiver(QUEUES[0]) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="EnvelopeMalformed"))

    before = await depth.read(3, troubled=False)
    after = await depth.read(3, troubled=False, dead_lettered=1)
    asked = secondary.meter.usage().total
    await depth.read(3, troubled=False, dead_lettered=1)

    assert secondary.meter.usage().total == asked
    assert (before.dead_letters.messages, after.dead_letters.messages) == (0, 1)


async def test_a_reading_without_messages_is_soon_repeated_if_some_were_diverted_since(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    await depth.read(3, troubled=False)
    await secondary.send(QUEUES[0], [Message()])
    depth.model.diverted(EntityPath("orders"), 1, depth.clock())
    await trio.sleep(10)

    reading = await depth.read(3, troubled=False)

    assert reading.pending == 1


async def test_while_there_is_a_backlog_it_is_asked_each_ten_seconds(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    await secondary.send(QUEUES[0], [Message()])
    depth = depth_of(secondary)
    await depth.read(3, troubled=False)
    await secondary.send(QUEUES[0], [Message()])

    await trio.sleep(9)
    before = (await depth.read(3, troubled=False)).pending
    await trio.sleep(1)

    assert (before, (await depth.read(3, troubled=False)).pending) == (1, 2)


async def test_several_who_ask_at_once_cost_one_question(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    before = secondary.meter.usage().operations[Operation.INSPECT]
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(lambda: depth.read(3, troubled=True))

    assert secondary.meter.usage().operations[Operation.INSPECT] - before == 1


@pytest.mark.parametrize("fault", [Hang(), Refuse()])
async def test_a_dead_secondary_holds_nobody_up_and_the_last_reading_stays(
    fault: Fault, secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    depth = depth_of(faulty)
    await secondary.send(QUEUES[0], [Message()])
    first = await depth.read(3, troubled=False)
    faulty.fault = lambda _operation, _entity: fault
    await trio.sleep(60)
    began = trio.current_time()
    second = await depth.read(3, troubled=False)

    assert trio.current_time() - began <= 3
    assert first.pending == 1
    assert second == first


@pytest.mark.parametrize("fault", [Hang(), Refuse()])
async def test_a_question_gets_a_new_reading_and_none_from_a_dead_secondary(
    fault: Fault, secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    depth = depth_of(faulty)
    await depth.ask(3)
    await secondary.send(QUEUES[0], [Message()])
    reading = await depth.ask(3)
    faulty.fault = lambda _operation, _entity: fault
    none = await depth.ask(3)

    assert reading is not None
    assert (reading.pending, reading.syphons.unknown) == (1, "")
    assert none is None


@pytest.mark.parametrize("fault", [Hang(), Refuse()])
async def test_an_empty_backlog_isnt_known_once_the_secondary_doesnt_answer(
    fault: Fault, secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    depth = depth_of(faulty)
    await depth.read(3, troubled=False)
    before = depth.model.depth(VirtualClock()()).pending
    faulty.fault = lambda _operation, _entity: fault
    await trio.sleep(60)
    await depth.read(3, troubled=False)

    found = depth.model.depth(VirtualClock()())
    assert (before, found.pending, found.unknown) == (0, None, NO_ANSWER)


@pytest.mark.parametrize(("fault", "seconds"), [(Hang(), 5.0), (Refuse(), 0.0)])
async def test_the_rest_is_counted_and_unknown_if_the_secondary_doesnt_answer(
    fault: Fault,
    seconds: float,
    secondary: MemoryBroker,
    autojump_clock: MockClock,
    nursery: trio.Nursery,
) -> None:
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    depth = depth_of(faulty)
    await secondary.send(QUEUES[0], [Message()])
    one, held = await depth.left(), await depth.left(held=5)
    async with secondary.open_receiver(QUEUES[0], ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        await receiver.receive(1)
    empty = await depth.left()
    faulty.fault = lambda _operation, _entity: fault
    began = trio.current_time()
    unknown = await depth.left()

    assert (one, held, empty, unknown) == (1, 5, 0, None)
    assert trio.current_time() - began == seconds


async def test_more_queues_than_fit_on_a_page_count(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    for index in range(3, 250):
        await secondary.create_queue(backlog.queue_name(LABEL, index), QueueProperties())
    for index in range(250):
        await secondary.send(backlog.queue_name(LABEL, index), [Message()])

    reading = await depth_of(secondary).read(3, troubled=False)

    assert reading.pending == 250


async def test_no_more_than_so_many_queues_are_asked_about(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    for queue in QUEUES:
        await secondary.send(queue, [Message()])

    reading = await depth_of(secondary, page=1, most_queues=2).read(3, troubled=False)

    assert reading.pending == 2


@pytest.mark.parametrize("error", [NotAuthorized, NotSupported])
async def test_without_the_right_to_list_the_queues_in_use_count(
    error: type[BrokerError],
    secondary: MemoryBroker,
    autojump_clock: MockClock,
    nursery: trio.Nursery,
) -> None:
    elsewhere = backlog.queue_name(LABEL, 9)
    await secondary.create_queue(elsewhere, QueueProperties())
    for queue in [elsewhere, *QUEUES[1:]]:
        await secondary.send(queue, [Message()])
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    no = Refuse(lambda: error("no"))
    faulty.fault = lambda _operation, entity: no if entity == NAMESPACE else None

    reading = await depth_of(faulty).read(3, troubled=False)

    assert reading.pending == 2


@pytest.mark.parametrize("there", [3, 4], ids=["one is missing", "all"])
async def test_without_the_right_to_list_ordered_queues_count_as_well(
    secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery, there: int
) -> None:
    ordered = ordered_queues(LABEL)
    for queue in ordered[-there:]:
        await secondary.create_queue(queue, QueueProperties())
        await secondary.send(queue, [Message()])
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    no = Refuse(lambda: NotAuthorized("no"))
    faulty.fault = lambda _operation, entity: no if entity == NAMESPACE else None
    depth = depth_of(faulty, ordered=ordered)

    assert (await depth.read(3, troubled=False)).pending == there

    await trio.sleep(60.0)
    faulty.fault = lambda _operation, entity: no if entity in {NAMESPACE, ordered[3]} else None

    assert await depth.left() is None


async def test_without_any_right_to_ask_the_depth_isnt_known(
    secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    faulty.fault = lambda _operation, _entity: Refuse(lambda: NotAuthorized("no"))

    reading = await depth_of(faulty).read(3, troubled=False)

    assert attrs.evolve(reading, syphons=SyphonsSeen()) == Reading(at=VirtualClock()())


async def test_if_one_queue_doesnt_tell_its_depth_the_sum_isnt_known_and_its_messages_have_an_age(
    secondary: MemoryBroker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = secondary.list_queues

    async def list_queues(prefix: str, *, skip: int, top: int) -> Sequence[EntityInfo]:
        first, *others = await listed(prefix, skip=skip, top=top)
        return [attrs.evolve(first, active=None), *others]

    monkeypatch.setattr(secondary, "list_queues", list_queues)
    await secondary.send(QUEUES[0], [Message()])
    await trio.sleep(50)
    await secondary.send(QUEUES[2], [Message()])

    reading = await depth_of(secondary).read(3, troubled=False)

    assert (reading.pending, reading.oldest_age) == (None, 50.0)


async def test_a_message_is_never_younger_than_nothing(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    await secondary.send(QUEUES[0], [Message()])
    depth = depth_of(secondary)
    depth.clock = VirtualClock(skew=timedelta(seconds=-5))  # the secondary's is ahead

    reading = await depth.read(3, troubled=False)

    assert reading.oldest_age == 0.0


@attrs.define(eq=False)
class Unseen(ForwardingBroker):
    """A namespace that offers no capability, so that it shows no message."""

    forwards: ClassVar[frozenset[type]] = frozenset()
    _inner: Broker

    @property
    def inner(self) -> Broker:
        return self._inner


class Refused(Unseen):
    """A namespace whose messages may not be seen."""

    async def peek(self, *_: object, **__: object) -> Sequence[Message]:
        raise NotAuthorized("no")


@pytest.mark.parametrize("kind", [Unseen, Refused])
async def test_messages_that_the_secondary_doesnt_show_have_an_unknown_age(
    secondary: MemoryBroker, autojump_clock: MockClock, kind: type[Unseen]
) -> None:
    await secondary.send(QUEUES[0], [Message()])

    reading = await depth_of(kind(secondary)).read(3, troubled=False)

    assert (reading.pending, reading.oldest_age) == (1, None)
    assert reading.queues[QUEUES[0].name] == QueueDepth(pending=1, oldest_age=None)


async def bury(secondary: Broker, queue: EntityPath, *reasons: str, **properties: str) -> None:
    messages = [Message(message_id=reason, properties=properties) for reason in reasons]
    await secondary.send(queue, messages)
    async with secondary.open_receiver(queue) as receiver:
        for delivery in await receiver.receive(len(reasons)):
            reason = str(delivery.message.message_id)
            await receiver.settle(delivery, DeadLetter(reason=reason))


async def test_dead_letters_of_all_backlog_queues_are_counted_by_reason_whoever_put_them_there(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    await bury(secondary, QUEUES[0], "EnvelopeMalformed", "EnvelopeMalformed")
    await trio.sleep(90)
    await bury(secondary, QUEUES[2], "EntityNotFound", "somebody's own")
    await bury(secondary, EntityPath("orders"), "EnvelopeMalformed")

    dead = (await depth_of(secondary).read(3, troubled=False)).dead_letters

    assert dead.messages == 4
    assert dead.oldest_age == 90.0
    assert dead.reasons == {"EnvelopeMalformed": 2, "EntityNotFound": 1, "other": 1}


async def test_messages_that_expired_as_they_would_on_their_own_queue_need_nobody(
    secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    primary = MemoryBroker(VirtualClock(), random.Random(1))
    await primary.create_queue(EntityPath("telemetry"), QueueProperties())
    keeps = QueueProperties(dead_lettering_on_expiration=True)
    await primary.create_queue(EntityPath("orders"), keeps)
    faulty = FaultyBroker(inner=primary)
    await nursery.start(faulty.run)
    for entity in ("telemetry", "telemetry", "orders", "missing"):
        await bury(secondary, QUEUES[0], EXPIRED, **{PATH: entity})
    await bury(secondary, QUEUES[1], "EnvelopeMalformed", **{PATH: "telemetry"})
    depth = depth_of(secondary, expiry_rules=ExpiryRules(faulty))
    faulty.fault = lambda *_: Refuse()
    in_outage = (await depth.read(3, troubled=True)).dead_letters
    faulty.fault = lambda *_: None
    await trio.sleep(10)

    after = (await depth.read(3, troubled=True)).dead_letters

    assert (in_outage.messages, in_outage.expired) == (5, 0)  # the primary can't be asked
    assert (after.messages, after.expired, after.to_look_at) == (5, 2, 3)


@pytest.mark.parametrize(
    ("merely_expired", "others", "to_look_at"),
    [(SHOWN + 50, 0, 0), (SHOWN, 1, 1), (MOST_SHOWN + 50, 0, 50)],
)
async def test_all_dead_letters_are_looked_at_up_to_a_limit_while_they_merely_expired(
    secondary: MemoryBroker,
    autojump_clock: MockClock,
    merely_expired: int,
    others: int,
    to_look_at: int,
) -> None:
    primary = MemoryBroker(VirtualClock(), random.Random(1))
    await primary.create_queue(EntityPath("telemetry"), QueueProperties())
    await bury(secondary, QUEUES[0], *[EXPIRED] * merely_expired, **{PATH: "telemetry"})
    if others:
        await bury(secondary, QUEUES[0], "EnvelopeMalformed", **{PATH: "telemetry"})
    depth = depth_of(secondary, expiry_rules=ExpiryRules(primary))

    dead = (await depth.read(3, troubled=False)).dead_letters

    assert (dead.messages, dead.to_look_at) == (merely_expired + others, to_look_at)


async def test_a_message_that_the_secondary_counts_and_doesnt_show_has_an_unknown_reason(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    await bury(secondary, QUEUES[0], *["EnvelopeMalformed"] * (SHOWN + 2))

    dead = (await depth_of(secondary).read(3, troubled=False)).dead_letters

    assert (dead.messages, dead.reasons) == (
        SHOWN + 2,
        {"EnvelopeMalformed": SHOWN, "unknown": 2},
    )


def told_so(
    secondary: MemoryBroker, monkeypatch: pytest.MonkeyPatch, **counts: float
) -> dict[str, float]:
    """
    Let the secondary report these counts of its first backlog queue; the returned dict may change.
    """
    listed = secondary.list_queues

    async def list_queues(prefix: str, *, skip: int, top: int) -> Sequence[EntityInfo]:
        first, *others = await listed(prefix, skip=skip, top=top)
        return [attrs.evolve(first, **counts), *others]

    monkeypatch.setattr(secondary, "list_queues", list_queues)
    return counts


async def test_a_message_that_this_process_has_locked_is_added_where_the_secondary_doesnt_count_it(
    secondary: MemoryBroker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_so(secondary, monkeypatch, active=2, locked_here=681)

    reading = await depth_of(secondary).read(3, troubled=True)

    assert (reading.pending, reading.locked_here) == (683, 681)
    assert reading.queues[QUEUES[0].name].pending == 683


async def test_while_others_may_have_locked_messages_the_depth_isnt_known(
    secondary: MemoryBroker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = told_so(secondary, monkeypatch, active=0, other_consumers=1)
    depth = depth_of(secondary)
    found = [await depth.read(3, troubled=True)]
    counts["other_consumers"] = 0  # between two receives
    for seconds in (50, 10):
        await trio.sleep(seconds)
        found.append(await depth.read(3, troubled=True))

    assert [(each.pending, each.consumers) for each in found] == [
        (None, True),
        (None, True),
        (0, False),
    ]


@pytest.mark.parametrize(
    ("counts", "why"),
    [({"active": 0, "other_consumers": 1}, OTHERS_RECEIVE), ({"active": None}, NOT_TOLD)],
)
async def test_a_depth_that_isnt_told_is_unknown_for_a_reason(
    counts: dict[str, Any],
    why: str,
    secondary: MemoryBroker,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told_so(secondary, monkeypatch, **counts)
    depth = depth_of(secondary)
    await depth.read(3, troubled=True)

    found = depth.model.depth(VirtualClock()())

    assert (found.pending, found.unknown) == (None, why)


async def test_the_date_of_a_reading_is_that_of_the_counts(
    secondary: MemoryBroker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_so(secondary, monkeypatch, lag=10.0)

    depth = depth_of(secondary)
    reading = await depth.read(3, troubled=True)

    then = VirtualClock()() - timedelta(seconds=10)
    assert (reading.at, depth.model.depth(VirtualClock()()).as_of) == (then, then)
    assert [sample.at for sample in depth.history] == [then]


async def test_a_depth_that_falls_is_noted(
    secondary: MemoryBroker, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = told_so(secondary, monkeypatch, active=7)
    depth = depth_of(secondary)
    found = []
    for active in (7, 9, 8, 8):
        counts["active"] = active
        await depth.read(3, troubled=True)
        found.append((depth.model.last_decrease, depth.last.at))
        await trio.sleep(10)

    assert [decrease for decrease, _ in found] == [None, None, found[2][1], found[2][1]]


async def test_while_messages_change_they_are_counted_often_and_the_rest_as_before(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    """Another gateway diverts, so that only the secondary knows."""
    depth = depth_of(secondary)
    await depth.read(3, troubled=True)
    await secondary.send(QUEUES[0], [Message()])
    before = secondary.meter.usage().operations[Operation.INSPECT]
    for _ in range(9):
        await trio.sleep(1)
        await depth.read(3, troubled=True)

    told = depth.model.depth(depth.clock())
    assert (told.pending, told.as_of) == (1, depth.clock() - timedelta(seconds=1))
    assert secondary.meter.usage().operations[Operation.INSPECT] - before == 4
    assert len(list(depth.history)) == 1


async def test_each_reading_is_a_sample_of_the_history_queue_by_queue(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    await secondary.send(QUEUES[0], [Message()] * 2)
    await trio.sleep(30)
    await secondary.send(QUEUES[2], [Message()])
    await depth.read(3, troubled=False)

    [sample] = depth.history
    told = {name: (each.pending, each.oldest_age) for name, each in sample.queues.items()}
    assert (sample.pending, sample.oldest_age) == (3, 30.0)
    assert told == {
        QUEUES[0].name: (2, 30.0),
        QUEUES[1].name: (0, None),
        QUEUES[2].name: (1, 0.0),
    }


@pytest.mark.parametrize("fault", [Hang(), Refuse()])
async def test_the_depth_of_a_dead_secondary_is_an_unknown_sample(
    fault: Fault, secondary: MemoryBroker, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    faulty = FaultyBroker(inner=secondary)
    await nursery.start(faulty.run)
    depth = depth_of(faulty)
    await depth.read(3, troubled=True)
    faulty.fault = lambda _operation, _entity: fault
    await trio.sleep(10)
    await depth.read(3, troubled=True)

    assert [sample.pending for sample in depth.history] == [0, None]


async def test_in_an_outage_the_depth_is_sampled_each_minute_and_then_no_more(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    depth = depth_of(secondary)
    states = states_at_once()
    orders = EntityPath("orders")
    async with trio.open_nursery() as nursery:
        await nursery.start(DepthSampler(depth=depth, states=states, rng=random.Random(1)).run)
        await trio.sleep(600)
        calm = len(list(depth.history))
        states.force_over(orders)
        await secondary.send(QUEUES[0], [Message()])
        await trio.sleep(150)
        states.force_back(orders)
        await trio.sleep(150)
        await secondary.delete_queue(QUEUES[0])
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()

    pending = [sample.pending for sample in depth.history]
    assert calm == 0
    # Once in each of five minutes, from some moment of the first on, until the message is gone.
    assert pending == [1] * (len(pending) - 1) + [0]
    assert 4 <= len(pending) <= 7


async def test_in_an_outage_without_messages_each_sample_is_a_new_reading(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    """Also one that comes sooner than a minute after the last."""
    depth = depth_of(secondary)
    states = states_at_once()
    async with trio.open_nursery() as nursery:
        await nursery.start(DepthSampler(depth=depth, states=states, rng=random.Random(1)).run)
        states.force_over(EntityPath("orders"))
        await trio.sleep(60 * 60)
        nursery.cancel_scope.cancel()

    moments = [sample.at for sample in depth.history]
    pauses = [(after - before).total_seconds() for before, after in pairwise(moments)]
    assert all(EVERY * (1 - JITTER) <= pause <= EVERY * (1 + JITTER) for pause in pauses)
    assert min(pauses) < EVERY < max(pauses)


async def test_gateways_that_lose_their_primary_together_dont_read_together(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    states = states_at_once()
    depths = [depth_of(secondary) for _ in range(20)]
    moments: set[int] = set()
    async with trio.open_nursery() as nursery:
        for seed, depth in enumerate(depths):
            sampler = DepthSampler(depth=depth, states=states, rng=random.Random(seed))
            await nursery.start(sampler.run)
        states.force_over(EntityPath("orders"))
        for second in range(60):
            before = sum(len(list(depth.history)) for depth in depths)
            await trio.sleep(1.0)
            if sum(len(list(depth.history)) for depth in depths) > before:
                moments.add(second)
        nursery.cancel_scope.cancel()

    assert len(moments) > 10


async def test_messages_that_other_gateways_have_diverted_are_no_empty_backlog(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    reader = RecordReader(secondary=secondary, label=LABEL, clock=VirtualClock(), process="me")
    depth = depth_of(secondary, reader=reader)
    await depth.read(3, troubled=False)
    await secondary.send(QUEUES[0], [Message()] * 7)
    seen = []
    for told in ({"me": 9}, {"me": 9, "other": 7}):
        reader.known = attrs.evolve(reader.known, alive=gateways(told), unknown="")
        await depth.read(3, troubled=False)
        seen.append(depth.model.depth(VirtualClock()()).pending)
        await trio.sleep(OFTEN)

    assert seen == [0, 7]


async def test_messages_that_a_gateway_diverted_before_it_ended_are_no_empty_backlog(
    secondary: MemoryBroker, autojump_clock: MockClock
) -> None:
    reader = RecordReader(secondary=secondary, label=LABEL, clock=VirtualClock(), process="me")
    depth = depth_of(secondary, reader=reader)
    await depth.read(3, troubled=False)
    for kind, told in (("alive", {"other": 0}), ("ended", {"other": 7})):
        known = attrs.evolve(reader.known, alive=(), unknown="")
        reader.known = attrs.evolve(known, **{kind: gateways(told)})
        await depth.read(3, troubled=False)

    assert depth.model.depth(VirtualClock()()).unknown == NEWS


@pytest.mark.parametrize("part", ["model", "reader"])
async def test_a_depth_keeps_the_parts_that_it_was_made_with(
    secondary: MemoryBroker, part: str
) -> None:
    depth = depth_of(secondary)
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        setattr(depth, part, None)


def gateways(diverted: dict[str, int]) -> tuple[ProcessRecord, ...]:
    now = VirtualClock()()
    return tuple(
        ProcessRecord(
            process=process,
            host="here",
            kind="serve",
            pid=1,
            started=now,
            at=now,
            interval=600.0,
            gateway=GatewayRecord(diverted=CountByName(total=total)),
        )
        for process, total in diverted.items()
    )
