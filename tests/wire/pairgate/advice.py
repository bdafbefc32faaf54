"""Parts of the tests of advice that other tests need, too."""

from datetime import UTC, datetime

from gateway.domain.health.heartbeats import Heartbeat, SyphonsSeen

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
