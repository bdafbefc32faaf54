"""How a process is, as JSON."""

import json
from datetime import UTC, datetime

import pytest

from gateway.domain.billing import Bill, Operation
from gateway.domain.errors import MessageError
from gateway.domain.status import (
    Alarm,
    BacklogStatus,
    NamespaceStatus,
    PairStatus,
    QueueStatus,
    SendCount,
    Status,
    SyphonStatus,
    TroubledEntity,
)
from gateway.wire.status import build_status, parse_status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BILL = Bill(
    operations={**dict.fromkeys(Operation, 0), Operation.SEND: 3, Operation.EMPTY: 60},
    sent=3,
    received=0,
    idle_operations=60,
    idle_seconds=3600.0,
)
WELL = Status(
    at=NOW,
    started=NOW,
    namespaces=(NamespaceStatus(name="east", kind="memory", role="primary", bill=BILL),),
)
OUTAGE = Status(
    at=NOW,
    started=NOW,
    namespaces=WELL.namespaces,
    pair=PairStatus(
        label="east",
        standings={"suspect": 0, "secondary": 1, "half-open": 0, "pinned": 0},
        entities=(
            TroubledEntity(
                entity="Orders", standing="secondary", since=NOW, reason="refused", pinned=False
            ),
        ),
        backlog=BacklogStatus(wanted=10, usable=9, pending=5, oldest_age=1.5, as_of=NOW),
        syphon=SyphonStatus(running=True, moved=7, rate=0.5, last_moved=NOW, held=1, parked=2),
        sends=(
            SendCount(leg="primary", outcome="accepted", messages=3),
            SendCount(leg="backlog", outcome="accepted", messages=5),
            SendCount(leg="", outcome="unknown", messages=1),
        ),
        inflight=10,
        max_inflight=100,
        paused=1,
        pauses=4,
    ),
    queues=(
        QueueStatus(
            queue="orders",
            active_tasks=1,
            total_tasks=2,
            held=3,
            completed=4,
            failed=5,
            poisoned=6,
            too_late=7,
            bill=BILL,
        ),
    ),
    events={"diverted": 5},
    alarms=(Alarm(event="syphon_stalled", times=2, last=NOW, text="pending 5"),),
)


@pytest.mark.parametrize("status", [WELL, OUTAGE])
def test_what_is_built_is_read(status: Status) -> None:
    assert parse_status(build_status(status)) == status


def test_what_follows_from_the_figures_is_told() -> None:
    value = json.loads(build_status(OUTAGE))

    assert value["good"] is False
    assert value["problems"] == ["entities that are secondary: 1", "syphon_stalled: pending 5"]
    bill = value["namespaces"][0]["bill"]
    assert (bill["total"], bill["per_message"], bill["per_idle_day"]) == (63, 1.0, 1440.0)


def test_without_trouble_all_is_well() -> None:
    assert json.loads(build_status(WELL))["good"] is True


def test_keys_of_another_version_are_left_out() -> None:
    value = {**json.loads(build_status(WELL)), "new": {"er": 1}}

    assert parse_status(json.dumps(value).encode()) == WELL


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"at": 1}', b"\xff"])
def test_what_is_no_status_is_refused(text: bytes) -> None:
    with pytest.raises(MessageError):
        parse_status(text)
