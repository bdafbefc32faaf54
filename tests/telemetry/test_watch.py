"""The watch counts events, and keeps problems red for a while."""

import pytest
import trio
from trio.testing import MockClock

from gateway.domain.backlog import queue_name
from gateway.domain.entity import EntityPath
from gateway.domain.events.access import ConnectionClosed, ConnectionOpened
from gateway.domain.events.control import AuditFailed, AuditRestored
from gateway.domain.events.gateway import (
    BacklogOrphaned,
    BusyPause,
    ConnectionCrashed,
    DeadLettered,
    Diverted,
    EntityStateChanged,
    Event,
    LeftUntouched,
    SentTwice,
    StateNotSaved,
    StateSaved,
    SyphonBackedOff,
    Syphoned,
    SyphonFailed,
    SyphonStalled,
)
from gateway.domain.events.outages import NamespaceBack, NamespaceLost
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import StateChangeCount
from gateway.telemetry.watch import LONGEST_TEXT, MOST_DIVERTED, RED, GatewayWatch
from tests.harness.clocks import VirtualClock
from tests.harness.retained import entries

ORDERS = EntityPath("orders")
STALLED = SyphonStalled(pending=5, seconds=60.0)


class Inner:
    def __init__(self) -> None:
        self.heard: list[Event] = []

    def report(self, event: Event) -> None:
        self.heard.append(event)


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def watch(inner: Inner) -> GatewayWatch:
    return GatewayWatch(inner, VirtualClock())


def moved(messages: int) -> Syphoned:
    return Syphoned(entity=ORDERS, queue=ORDERS, messages=messages)


async def test_every_event_is_counted_and_passed_on(watch: GatewayWatch, inner: Inner) -> None:
    pause = BusyPause(entity=ORDERS, seconds=10.0)
    for _ in range(3):
        watch.report(pause)

    assert watch.count(BusyPause) == 3
    assert watch.counts() == {"busy_pause": 3}
    assert inner.heard == [pause] * 3


async def test_dead_lettered_messages_are_counted_by_known_reasons_and_others(
    watch: GatewayWatch,
) -> None:
    for reason in ("EnvelopeMalformed", "EnvelopeMalformed", "made up", "made up too"):
        watch.report(DeadLettered(queue=ORDERS, message_id="1", reason=reason, description=""))

    assert watch.dead_lettered == {"EnvelopeMalformed": 2, "other": 2}


