"""Parts of the tests of advice that other tests need, too."""

from datetime import UTC, datetime

from gateway.domain.health.heartbeats import Heartbeat, SyphonsSeen
from gateway.domain.status.pair import BacklogStatus, PairStatus, SyphonStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALIVE = Heartbeat(
    syphon="a",
    host="gw-1",
    process="syphon",
    pid=42,
    started=NOW,
    at=NOW,
    interval=30.0,
    moved=7,
)


def seen(*alive: Heartbeat) -> SyphonsSeen:
    return SyphonsSeen(at=NOW, alive=alive, last=NOW, since=NOW, unknown="")


def pair(usable: int | None = 9, **states: int) -> PairStatus:
    return PairStatus(
        label="east",
        states={name.replace("_", "-"): count for name, count in states.items()},
        entities=(),
        backlog=BacklogStatus(wanted=10, usable=usable, pending=5, oldest_age=1.5, as_of=NOW),
        syphon=SyphonStatus(
            running=True, moved=0, rate=0.0, last_moved=None, backing_off=0, dead_lettered=0
        ),
        sends=(),
        inflight=0,
        max_inflight=100,
        paused=0,
        pauses=0,
    )
