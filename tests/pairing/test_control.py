"""An operator's orders change a pair and its syphon."""

from datetime import timedelta

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.events.control import ControlCalled, ControlEnded
from gateway.domain.events.gateway import (
    BacklogOrphaned,
    EntityStateChanged,
    Syphoned,
    SyphonStalled,
)
from gateway.domain.failover import State
from gateway.domain.health.process_records import ALONE
from gateway.domain.message import AcceptedBy
from gateway.domain.operators.control import (
    MOST,
    Action,
    ControlAnswer,
    Operator,
    Order,
    Override,
)
from gateway.domain.operators.probe import ProbeOrder
from gateway.pairing.control import Control
from gateway.pairing.entity_cache import KnownEntities
from gateway.pairing.options import EntityRule
from gateway.pairing.pair import Pair
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.syphon.syphon import Syphon
from tests.harness.faults import Hang, Operation, Refuse
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    QUEUE,
    Harness,
    control_of,
    message,
    reaches,
    send,
    virtual_time,
)

pytestmark = virtual_time

ANN = Operator(name="ann", peer="127.0.0.1:5000")


async def steered(harness: Harness, **options: object) -> tuple[Pair, Control]:
    pair = await harness.pair(**options)  # type: ignore[arg-type]
    control = control_of(harness, pair)
    await harness.nursery.start(control.run)
    return pair, control


async def with_syphon(harness: Harness, *, states: bool = True) -> tuple[Pair, Control, Syphon]:
    pair = await harness.pair()
    syphon = harness.make_syphon(states=pair.states if states else None, pauses=pair.pauses)
    control = control_of(harness, pair, syphon)
    await harness.nursery.start(control.run)
    await harness.nursery.start(syphon.run)
    await wait_all_tasks_blocked()  # its receivers are open: a test may end at once
    return pair, control, syphon


def order(control: Control, action: Action, *targets: str, **fields: object) -> ControlAnswer:
    given = {"targets": targets} if targets else {}
    return control.execute(Order(action=action, **given, **fields), ANN)  # type: ignore[arg-type]


async def test_a_failed_over_entity_is_diverted_until_it_is_failed_back(harness: Harness) -> None:
    pair, control = await steered(harness)

    over = order(control, Action.FAILOVER, "orders", reason="maintenance")
    diverted = await send(pair)()
    back = order(control, Action.FAILBACK, "orders")
    sent = await send(pair)()

    assert (diverted, sent) == (AcceptedBy.BACKLOG, AcceptedBy.PRIMARY)
    assert (over.changed, over.before.entities, over.after.entities) == (
        True,
        {"orders": "primary"},
        {"orders": "pinned"},
    )
    assert (back.changed, back.before.entities, back.after.entities) == (
        True,
        {"orders": "pinned"},
        {"orders": "primary"},
    )


async def test_each_order_is_an_event_before_what_it_changes(harness: Harness) -> None:
    _, control = await steered(harness)

    order(control, Action.FAILOVER, "orders", reason="maintenance")

    [called, changed] = harness.events.all
    assert called == ControlCalled(
        action="failover",
        target="orders",
        reason="maintenance",
        operator="ann",
        peer="127.0.0.1:5000",
        until="",
        changed=True,
    )
    assert isinstance(changed, EntityStateChanged)
    assert changed.reason == "forced by an operator: orders by ann: maintenance"


async def test_orders_are_idempotent(harness: Harness) -> None:
    _, control = await steered(harness)

    answers = [
        order(control, action, "orders")
        for action in (Action.FAILBACK, Action.FAILOVER, Action.FAILOVER)
    ]

    assert [answer.changed for answer in answers] == [False, True, False]
    assert answers[2].before == answers[2].after == answers[1].after
    assert [event.changed for event in harness.events.of(ControlCalled)] == [False, True, False]


