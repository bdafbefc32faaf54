"""A process follows the orders in the records of others, and reads them now and then."""

import random
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain.errors import Unavailable
from gateway.domain.health.process_records import (
    ORDERS_HOLD,
    GatewayRecord,
    PairRecords,
    ProcessRecord,
    SyphonRecord,
)
from gateway.domain.operators.control import Action
from gateway.domain.operators.given_orders import GivenOrder
from gateway.pairing.control import Control
from gateway.pairing.records.following import LEAST, PATIENCE, SYPHON_READS, OrderFollower
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import LOOK_LIMIT, REFUSED, RecordReader
from gateway.pairing.syphon.pauses import Pauses
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import LABEL, ORDERS, Events, virtual_time
from tests.pairing.records.processes import KEYS
from tests.pairing.records.samples import order_of, record_of
from tests.pairing.records.shown import Shown

pytestmark = virtual_time


@attrs.frozen
class Stand:
    """A syphon, or a gateway, that follows others."""

    secondary: Shown
    follower: OrderFollower

    @property
    def control(self) -> Control:
        return self.follower.control

    def paused(self) -> bool:
        return self.control.pauses.is_paused(ORDERS)


def stand_of(events: Events, *, moves: bool = True, **options: bool) -> Stand:
    clock, secondary = VirtualClock(), Shown()
    book = OrderBook(process="own", clock=clock)
    reader = RecordReader(
        secondary=secondary,  # type: ignore[arg-type]
        label=LABEL,
        clock=clock,
        process="own",
        keys=lambda: KEYS,
    )
    control = Control(clock=clock, observer=events, pauses=Pauses(), book=book, reader=reader)
    follower = OrderFollower(
        reader=reader,
        control=control,
        book=book,
        moves=moves,
        host="here",
        kind="syphon",
        rng=random.Random(1),
        **options,
    )
    return Stand(secondary, follower)


def record(process: str = "p", **fields: object) -> ProcessRecord:
    return record_of(process, **{"host": "there", "revision": 1, **fields})


def pause(revision: int = 1, process: str = "p", target: str = "orders") -> GivenOrder:
    about = {"revision": revision, "process": process, "targets": (target,)}
    return order_of(Action.PAUSE, operator="bob", **about)


def read(*alive: ProcessRecord, **fields: object) -> PairRecords:
    """The records after a reading that succeeded."""
    orders = tuple(order for each in alive for order in each.orders)
    told = {"at": VirtualClock()(), "alive": alive, "orders": orders, "unknown": ""}
    return PairRecords(**{**told, **fields})  # type: ignore[arg-type]


UNREAD = PairRecords(unknown="the secondary doesn't answer")


# Orders


async def test_orders_are_in_force_from_the_first_reading_on(events: Events) -> None:
    stand = stand_of(events)
    stand.follower.follow(attrs.evolve(UNREAD, orders=(pause(),)))
    before = stand.paused()
    stand.follower.follow(read(record(orders=(pause(),))))
    heard = stand.paused()
    stand.follower.follow(attrs.evolve(UNREAD, orders=()))

    assert (before, heard, stand.paused()) == (False, True, False)


async def test_orders_from_before_a_restart_hold_until_their_date_or_the_first_reading(
    events: Events,
) -> None:
    stand = stand_of(events)
    stand.follower.book.learn((pause(),), VirtualClock()() + timedelta(seconds=10))
    stand.control.pauses.overrides.restore(stand.follower.book.in_force().pauses)
    stand.follower.follow(UNREAD)
    before = stand.paused()
    await trio.sleep(10.0)
    stand.follower.follow(UNREAD)

    assert (before, stand.paused()) == (True, False)


@pytest.mark.parametrize("may_read", [False, None])
async def test_nothing_moves_until_the_orders_were_read_or_cannot_be(
    events: Events, may_read: bool | None
) -> None:
    stand = stand_of(events, waits=True)
    stand.control.pauses.blind = True
    stand.follower.reader.may_read = may_read
    seen = stand.control.pauses.changes.version
    stand.follower.follow(UNREAD)
    blind = stand.control.pauses.blind
    stand.follower.follow(read())

    assert blind is (may_read is None)
    assert not stand.control.pauses.blind
    assert stand.control.pauses.changes.version == seen + 1


@pytest.mark.parametrize("part", ["alive", "stale", "ended"])
async def test_without_a_state_file_the_orders_of_the_process_before_are_its_own(
    events: Events, part: str
) -> None:
    stand = stand_of(events, inherits=True)
    before = record("before", host="here", kind="syphon", orders=(pause(1, "before", "a"),))
    others = [
        record("elsewhere", kind="syphon", orders=(pause(2, "elsewhere", "b"),)),
        record("beside", host="here", orders=(pause(3, "beside", "c"),)),
    ]
    unread = record("unread", host="here", kind="syphon", orders=(pause(4, "unread", "d"),))
    stand.follower.follow(attrs.evolve(UNREAD, alive=(unread,)))
    stand.follower.follow(read(**{"alive": (), part: (before, *others)}))

    assert [each.targets for each in stand.follower.book.own] == [("a",)]


async def test_orders_are_inherited_at_the_first_reading_alone(events: Events) -> None:
    stand = stand_of(events, inherits=True)
    stand.follower.follow(read())
    twin = record("twin", host="here", kind="syphon", orders=(pause(1, "twin"),))
    stand.follower.follow(read(twin))

    assert stand.follower.book.own == ()