async def test_the_rate_is_that_of_the_last_ten_seconds(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    watch.report(moved(600))
    await trio.sleep(9)
    before = watch.rate()
    await trio.sleep(2)

    assert (before, watch.rate(), watch.moved) == (60.0, 0.0, 600)


async def test_much_movement_takes_no_memory(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    empty = entries(watch)
    for _ in range(10_000):
        watch.report(moved(1))
        await trio.sleep(0.1)

    assert watch.rate() == pytest.approx(10.0, rel=0.1)
    assert entries(watch) <= empty + 12


async def test_an_error_is_red_for_ten_minutes(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    watch.report(STALLED)
    watch.report(STALLED)
    (alarm,) = watch.alarms()
    await trio.sleep(RED.total_seconds() + 1)

    assert (alarm.event, alarm.times) == ("syphon_stalled", 2)
    assert "pending 5" in alarm.text
    assert watch.alarms() == []


async def test_an_alarm_has_the_numbers_of_the_log(watch: GatewayWatch) -> None:
    watch.report(SyphonStalled(pending=5, seconds=373.1015719920106))
    (alarm,) = watch.alarms()

    assert alarm.text == "pending 5, seconds 373.0"


async def test_an_alarm_names_the_remedy_at_the_end_of_its_reason(watch: GatewayWatch) -> None:
    reason = (
        "the message was meant for another primary, with the fingerprint 1747f5f654e764da: the"
        " syphon of that pair moves it. If this primary has replaced that primary, start the syphon"
        " with `--adopt 1747f5f654e764da`"
    )
    watch.report(LeftUntouched(queue=queue_name("l" * 60, 0), messages=3, reason=reason))
    (alarm,) = watch.alarms()

    assert alarm.text.endswith("`--adopt 1747f5f654e764da`")


async def test_a_traceback_is_for_the_log_alone(watch: GatewayWatch) -> None:
    watch.report(ConnectionCrashed(peer="p" * 1000, traceback="secret"))
    (alarm,) = watch.alarms()

    assert "secret" not in alarm.text
    assert len(alarm.text) == LONGEST_TEXT


async def test_the_end_of_an_outage_tells_what_happened_in_it(
    watch: GatewayWatch, inner: Inner
) -> None:
    def changed(name: str, before: str) -> EntityStateChanged:
        return EntityStateChanged(
            entity=EntityPath(name), before=before, after="suspect", reason=""
        )

    def diverted(messages: int, in_doubt: bool = False) -> Diverted:
        return Diverted(
            entity=ORDERS,
            accepted_by=AcceptedBy.BACKLOG,
            queue=ORDERS,
            messages=messages,
            in_doubt=in_doubt,
        )

    def twice(messages: int, certain: bool) -> SentTwice:
        return SentTwice(entity=ORDERS, messages=messages, certain=certain)

    for event in [
        diverted(1),
        changed("found out first", "primary"),
        NamespaceLost(namespace="east", reason="refused"),
        changed("orders", "primary"),
        changed("orders", "suspect"),
        changed("bills", "primary"),
        diverted(3),
        diverted(7, in_doubt=True),
        twice(4, certain=True),
        twice(1, certain=False),
        SyphonBackedOff(entity=ORDERS, seconds=1.0, reason="no answer", in_doubt=2),
        SyphonBackedOff(entity=ORDERS, seconds=1.0, reason="busy"),
        NamespaceBack(namespace="east", seconds=9.0),
        diverted(1),
        NamespaceBack(namespace="west", seconds=1.0),
    ]:
        watch.report(event)

    assert [each for each in inner.heard if isinstance(each, NamespaceBack)] == [
        NamespaceBack(
            namespace="east",
            seconds=9.0,
            entities=3,
            diverted=10,
            twice=4,
            possibly_twice=4,
            possibly_twice_by_syphon=2,
        ),
        NamespaceBack(namespace="west", seconds=1.0),
    ]
    assert watch.possibly_twice == {"producers": 8, "syphon": 2}


async def test_connections_are_counted_by_the_protocol_of_their_endpoint(
    watch: GatewayWatch,
) -> None:
    for protocol in ("amqp", "amqp", "admin"):
        watch.report(ConnectionOpened(protocol=protocol, peer="127.0.0.1:1"))
    watch.report(ConnectionClosed(protocol="amqp", peer="127.0.0.1:1", seconds=1.0))

    assert watch.connections.open == {"amqp": 1, "admin": 1}
    assert watch.connections.opened == {"amqp": 2, "admin": 1}


async def test_changes_of_states_are_counted_by_their_cause_and_not_by_entity(
    watch: GatewayWatch,
) -> None:
    for name in ("orders", "bills"):
        watch.report(
            EntityStateChanged(
                entity=EntityPath(name), before="suspect", after="secondary", reason=name,
                cause="failed",
            )
        )  # fmt: skip

    assert watch.state_changes() == [
        StateChangeCount(before="suspect", after="secondary", cause="failed", times=2)
    ]


async def test_the_reason_why_nothing_moves_is_told_until_a_message_moves(
    watch: GatewayWatch,
) -> None:
    watch.report(SyphonBackedOff(entity=ORDERS, seconds=1.0, reason="the queue is full"))
    backed_off = watch.syphon_error
    watch.report(SyphonFailed(queue=EntityPath("backlog/0"), reason="x" * 1000))
    failed = watch.syphon_error
    watch.report(moved(1))

    assert backed_off == "orders: the queue is full"
    assert failed.startswith("backlog/0: xxx")
    assert len(failed) == LONGEST_TEXT
    assert watch.syphon_error == ""


async def test_diverted_messages_are_counted_by_entity_until_it_returns(
    watch: GatewayWatch,
) -> None:
    bills = EntityPath("bills")
    for entity, messages in ((ORDERS, 2), (EntityPath("ORDERS"), 3), (bills, 1)):
        watch.report(
            Diverted(entity=entity, accepted_by=AcceptedBy.BACKLOG, queue=ORDERS, messages=messages)
        )
    in_outage = (watch.diverted(ORDERS), watch.diverted(bills))
    watch.report(
        EntityStateChanged(entity=ORDERS, before="half-open", after="primary", reason="sent")
    )

    assert in_outage == (5, 1)
    assert (watch.diverted(ORDERS), watch.diverted(bills)) == (0, 1)


async def test_only_so_many_entities_are_counted_apart(watch: GatewayWatch) -> None:
    for number in range(MOST_DIVERTED + 10):
        watch.report(
            Diverted(
                entity=EntityPath(f"q{number}"),
                accepted_by=AcceptedBy.BACKLOG,
                queue=ORDERS,
                messages=1,
            )
        )

    assert watch.diverted(EntityPath("q0")) == 1
    assert watch.diverted(EntityPath(f"q{MOST_DIVERTED}")) == 0


@pytest.mark.parametrize(
    ("alarm", "cure"),
    [
        (STALLED, moved(1)),
        (BacklogOrphaned(pending=5, seconds=300.0), moved(1)),
        (StateNotSaved(reason="the disk is full"), StateSaved(file="state.json")),
        (AuditFailed(reason="full"), AuditRestored(file="audit.jsonl", lines=1, missing=0)),
    ],
    ids=["stalled", "orphaned", "state", "audit"],
)
async def test_an_alarm_whose_cause_has_ended_is_history(
    watch: GatewayWatch, alarm: Event, cure: Event
) -> None:
    watch.report(cure)
    watch.report(alarm)
    before = [each.over for each in watch.alarms()]
    watch.report(cure)
    after = [each.over for each in watch.alarms()]
    watch.report(alarm)

    assert (before, after, [each.over for each in watch.alarms()]) == ([False], [True], [False])