async def test_a_pattern_covers_entities_that_are_first_sent_to_later(harness: Harness) -> None:
    pair, control = await steered(harness)
    eu = EntityPath("orders/eu")
    await harness.primary.store.create_queue(eu, QueueProperties())

    order(control, Action.FAILOVER, "orders/*")

    assert await send(pair, entity=eu)() is AcceptedBy.BACKLOG
    assert await send(pair, entity=ORDERS)() is AcceptedBy.PRIMARY
    assert control.state(["orders/*"]).entities == {"orders/eu": "pinned"}


async def test_of_a_whole_pair_one_entity_can_be_failed_back(harness: Harness) -> None:
    pair, control = await steered(harness)
    await send(pair)()

    everything = order(control, Action.FAILOVER, "*")
    order(control, Action.FAILBACK, "orders")

    assert everything.after.entities == {"orders": "pinned"}
    assert await send(pair, entity=ORDERS)() is AcceptedBy.PRIMARY
    assert await send(pair, entity=BILLS)() is AcceptedBy.BACKLOG


async def test_an_entity_that_failed_over_by_itself_is_failed_back(harness: Harness) -> None:
    pair, control = await steered(harness, failover_interval=0.0)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair)()
    assert pair.states.state_of(ORDERS) is State.SECONDARY
    harness.primary.heal()

    answer = order(control, Action.FAILBACK, "*")

    assert answer.changed
    assert await send(pair)() is AcceptedBy.PRIMARY


async def test_an_order_ends_at_its_date(harness: Harness) -> None:
    pair, control = await steered(harness)

    order(control, Action.FAILOVER, "orders", until=harness.after(3600))
    await trio.sleep(3599)
    before = pair.states.state_of(ORDERS)
    await reaches(pair.states, State.PRIMARY)

    assert before is State.PINNED
    assert harness.events.of(ControlEnded) == [
        ControlEnded(action="failback", target="orders", operator="ann")
    ]
    assert control.state().pins == ()


async def test_an_order_whose_date_comes_by_a_step_of_the_clock_ends_within_half_a_minute(
    harness: Harness,
) -> None:
    pair, control = await steered(harness)
    order(control, Action.FAILOVER, "orders", until=harness.after(3600))
    await wait_all_tasks_blocked()  # the end is waited for by the clock as it is now

    harness.clock.skew = timedelta(hours=1)
    await trio.sleep(30.5)

    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_an_end_in_the_past_is_refused(harness: Harness) -> None:
    _, control = await steered(harness)

    with pytest.raises(InvalidRequest, match="in the past"):
        order(control, Action.FAILOVER, "orders", until=harness.after(0))


async def test_an_entity_that_never_leaves_the_primary_isnt_failed_over(harness: Harness) -> None:
    rule = EntityRule(match="orders", divert=False)
    pair, control = await steered(harness, entities=(rule,))

    with pytest.raises(InvalidRequest, match="divert = false"):
        order(control, Action.FAILOVER, "orders")
    order(control, Action.FAILOVER, "*")

    assert await send(pair, entity=ORDERS)() is AcceptedBy.PRIMARY
    assert await send(pair, entity=BILLS)() is AcceptedBy.BACKLOG


async def test_a_process_says_what_it_cant_do(harness: Harness) -> None:
    pair, control = await steered(harness)
    alone = Control(clock=harness.clock, observer=harness.events, pauses=pair.pauses)

    with pytest.raises(NotSupported, match="no syphon"):
        order(control, Action.PAUSE)
    with pytest.raises(NotSupported, match="no pair"):
        order(alone, Action.FAILOVER, "orders")
    assert (control.state().has_pair, control.state().has_syphon) == (True, False)
    assert (alone.state().has_pair, alone.state().entities) == (False, {})
    for part in ("states", "entity_cache"):
        assert attrs.evolve(control, **{part: None}).state(["orders"]).entities == {}


async def moved(harness: Harness) -> int:
    return len(await harness.primary.messages())