async def test_a_process_with_a_state_file_inherits_nothing(events: Events) -> None:
    stand = stand_of(events)
    before = record("before", host="here", kind="syphon", orders=(pause(1, "before"),))
    stand.follower.follow(read(before))

    assert stand.follower.book.own == ()


async def test_a_request_to_reload_is_heard_of_others_alone(events: Events) -> None:
    stand = stand_of(events)
    later = 10**15  # in the year 33658
    stand.follower.follow(read(record("own", reload=later), record("p")))
    own = stand.follower.book.reloads.version
    stand.follower.follow(read(record("p"), record("q", reload=later)))

    assert (own, stand.follower.book.reloads.version) == (0, 1)


# Readings


@pytest.mark.parametrize(
    ("syphons", "gateways", "seconds"), [(1, 0, 1.8), (9, 20, 1.8), (20, 0, 4.0)]
)
async def test_all_syphons_together_read_five_times_a_second(
    events: Events, syphons: int, gateways: int, seconds: float
) -> None:
    stand = stand_of(events)
    stand.follower.reader.known = read(
        *[record(f"s{number}", syphon=SyphonRecord()) for number in range(syphons)],
        *[record(f"g{number}", gateway=GatewayRecord()) for number in range(gateways)],
    )

    assert stand.follower.pause() == seconds


@pytest.mark.parametrize(
    ("processes", "pages", "seconds"),
    [(1, 1, 60.0), (30, 1, 60.0), (50, 0, 100.0), (50, 1, 100.0), (50, 3, 300.0)],
)
async def test_all_gateways_together_read_a_page_in_two_seconds(
    events: Events, processes: int, pages: int, seconds: float
) -> None:
    stand = stand_of(events, moves=False)
    stand.follower.reader.known = read(*[record(f"p{number}") for number in range(processes)])
    stand.follower.reader.pages = pages

    assert stand.follower.pause() == seconds


async def test_records_that_may_not_be_read_are_asked_for_once_an_hour(events: Events) -> None:
    stand = stand_of(events)
    stand.follower.reader.may_read = False

    assert stand.follower.pause() == REFUSED


async def test_a_syphon_starts_after_the_first_reading(
    events: Events, nursery: trio.Nursery
) -> None:
    stand = stand_of(events, waits=True)
    stand.secondary.put(record(orders=(pause(),)))
    await nursery.start(stand.follower.run)

    assert stand.paused()
    assert not stand.control.pauses.blind


async def test_a_syphon_waits_a_second_at_most_to_start_and_moves_nothing_then(
    events: Events, nursery: trio.Nursery
) -> None:
    stand = stand_of(events, waits=True)
    stand.secondary.error = Unavailable("down")
    stand.secondary.delay = 2 * LOOK_LIMIT
    began = trio.current_time()
    await nursery.start(stand.follower.run)
    waited = trio.current_time() - began
    blind = stand.control.pauses.blind
    stand.secondary.error = None
    await trio.sleep(2 * PATIENCE)

    assert (waited, blind, stand.control.pauses.blind) == (LOOK_LIMIT, True, False)


async def test_a_syphon_reads_within_two_seconds_and_follows(
    events: Events, nursery: trio.Nursery
) -> None:
    stand = stand_of(events)
    await nursery.start(stand.follower.run)
    stand.secondary.put(record(orders=(pause(),)))
    await trio.sleep(1.1 * SYPHON_READS)

    assert stand.paused()


async def test_gateways_that_start_together_read_at_moments_of_the_first_minute(
    events: Events, nursery: trio.Nursery
) -> None:
    stands = [stand_of(events, moves=False) for _ in range(20)]
    for seed, stand in enumerate(stands):
        stand.follower.rng = random.Random(seed)
        await nursery.start(stand.follower.run)
    have_read = []
    for _ in range(3):
        have_read.append(sum(bool(each.secondary.asked) for each in stands))
        await trio.sleep(LEAST / 2)

    assert have_read[0] == 0
    assert 5 <= have_read[1] <= 15
    assert have_read[2] == 20


async def test_a_reading_by_somebody_else_is_followed_at_once_and_not_repeated(
    events: Events, nursery: trio.Nursery
) -> None:
    stand = stand_of(events, moves=False)
    await nursery.start(stand.follower.run)
    await trio.sleep(LEAST)
    stand.secondary.put(record(orders=(pause(),)))
    stand.secondary.asked.clear()
    await stand.follower.reader.look()
    asked = len(stand.secondary.asked)
    await trio.sleep(0.1)

    assert stand.paused()
    assert len(stand.secondary.asked) == asked


async def test_orders_of_a_process_that_is_gone_end_with_its_record(
    events: Events, nursery: trio.Nursery
) -> None:
    stand = stand_of(events)
    stand.secondary.put(record(orders=(pause(),)))
    await nursery.start(stand.follower.run)
    await trio.sleep(ORDERS_HOLD.total_seconds() - 5)
    before = stand.paused()
    await trio.sleep(10)

    assert (before, stand.paused()) == (True, False)


async def test_a_process_that_need_not_wait_is_never_blind(
    events: Events, nursery: trio.Nursery
) -> None:
    stand = stand_of(events)
    stand.secondary.error = Unavailable("down")
    await nursery.start(stand.follower.run)

    assert not stand.control.pauses.blind
    assert PATIENCE == 5.0
