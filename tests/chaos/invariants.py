"""Parts of the tests of invariants that other tests need, too."""

import attrs

from gateway.checker.history import (
    Attempted,
    Bounds,
    Drained,
    End,
    EntityStateMoved,
    Healed,
    RunBegan,
    Sampled,
    Way,
)
from gateway.checker.operations import (
    Acked,
    AuditBegan,
    CopyPlace,
    Delivered,
    Failed,
    Found,
    Invoked,
    QueueRead,
    Uncertain,
    Unknown,
)
from gateway.domain.message import AcceptedBy

# Bounds that follow: stall 2 + 1 + 10 + 1 = 14, return 12 + 10 + 1 = 23, drain 20 + 30 + 1 = 51.
BEGAN = RunBegan(
    at=0,
    bounds=Bounds(
        failover_interval=10,
        send_timeout=5,
        attempt_timeout=10,
        suspect_wait=1,
        ping_interval=10,
        successes_to_return=1,
        lock=20,
        longest_backoff=30,
        max_inflight=1000,
        horizon=100,
        quiet=30,
    ),
)
END = [
    Healed(at=300, backlog=0),
    Drained(at=310),
    Sampled(at=311, process="gateway", inflight=0),
    AuditBegan(at=500, queues=frozenset({"orders"})),
    QueueRead(at=501, queue="orders"),
]
SENT = Invoked(at=1, message_id="1", entity="orders", fingerprint="f")
ACKED = Acked(at=1, message_id="1", accepted_by=AcceptedBy.PRIMARY)
FAILED = Failed(at=1, message_id="1")
UNKNOWN = Unknown(at=1, message_id="1")
UNCERTAIN = Uncertain(at=1, message_id="1")
CAME = Delivered(at=2, message_id="1", entity="orders", fingerprint="f", copy="1")
AGAIN = attrs.evolve(CAME, at=3, copy="2")
WELL = [SENT, ACKED, CAME]
STUCK = Found(at=501, place=CopyPlace.BACKLOG, queue="b", message_id="1")


def attempt(at, end=End.OUTAGE, *, way=Way.PRIMARY, entity="orders", began=None, message="1"):
    return Attempted(
        at=at,
        process="gateway",
        entity=entity,
        message_ids=(message,),
        way=way,
        end=end,
        began=at if began is None else began,
    )


def moved(at, before, after, entity="orders"):
    return EntityStateMoved(at=at, process="gateway", entity=entity, before=before, after=after)


MAY_DEAD_LETTER = attrs.evolve(
    BEGAN, bounds=attrs.evolve(BEGAN.bounds, expected_reasons=frozenset({"gone"}), slack=1)
)


def run_of(records):
    return [MAY_DEAD_LETTER, *records, *END]