@pytest.mark.parametrize("states", [True, False], ids=["in a gateway", "alone"])
@pytest.mark.parametrize("target", ["*", "orders", "east/x-servicebus-transfer/*"])
async def test_a_paused_syphon_moves_nothing_until_it_is_resumed(
    harness: Harness, target: str, states: bool
) -> None:
    _, control, _ = await with_syphon(harness, states=states)

    paused = order(control, Action.PAUSE, target)
    await harness.divert(message("1"), message("2"))
    await trio.sleep(300)
    before = await moved(harness)
    resumed = order(control, Action.RESUME)
    await trio.sleep(60)

    assert (before, await moved(harness)) == (0, 2)
    assert (paused.changed, resumed.changed) == (True, True)
    assert [each.target for each in paused.after.pauses] == [target]
    assert resumed.after.pauses == ()
    assert harness.events.of(SyphonStalled) == []


async def test_a_paused_entity_holds_up_no_other(harness: Harness) -> None:
    _, control, _ = await with_syphon(harness)

    order(control, Action.PAUSE, "orders")
    await harness.divert(message("1"), entity=ORDERS)
    await harness.divert(message("2"), entity=BILLS)
    await trio.sleep(30)

    assert await harness.primary.ids(ORDERS) == []
    assert await harness.primary.ids(BILLS) == ["2"]


async def test_a_pause_takes_effect_within_a_batch(harness: Harness) -> None:
    """The pause takes effect, too, while the rate limit stretches the batch."""
    _, control, _ = await with_syphon(harness)
    order(control, Action.RATE, rate=2.0)
    await harness.divert(*(message(str(index)) for index in range(50)))
    await trio.sleep(5)

    order(control, Action.PAUSE)
    await trio.sleep(2)
    before = await moved(harness)
    await trio.sleep(600)

    assert 0 < before < 50
    assert await moved(harness) == before
    order(control, Action.RATE, rate=None)
    order(control, Action.RESUME)
    await trio.sleep(120)
    assert await harness.primary.ids() == list(map(str, range(50)))


async def test_a_pause_ends_at_its_date(harness: Harness) -> None:
    _, control, _ = await with_syphon(harness)

    order(control, Action.PAUSE, until=harness.after(600))
    await harness.divert(message("1"))
    await trio.sleep(599)
    before = await moved(harness)
    await harness.events.first(Syphoned)

    assert before == 0
    assert trio.current_time() < 1024 + 700
    assert [event.action for event in harness.events.of(ControlEnded)] == ["resume"]


async def test_a_paused_backlog_isnt_orphaned(harness: Harness) -> None:
    pair, control, _ = await with_syphon(harness)
    order(control, Action.PAUSE)
    order(control, Action.FAILOVER, "orders")
    await send(pair)()
    order(control, Action.FAILBACK, "orders")

    await trio.sleep(2 * 3600)

    assert harness.events.of(BacklogOrphaned) == []


async def test_the_rate_of_a_running_syphon_is_changed(harness: Harness) -> None:
    _, control, syphon = await with_syphon(harness)

    answer = order(control, Action.RATE, rate=10.0)
    again = order(control, Action.RATE, rate=10.0)
    await harness.divert(*(message(str(index)) for index in range(200)))
    await trio.sleep(10)
    after_ten_seconds = await moved(harness)
    order(control, Action.RATE, rate=None)
    await trio.sleep(5)

    assert (answer.before.rate, answer.after.rate, syphon.rate) == (None, 10.0, None)
    assert (answer.changed, again.changed) == (True, False)
    assert 80 <= after_ten_seconds <= 110
    assert await moved(harness) == 200


async def test_a_message_that_waits_on_a_paused_queue_stays_there(harness: Harness) -> None:
    _, control, _ = await with_syphon(harness)
    order(control, Action.PAUSE, QUEUE.name)

    await harness.divert(message("1"))
    await trio.sleep(timedelta(minutes=10).total_seconds())

    assert await harness.secondary.ids(QUEUE) == ["1"]
    [delivery] = await harness.secondary.deliveries(QUEUE)
    assert delivery.delivery_count == 0


