"""Orders that are given at other processes of the pair, and those that are told to them."""

import attrs
import pytest
import trio

from gateway.domain.events.control import ControlEnded
from gateway.domain.failover import State
from gateway.domain.health.process_records import ORDERS_HOLD
from gateway.domain.operators.control import Action, Operator, Order
from gateway.pairing.control import Control
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.syphon.pauses import Pauses
from tests.pairing.harness import (
    LABEL,
    ORDERS,
    QUEUE,
    Harness,
    control_of,
    message,
    virtual_time,
)
from tests.pairing.records.processes import KEYS
from tests.pairing.records.samples import order_of
from tests.pairing.records.shown import Shown

pytestmark = virtual_time

ANN = Operator(name="ann", peer="127.0.0.1:5000")


@attrs.frozen
class Stand:
    """A process with a pair and a syphon, which knows of another process."""

    harness: Harness
    control: Control
    book: OrderBook

    def hear(self, action: Action, **fields: object) -> None:
        now = self.harness.clock()
        order = order_of(action, process="p2", operator="bob", at=now, **fields)
        self.control.follow((order,))

    def give(self, action: Action, **fields: object) -> None:
        self.control.execute(Order(action=action, **fields), ANN)  # type: ignore[arg-type]


@pytest.fixture
async def stand(harness: Harness) -> Stand:
    pair = await harness.pair()
    syphon = harness.make_syphon(states=pair.states, pauses=pair.pauses)
    control = control_of(harness, pair, syphon)
    book = control.book = OrderBook(process="p1", clock=harness.clock)
    await harness.nursery.start(control.run)
    await harness.nursery.start(syphon.run)
    return Stand(harness, control, book)


async def test_an_order_of_another_process_holds_here_until_its_date(stand: Stand) -> None:
    stand.hear(Action.PAUSE, targets=("orders",), until=stand.harness.after(12))
    paused = stand.control.state().pauses
    await trio.sleep(12.1)

    assert [each.target for each in paused] == ["orders"]
    assert stand.control.state().pauses == ()
    assert len(stand.harness.events.of(ControlEnded)) == 1


async def test_a_syphon_tells_at_once_that_it_follows(stand: Stand) -> None:
    before = stand.control.told.version

    stand.hear(Action.PAUSE, targets=("orders",))

    assert stand.control.told.version == before + 1


async def test_a_pause_of_another_process_ends_the_receive_under_way(stand: Stand) -> None:
    await trio.sleep(1)  # a receive waits for messages by now
    stand.hear(Action.PAUSE, targets=(QUEUE.name,))
    await stand.harness.divert(message("1"))
    await trio.sleep(60)

    assert await stand.harness.secondary.ids(QUEUE) == ["1"]


async def test_a_rate_of_another_process_holds_here(stand: Stand) -> None:
    stand.hear(Action.RATE, targets=("*",), rate=7.0)

    assert [each.rate for each in stand.control.syphons] == [7.0]


async def test_an_order_given_here_is_told_at_once(harness: Harness) -> None:
    book = OrderBook(process="p1", clock=harness.clock)
    control = Control(clock=harness.clock, observer=harness.events, pauses=Pauses(), book=book)

    control.execute(Order(action=Action.FAILOVER, targets=("orders",)), ANN)

    assert control.told.version == 1


async def test_an_answer_tells_what_records_of_the_last_two_seconds_say(stand: Stand) -> None:
    secondary = Shown()
    stand.control.reader = RecordReader(
        secondary=secondary,  # type: ignore[arg-type]
        label=LABEL,
        clock=stand.harness.clock,
        keys=lambda: KEYS,
    )
    answers, asked = [], []
    for seconds in (0.0, 1.9, 0.1):
        await trio.sleep(seconds)
        order = Order(action=Action.FAILOVER, targets=("orders",))
        answers.append(await stand.control.order(order, ANN))
        asked.append(len(secondary.peeks()))

    assert asked == [1, 0, 1]
    assert answers[0].before.reach_unknown == "nobody has asked the secondary yet"
    assert answers[0].after == answers[1].before
    assert answers[0].after.reach_unknown == ""


async def test_a_gateway_without_a_syphon_has_nothing_to_tell(stand: Stand) -> None:
    stand.control.syphons = ()
    before = stand.control.told.version

    stand.hear(Action.FAILOVER, targets=("orders",))

    assert stand.control.told.version == before


async def test_orders_of_others_end_when_they_are_heard_no_more(stand: Stand) -> None:
    stand.hear(Action.FAILOVER, targets=("orders",))
    hold = ORDERS_HOLD.total_seconds()
    await trio.sleep(hold - 1)
    stand.control.forget_expired()
    before = stand.control.state(["orders"]).entities
    await trio.sleep(1)
    stand.control.forget_expired()

    assert before == {"orders": State.PINNED.value}
    assert stand.control.state(["orders"]).entities == {"orders": State.PRIMARY.value}


async def test_a_process_without_others_has_none_to_forget(stand: Stand) -> None:
    stand.control.book = None

    stand.control.forget_expired()

    assert stand.control.state().pins == ()


async def test_a_rate_from_before_a_restart_holds_from_its_start(harness: Harness) -> None:
    pair = await harness.pair()
    syphon = harness.make_syphon(states=pair.states, pauses=pair.pauses)
    control = control_of(harness, pair, syphon)
    control.book = OrderBook(process="p1", clock=harness.clock)
    control.book.give(Order(action=Action.RATE, rate=7.0), "bob")

    await harness.nursery.start(control.run)

    assert syphon.rate == 7.0


@pytest.mark.parametrize("action", [Action.FAILOVER, Action.PAUSE])
async def test_an_order_that_changes_nothing_is_not_told_again(
    stand: Stand, action: Action
) -> None:
    stand.give(action, targets=("orders",))
    told = stand.book.revision
    stand.give(action, targets=("orders",))

    assert stand.book.revision == told > 0


@pytest.mark.parametrize("action", [Action.FAILBACK, Action.RESUME])
async def test_the_end_of_an_order_is_told_though_it_changes_nothing_here(
    stand: Stand, action: Action
) -> None:
    stand.give(action, targets=("orders",))

    assert stand.book.revision > 0


@pytest.mark.parametrize("by_date", [True, False])
async def test_a_syphon_alone_follows_a_pin_until_its_date_or_its_end(
    harness: Harness, by_date: bool
) -> None:
    pair = await harness.pair()
    syphon = harness.make_syphon(pauses=pair.pauses)
    control = attrs.evolve(
        control_of(harness, pair, syphon), states=None, entity_cache=None, prober=None
    )
    control.book = OrderBook(process="p1", clock=harness.clock)
    await harness.nursery.start(control.run)
    await harness.nursery.start(syphon.run)
    until = harness.after(100) if by_date else None
    control.execute(Order(action=Action.FAILOVER, targets=("orders",), until=until), ANN)
    await harness.divert(message("1"))
    await trio.sleep(99.9)
    before = await harness.primary.ids(ORDERS)
    if not by_date:
        control.execute(Order(action=Action.FAILBACK, targets=("orders",)), ANN)
    await trio.sleep(0.2)

    assert (before, await harness.primary.ids(ORDERS)) == ([], ["1"])
    assert len(harness.events.of(ControlEnded)) == by_date
