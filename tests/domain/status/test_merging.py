"""The status of a gateway with workers: sums, or the newest or least of all processes."""

from datetime import UTC, datetime, timedelta

import attrs

from gateway.domain.billing import Operation, UsageReport
from gateway.domain.health.abilities import AbilityState, AbilityStatus
from gateway.domain.health.distribution import Distribution
from gateway.domain.status.figures import merged
from gateway.domain.status.pair import (
    BacklogStatus,
    PairStatus,
    SendCount,
    SendDuration,
    StateChangeCount,
    SyphonStatus,
    TroubledEntity,
)
from gateway.domain.status.process import (
    Alarm,
    ConnectionCount,
    LimitCount,
    NamespaceStatus,
    OperationDuration,
    RefusalCount,
    Status,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def values(number: int) -> Distribution:
    """A distribution with `number` values of half a second."""
    return Distribution((1.0,), (number, 0), number / 2)


def status(
    *,
    sent: int = 0,
    idle: float = 100.0,
    reach: AbilityStatus | None = None,
    usable: int = 10,
    alarm: Alarm | None = None,
) -> Status:
    usage = UsageReport(
        operations={Operation.SEND: sent},
        sent=sent,
        received=0,
        idle_operations=1,
        idle_seconds=idle,
    )
    pair = PairStatus(
        label="east",
        states={"secondary": 1},
        entities=(),
        backlog=BacklogStatus(wanted=10, usable=usable, pending=None, oldest_age=None, as_of=None),
        syphon=SyphonStatus(
            running=False, moved=0, rate=0.0, last_moved=None, backing_off=0, dead_lettered=0
        ),
        sends=(SendCount(accepted_by="primary", outcome="accepted", messages=sent),),
        inflight=sent,
        max_inflight=1000,
        paused=sent,
        pauses=sent,
        durations=(SendDuration(accepted_by="primary", error="", seconds=values(sent)),),
        refused={"Busy": sent},
        oversized=sent,
        slow_calls=sent,
        state_changes=(
            StateChangeCount(before="primary", after="suspect", cause="failed", times=sent),
        ),
    )
    space = NamespaceStatus(
        name="north",
        kind="amqp",
        role="primary",
        usage=usage,
        abilities={} if reach is None else {"reach": reach},
        operations=(OperationDuration(name="receive", error="", seconds=values(sent)),),
    )
    return Status(
        at=NOW,
        started=NOW,
        namespaces=(space,),
        pair=pair,
        events={"diverted": sent},
        alarms=() if alarm is None else (alarm,),
        refused=(RefusalCount(protocol="amqp", reason="expired", times=sent),),
        limited=(LimitCount(client="orders", limit="bytes", times=sent),),
        connections=(
            ConnectionCount(protocol="amqp", open=sent, opened=sent, refused=sent, limit=9),
        ),
        loop_lag=values(sent),
        tasks=sent,
        token_expiries={"east": NOW + timedelta(minutes=sent)},
        sends=(SendCount(accepted_by="primary", outcome="accepted", messages=sent),),
        durations=(SendDuration(accepted_by="primary", error="", seconds=values(sent)),),
    )


def pair_of(status: Status) -> PairStatus:
    assert status.pair is not None
    return status.pair


def test_counts_are_added() -> None:
    total = merged(status(sent=1), [status(sent=2), status(sent=4)])
    pair, (space,) = pair_of(total), total.namespaces

    assert pair.sends == (SendCount(accepted_by="primary", outcome="accepted", messages=7),)
    assert (pair.inflight, pair.max_inflight, pair.pauses) == (7, 3000, 7)
    assert (space.usage.sent, space.usage.operations[Operation.SEND]) == (7, 7)
    assert total.events == {"diverted": 7}
    assert total.refused == (RefusalCount(protocol="amqp", reason="expired", times=7),)
    assert pair.durations == (SendDuration(accepted_by="primary", error="", seconds=values(7)),)
    assert (pair.refused, pair.oversized, pair.slow_calls) == ({"Busy": 7}, 7, 7)
    assert [each.times for each in pair.state_changes] == [7]
    assert (total.loop_lag, total.tasks) == (values(7), 7)
    assert total.token_expiries == {"east": NOW + timedelta(minutes=1)}
    assert (total.sends, total.durations) == (pair.sends, pair.durations)
    assert space.operations == (OperationDuration(name="receive", error="", seconds=values(7)),)


def test_connections_of_all_processes_have_the_limit_of_all() -> None:
    total = merged(status(sent=1), [status(sent=2)], [status(sent=4)])

    assert total.connections == (
        ConnectionCount(protocol="amqp", open=3, opened=7, refused=7, limit=9),
    )


def test_an_entity_that_pauses_in_several_processes_is_one() -> None:
    assert pair_of(merged(status(), [status(sent=2), status(sent=3)])).paused == 3


def test_states_are_the_parents() -> None:
    assert pair_of(merged(status(), [status()])).states == {"secondary": 1}


def test_diverted_messages_of_an_entity_are_added() -> None:
    def with_entity(name: str, diverted: int) -> Status:
        entity = TroubledEntity(
            entity=name, state="secondary", since=NOW, reason="", pinned=False, diverted=diverted
        )
        found = status()
        assert found.pair is not None
        return attrs.evolve(found, pair=attrs.evolve(found.pair, entities=(entity,)))

    told = merged(
        with_entity("orders", 1), [with_entity("Orders", 2), with_entity("bills", 4), status()]
    )

    assert told.pair is not None
    assert [(each.entity, each.diverted) for each in told.pair.entities] == [("orders", 3)]


def test_a_queue_that_backs_off_in_one_process_is_not_usable() -> None:
    assert pair_of(merged(status(), [status(usable=9)])).backlog.usable == 9


def test_a_namespace_is_idle_while_no_process_works() -> None:
    usage = merged(status(idle=500.0), [status(idle=90.0)]).namespaces[0].usage

    assert (usage.idle_seconds, usage.idle_operations) == (90.0, 2)


def test_the_newest_evidence_of_an_ability_counts() -> None:
    old = AbilityStatus(state=AbilityState.NO, seen=NOW)
    new = AbilityStatus(state=AbilityState.YES, seen=NOW + timedelta(seconds=1))
    none = AbilityStatus()

    for order in ([old, new, none], [new, none, old], [none, old, new]):
        total = merged(status(reach=order[0]), [status(reach=each) for each in order[1:]])
        assert total.namespaces[0].abilities == {"reach": new}


def test_an_alarm_of_several_processes_is_one_with_the_newest_text() -> None:
    first = Alarm(event="syphon_stalled", times=1, last=NOW, text="first")
    last = attrs.evolve(first, times=2, last=NOW + timedelta(seconds=1), text="last")

    total = merged(status(alarm=last), [status(alarm=first)])

    assert total.alarms == (attrs.evolve(last, times=3),)


def test_of_an_ended_worker_only_the_counts_are_left() -> None:
    was = status(sent=2, usable=3, reach=AbilityStatus(state=AbilityState.NO, seen=NOW))
    total = merged(status(sent=1), (), [was])
    pair, (space,) = pair_of(total), total.namespaces

    assert (pair.inflight, pair.max_inflight, pair.paused) == (1, 1000, 1)
    assert pair.backlog.usable == 10
    assert (space.usage.sent, space.usage.idle_seconds) == (3, 100.0)
    assert space.abilities == {}
    assert (total.tasks, total.token_expiries) == (1, {"east": NOW + timedelta(minutes=1)})
    assert merged(was, (), [was]).events == {"diverted": 4}