async def test_an_order_to_the_syphon_is_an_event_too(harness: Harness) -> None:
    _, control, _ = await with_syphon(harness)
    until = harness.after(600)

    order(control, Action.PAUSE, "orders", reason="maintenance", until=until)

    [called] = harness.events.of(ControlCalled)
    assert (called.action, called.target, called.changed) == ("pause", "orders", True)
    assert (called.reason, called.until) == ("maintenance", until.isoformat())


@pytest.mark.parametrize("action", [Action.FAILOVER, Action.PAUSE])
@pytest.mark.parametrize("seconds", [0.5, 12.0])
async def test_an_order_ends_at_its_date_though_the_clock_is_read_each_half_minute(
    harness: Harness, action: Action, seconds: float
) -> None:
    _, control, _ = await with_syphon(harness)
    order(control, action, "bills", until=harness.after(3600))

    order(control, action, "orders", until=harness.after(seconds))
    await trio.sleep(seconds + 0.1)

    assert [each.target for each in harness.events.of(ControlEnded)] == ["orders"]


async def test_a_rate_that_one_of_two_syphons_has_is_a_change(harness: Harness) -> None:
    pair = await harness.pair()
    syphons = [harness.make_syphon(states=pair.states, pauses=pair.pauses) for _ in range(2)]
    syphons[0].limit_rate(10.0)

    answer = order(control_of(harness, pair, *syphons), Action.RATE, rate=10.0)

    assert answer.changed
    assert [each.rate for each in syphons] == [10.0, 10.0]


async def test_a_failback_of_everything_is_a_change_if_one_entity_was_away(
    harness: Harness,
) -> None:
    pair, control = await steered(harness, failover_interval=0.0)
    await send(pair, entity=BILLS)()
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE, entity=ORDERS)
    await send(pair)()

    assert order(control, Action.FAILBACK, "*").changed
    assert not order(control, Action.FAILBACK, "*").changed


async def test_a_state_lists_a_hundred_entities_and_counts_the_others(harness: Harness) -> None:
    _, control = await steered(harness)
    names = [f"queue-{number}" for number in range(MOST + 2)]

    some, all_of_them = control.state(names), control.state(names[:MOST])

    assert (len(some.entities), some.more_entities) == (MOST, 2)
    assert (len(all_of_them.entities), all_of_them.more_entities) == (MOST, 0)


async def test_a_probe_is_of_all_entities_that_any_target_names(harness: Harness) -> None:
    pair, control = await steered(harness, failover_interval=0.0)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    for entity in (ORDERS, BILLS):
        await send(pair, entity=entity)()

    answer = await control.probe(ProbeOrder(targets=("orders", "bills")), ANN)

    assert answer.probes.keys() == {"orders", "Bills"}
    assert not any(each.answered for each in answer.probes.values())


async def test_a_pair_without_a_prober_probes_nothing(harness: Harness) -> None:
    pair, control = await steered(harness)
    control.prober = None

    with pytest.raises(NotSupported, match="no pair"):
        await control.probe(ProbeOrder(targets=("orders",)), ANN)
    assert pair.states.state_of(ORDERS) is State.PRIMARY


async def test_an_answer_to_an_operator_has_the_states_after_the_order(harness: Harness) -> None:
    _, control = await steered(harness)

    answer = await control.order(Order(action=Action.FAILOVER, targets=("orders",)), ANN)

    assert answer.after.entities == {"orders": "pinned"}


async def test_the_queue_of_a_syphon_and_a_paused_entity_are_known_names(harness: Harness) -> None:
    pair, control, _ = await with_syphon(harness)
    control.known = KnownEntities(primary=harness.primary.broker)
    await send(pair)()
    order(control, Action.PAUSE, "later")

    for target in (QUEUE.name, "later"):
        again = Order(action=Action.RESUME, targets=(target,))
        assert (await control.order(again, ANN)).action == "resume"


