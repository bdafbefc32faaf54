"""Records of a pair's processes: what one version writes and another reads, within 4 KiB."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.envelope import EnvelopeKey
from gateway.domain.health.heartbeats import Heartbeat
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import (
    MOST_BYTES,
    MOST_NAMED,
    CountByName,
    GatewayRecord,
    PairRecords,
    ProcessRecord,
    SyphonRecord,
)
from gateway.domain.health.record_coding import WrongSeal, body_of, heartbeat_value, record_in
from gateway.domain.operators.control import Action
from gateway.domain.operators.given_orders import GivenOrder

LABEL = "east"
KEY = EnvelopeKey(id="k1", key=b"k" * 32)
NOW = datetime(2026, 11, 29, tzinfo=UTC)


def _entities(number: int) -> dict[str, int]:
    return {f"entity-{index}": index for index in range(number)}


_texts = st.text(max_size=30)
_names = st.sampled_from(["orders", "invoices/*", "a" * 250, "b" * 90])
_counts = st.integers(0, 10**9)
_moments = st.datetimes(
    datetime(2020, 1, 1),
    datetime(2035, 1, 1),
    timezones=st.just(UTC),
)
_counts_by_name = st.builds(
    CountByName,
    total=_counts,
    most=st.integers(0, 80).map(_entities),
    is_whole=st.booleans(),
)
_orders = st.builds(
    GivenOrder,
    revision=_counts,
    process=_texts,
    action=st.sampled_from(Action),
    targets=st.lists(_names, min_size=1, max_size=9).map(tuple),
    operator=_texts,
    at=_moments,
    reason=st.text(max_size=200),
    until=st.none() | _moments,
    rate=st.none() | st.floats(0.1, 1e6),
)
_records = st.builds(
    ProcessRecord,
    process=_texts,
    host=_texts,
    kind=st.sampled_from(["serve", "syphon"]),
    pid=_counts,
    started=_moments,
    at=_moments,
    interval=st.floats(0.1, 80_000.0),
    version=_texts,
    revision=_counts,
    lifetime=st.timedeltas(timedelta(seconds=1), timedelta(hours=1)),
    ended=st.booleans(),
    sees_others=st.none() | st.booleans(),
    orders=st.lists(_orders, max_size=6).map(tuple),
    gateway=st.none()
    | st.builds(
        GatewayRecord,
        diverted=_counts_by_name,
        spool=st.none() | _counts,
        drills=st.lists(_texts, max_size=3).map(tuple),
    ),
    syphon=st.none()
    | st.builds(
        SyphonRecord,
        moved=_counts_by_name,
        in_hand=st.none() | _counts,
        dead_lettered=st.dictionaries(_texts, _counts, max_size=8),
        rate=st.none() | st.floats(0.0, 1e6),
        paused=st.booleans(),
        held_back=st.lists(_names, max_size=20).map(tuple),
        follows=st.none() | _counts,
    ),
    problems=st.lists(
        st.builds(
            Problem,
            kind=_names,
            entity=_names,
            detail=_texts,
            last=st.none() | _moments,
            text=st.integers(0, 400).map("ü".__mul__),
            since=st.none() | _moments,
            remedy=_texts,
        ),
        max_size=8,
    ).map(tuple),
)


def _syphon(**changes: Any) -> ProcessRecord:
    record = ProcessRecord(
        process="p1",
        host="gw-1",
        kind="syphon",
        pid=7,
        started=NOW,
        at=NOW,
        interval=30.0,
        syphon=SyphonRecord(moved=CountByName(total=12, most={"orders": 12})),
    )
    return attrs.evolve(record, **changes)


@given(_records)
def test_a_record_fits_into_its_room_and_its_totals_survive(record: ProcessRecord) -> None:
    body = body_of(record, LABEL, (KEY,))
    found = record_in(body, LABEL, (KEY,))

    assert len(body) <= MOST_BYTES
    assert found is not None
    assert len(found.orders) + found.orders_left_out == len(record.orders)
    assert len(found.problems) + found.problems_left_out == len(record.problems)
    if record.gateway is not None:
        assert found.gateway is not None
        _check(record.gateway.diverted, found.gateway.diverted)
    if record.syphon is not None:
        assert found.syphon is not None
        _check(record.syphon.moved, found.syphon.moved)
        dead = (record.syphon.dead_lettered, found.syphon.dead_lettered)
        assert sum(dead[0].values()) == sum(dead[1].values())


def _check(before: CountByName, after: CountByName) -> None:
    assert after.total == before.total
    assert after.most.items() <= before.most.items()
    assert after.is_whole == (before.is_whole and len(after.most) == len(before.most))


def test_a_record_that_has_room_is_read_as_it_was_written() -> None:
    order = GivenOrder(
        revision=5,
        process="p1",
        action=Action.FAILOVER,
        targets=("orders", "inv*"),
        operator="ann",
        at=NOW,
        reason="maintenance",
        until=NOW + timedelta(hours=1),
    )
    record = _syphon(
        version="1.2",
        sees_others=False,
        orders=(order,),
        gateway=GatewayRecord(diverted=CountByName(total=3, most={"orders": 3}), spool=2),
        problems=(Problem(kind="a", entity="b", text="it fails", since=NOW, remedy="mend it"),),
    )

    assert record_in(body_of(record, LABEL, (KEY,)), LABEL, (KEY,)) == record
    assert record_in(body_of(record, LABEL, ()), LABEL, ()) == record


def test_the_oldest_orders_are_cut_last_and_their_number_is_told() -> None:
    orders = tuple(
        GivenOrder(
            revision=number,
            process="p1",
            action=Action.PAUSE,
            targets=(f"{'long' * 40}/{number}",),
            operator="ann",
            at=NOW,
        )
        for number in range(40)
    )
    problems = (Problem(text="x" * 300),) * 20
    moved = CountByName(total=5, most={f"entity-{number}": 1 for number in range(100)})
    record = _syphon(orders=orders, problems=problems, syphon=SyphonRecord(moved=moved))

    found = record_in(body_of(record, LABEL, (KEY,)), LABEL, (KEY,))

    assert found is not None
    assert found.syphon is not None
    assert (found.syphon.moved, found.problems) == (CountByName(total=5, is_whole=False), ())
    assert found.orders_left_out > 0
    assert found.orders == orders[found.orders_left_out :]


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["pairgate-syphon", "pairgate-record", "syphon", "at"]),
                inner,
                max_size=3,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_other_bytes_are_no_record(body: bytes) -> None:
    assert record_in(body, LABEL, ()) is None


@given(st.data())
def test_a_damaged_field_makes_the_record_none_or_sound(data: st.DataObject) -> None:
    record = _syphon(gateway=GatewayRecord(diverted=CountByName(total=3, most={"orders": 3})))
    content = json.loads(body_of(record, LABEL, ()))
    inner = json.loads(content["pairgate-record"])
    place = data.draw(st.sampled_from(sorted(inner)))
    inner[place] = data.draw(
        st.none() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=3)
    )
    content["pairgate-record"] = json.dumps(inner)

    found = record_in(json.dumps(content).encode(), LABEL, ())

    assert found is None or found.kept_for > timedelta()


def test_a_record_with_a_wrong_seal_counts_as_none() -> None:
    body = body_of(_syphon(), LABEL, (KEY,))
    other = EnvelopeKey(id="k1", key=b"x" * 32)

    with pytest.raises(WrongSeal):
        record_in(body, LABEL, (other,))
    with pytest.raises(WrongSeal):
        record_in(body, "west", (KEY,))
    with pytest.raises(WrongSeal):
        record_in(body_of(_syphon(), LABEL, ()), LABEL, (KEY,))
    with pytest.raises(WrongSeal):
        record_in(body.replace(b"gw-1", b"gw-2"), LABEL, (KEY,))
    assert record_in(body, LABEL, (other, KEY)) is not None


def test_a_heartbeat_of_an_earlier_version_is_read_without_a_seal() -> None:
    heartbeat = Heartbeat(
        syphon="s1",
        host="old",
        process="serve",
        pid=3,
        started=NOW,
        at=NOW,
        interval=30.0,
        moved=9,
        paused=True,
    )
    body = json.dumps({"pairgate-syphon": heartbeat_value(heartbeat)}).encode()

    found = record_in(body, LABEL, (KEY,))

    assert found is not None
    assert found.syphon == SyphonRecord(moved=CountByName(total=9), paused=True)
    assert (found.process, found.place) == ("s1", "serve on old (process 3)")
    assert (found.version, found.syphon.follows, found.sees_others) == ("", None, None)
    assert found.heartbeat() == heartbeat


def test_earlier_versions_read_a_syphons_record_as_a_heartbeat_and_no_other() -> None:
    content = json.loads(body_of(_syphon(), LABEL, (KEY,)))
    gateway = _syphon(kind="serve", syphon=None, gateway=GatewayRecord())

    assert content["pairgate-syphon"] == {
        "syphon": "p1",
        "host": "gw-1",
        "process": "syphon",
        "pid": 7,
        "started": NOW.isoformat(),
        "at": NOW.isoformat(),
        "interval": 30.0,
        "moved": 12,
        "paused": False,
    }
    assert "pairgate-syphon" not in json.loads(body_of(gateway, LABEL, (KEY,)))


def test_the_date_of_the_secondary_counts_where_it_tells_one() -> None:
    later = NOW + timedelta(days=900)
    body = body_of(_syphon(), LABEL, ())

    found = record_in(body, LABEL, (), enqueued=later)

    assert found is not None
    assert found.at == later


def test_only_syphons_are_seen_as_syphons() -> None:
    gateway = _syphon(process="p2", kind="serve", syphon=None, gateway=GatewayRecord())
    old = _syphon(process="p3", ended=True)
    records = PairRecords(
        at=NOW, alive=(_syphon(), gateway), ended=(old,), last_syphon=NOW, since=NOW, unknown=""
    )

    seen = records.syphons_seen
    without = attrs.evolve(records, alive=(gateway,)).syphons_seen

    assert [each.syphon for each in seen.alive] == ["p1"]
    assert (seen.gone, seen.count) == (None, 1)
    assert without.gone is not None
    assert (without.gone.syphon, without.count) == ("p3", 0)
    assert PairRecords().syphons_seen.count is None


def test_records_name_the_entities_of_processes_that_run_or_have_ended() -> None:
    diverting = GatewayRecord(diverted=CountByName(total=1, most={"far": 1}))
    records = PairRecords(alive=(_syphon(syphon=None, gateway=diverting),), ended=(_syphon(),))

    assert list(records.names()) == ["far", "orders"]


def test_the_processes_that_no_order_reaches_are_named_up_to_a_number() -> None:
    blind = _syphon(version="1", sees_others=False)
    few = PairRecords(alive=(blind, _syphon(version="1", sees_others=True), _syphon()))
    many = PairRecords(alive=(blind,) * (MOST_NAMED + 5), stale=(blind,))

    assert few.not_reached == (
        "syphon on gw-1 (process 7): it may not read on the secondary",
        "syphon on gw-1 (process 7): an earlier version, which follows no orders of others",
    )
    assert len(many.not_reached) == MOST_NAMED + 1
    assert many.not_reached[-1] == "and 5 more"


def test_the_processes_of_a_pair_are_told_with_their_state_and_whether_orders_reach_them() -> None:
    here = _syphon(process="own", version="1.2", sees_others=True)
    records = PairRecords(
        alive=(here, _syphon(process="p2", sees_others=False)),
        stale=(_syphon(process="p3"),),
        ended=(_syphon(process="p4", ended=True),),
    )

    found = records.processes("own")

    assert [each.state for each in found] == ["alive", "alive", "silent", "ended"]
    assert [each.here for each in found] == [True, False, False, False]
    assert [each.reads for each in found] == [True, False, None, None]
    assert (found[0].name, found[0].version, found[0].seen) == (here.place, "1.2", NOW)


def test_spools_with_messages_and_drills_are_told_to_people() -> None:
    gateway = GatewayRecord(spool=2, drills=("namespace north, refuse, by ann",))
    told = [
        _syphon(gateway=each).texts for each in (gateway, GatewayRecord(spool=0), GatewayRecord())
    ]

    assert told == [
        ("2 messages wait in its spool", "a drill: namespace north, refuse, by ann"),
        (),
        (),
    ]