async def test_an_order_that_cannot_be_executed_is_refused_before_its_names_are_asked_for(
    harness: Harness,
) -> None:
    _, control = await steered(harness)
    control.known = KnownEntities(primary=harness.primary.broker)
    asked = len(harness.primary.asked)
    late = Order(action=Action.FAILOVER, targets=("ordres",), until=harness.after(0))

    with pytest.raises(InvalidRequest, match="in the past"):
        await control.order(late, ANN)
    assert len(harness.primary.asked) == asked


async def test_a_failback_tells_by_whom_and_why(harness: Harness) -> None:
    _, control = await steered(harness)
    for reason in ("", "done"):
        order(control, Action.FAILOVER, "orders")
        order(control, Action.FAILBACK, "orders", reason=reason)

    changes = harness.events.of(EntityStateChanged)
    assert [each.reason for each in changes if each.after == "primary"] == [
        "forced by an operator: failback by ann",
        "forced by an operator: failback by ann: done",
    ]


@attrs.define
class Sharing:
    """The other processes with the same pair, as far as they are told of pins."""

    pins: int = 0

    def record_state(self, entity: EntityPath) -> None:
        pass

    def record_pins(self) -> None:
        self.pins += 1


async def test_changed_pins_are_told_to_the_processes_that_share_the_states(
    harness: Harness,
) -> None:
    pair, control = await steered(harness)
    others = Sharing()
    pair.states.share_with(others)

    order(control, Action.FAILOVER, "orders", until=harness.after(60))
    given = others.pins
    await trio.sleep(61)

    assert (given, others.pins) == (1, 2)


async def test_an_order_from_before_a_restart_that_is_over_ends_at_the_start(
    harness: Harness,
) -> None:
    pair = await harness.pair()
    since = harness.clock()
    over = Override(target="orders", reason="", operator="ann", since=since, until=since)
    pair.states.pins.restore([over])
    await harness.nursery.start(control_of(harness, pair).run)

    assert pair.states.state_of(ORDERS) is State.PRIMARY
    assert [each.target for each in harness.events.of(ControlEnded)] == ["orders"]


async def test_a_probe_is_a_change_unless_each_entity_is_probed_already(harness: Harness) -> None:
    pair, control = await steered(harness, failover_interval=0.0)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    for entity in (ORDERS, BILLS):
        await send(pair, entity=entity)()
    harness.primary.heal()
    harness.primary.fail(Hang(), Operation.PROBE)
    for targets in (("orders",), ("orders", "bills"), ("orders", "bills")):
        harness.nursery.start_soon(control.probe, ProbeOrder(targets=targets), ANN)
        await wait_all_tasks_blocked()

    assert [each.changed for each in harness.events.of(ControlCalled)] == [True, True, False]


async def test_the_reach_of_orders_is_known_where_there_is_nothing_to_order(
    harness: Harness,
) -> None:
    pair, control = await steered(harness)
    nothing = Control(clock=harness.clock, observer=harness.events, pauses=pair.pauses)
    syphon = attrs.evolve(nothing, syphons=[harness.make_syphon()])
    book = OrderBook(process="p1", clock=harness.clock)
    reader = RecordReader(secondary=harness.secondary.store, label=LABEL, clock=harness.clock)
    untold = attrs.evolve(syphon, book=book)
    unheard = attrs.evolve(syphon, reader=reader)
    both = attrs.evolve(untold, reader=reader)
    before = both.reach_unknown
    await reader.look()

    assert nothing.reach_unknown == ""
    assert {each.reach_unknown for each in (control, syphon, untold, unheard)} == {ALONE}
    assert before == "nobody has asked the secondary yet"
    assert both.reach_unknown == "no syphon has left a heartbeat on the secondary yet"
