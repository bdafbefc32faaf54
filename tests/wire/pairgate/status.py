"""Parts of the tests of status that other tests need, too."""

from datetime import UTC, datetime, timedelta

import attrs

from gateway.app.status.sections import QUEUES
from gateway.domain.billing import Operation, UsageReport
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.errors import Unreachable
from gateway.domain.health.abilities import Abilities, Ability
from gateway.domain.health.depth_history import QueueDepth
from gateway.domain.health.distribution import Distribution
from gateway.domain.health.expiry import Expiry
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.domain.status.listening import QueueStatus
from gateway.domain.status.pair import (
    BacklogStatus,
    BusyEntity,
    PairStatus,
    SendCount,
    SendDuration,
    SpoolStatus,
    StateChangeCount,
    SyphonStatus,
    TroubledEntity,
)
from gateway.domain.status.process import (
    Alarm,
    CommitStatus,
    ConnectionCount,
    LimitCount,
    NamespaceStatus,
    OperationDuration,
    RefusalCount,
    Status,
)
from gateway.extensions.drill.order import Drill, DrillFault
from gateway.extensions.drill.section import DRILL
from gateway.extensions.hedging.status import SECTION as HEDGING
from gateway.extensions.hedging.status import HedgingStatus
from gateway.extensions.order.status import ORDER, OrderStatus
from tests.wire.pairgate.advice import ALIVE

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = Distribution((0.005, 0.1), (2, 1, 1), 0.75)  # of four
USAGE = UsageReport(
    operations={**dict.fromkeys(Operation, 0), Operation.SEND: 3, Operation.EMPTY: 60},
    sent=3,
    received=0,
    idle_operations=60,
    idle_seconds=3600.0,
)
WELL = Status(
    at=NOW,
    started=NOW,
    namespaces=(NamespaceStatus(name="east", kind="memory", role="primary", usage=USAGE),),
)
OUTAGE = Status(
    at=NOW,
    started=NOW,
    namespaces=(
        attrs.evolve(
            WELL.namespaces[0],
            abilities=Abilities()
            .worked(Ability.RECEIVE, NOW)
            .failed(Ability.SEND, Unreachable("refused"), NOW + timedelta(seconds=10))
            .statuses(NOW + timedelta(seconds=10)),
            operations=(
                OperationDuration(name="receive", error="", seconds=SECONDS),
                OperationDuration(name="complete", error="LockLost", seconds=SECONDS),
            ),
        ),
    ),
    pair=PairStatus(
        label="east",
        states={"suspect": 0, "secondary": 1, "half-open": 0, "pinned": 0},
        entities=(
            TroubledEntity(
                entity="Orders", state="secondary", since=NOW, reason="refused", pinned=False
            ),
        ),
        backlog=BacklogStatus(
            wanted=10,
            usable=9,
            pending=5,
            oldest_age=1.5,
            as_of=NOW,
            dead_letters=DeadLetters(messages=2, oldest_age=60.0, reasons={"EnvelopeMalformed": 2}),
            queues={
                "east/x-servicebus-transfer/0": QueueDepth(pending=5, oldest_age=1.5),
                "east/x-servicebus-transfer/1": QueueDepth(pending=0, oldest_age=None),
            },
            syphons=SyphonsSeen(at=NOW, alive=(ALIVE,), last=NOW, since=NOW, unknown=""),
        ),
        syphon=SyphonStatus(
            running=True,
            moved=7,
            rate=0.5,
            last_moved=NOW,
            backing_off=1,
            dead_lettered=2,
            stalled=True,
            copies={"received": 3, "sending": 0},
        ),
        sends=(
            SendCount(accepted_by="primary", outcome="accepted", messages=3),
            SendCount(accepted_by="backlog", outcome="accepted", messages=5),
            SendCount(accepted_by="", outcome="unknown", messages=1, error="NoAnswer"),
        ),
        inflight=10,
        max_inflight=100,
        paused=1,
        pauses=4,
        busy=(BusyEntity(entity="Orders", seconds=90.0, reason="throttled", text="slow down"),),
        durations=(
            SendDuration(accepted_by="primary", error="", seconds=SECONDS),
            SendDuration(accepted_by="", error="NoAnswer", seconds=SECONDS),
        ),
        refused={"MessageTooLarge": 2},
        oversized=4,
        possibly_twice={"producers": 3, "syphon": 1},
        slow_calls=6,
        state_changes=(
            StateChangeCount(before="suspect", after="secondary", cause="failed", times=2),
        ),
        spool=SpoolStatus(
            pending=3,
            oldest_age=2.5,
            rate_in=1.5,
            rate_out=0.0,
            free_bytes=1024,
            dead_letters=DeadLetters(messages=1, oldest_age=30.0, reasons={"EntityNotFound": 1}),
        ),
    ),
    events={"diverted": 5},
    alarms=(Alarm(event="syphon_stalled", times=2, last=NOW, text="pending 5"),),
    refused=(RefusalCount(protocol="amqp", reason="wrong-key", times=3),),
    limited=(LimitCount(client="orders", limit="requests", times=4),),
    connections=(ConnectionCount(protocol="amqp", open=2, opened=5, refused=1, limit=1000),),
    commits=(CommitStatus(name="east", seconds=SECONDS, operations=SECONDS),),
    loop_lag=SECONDS,
    tasks=70,
    sections={
        ORDER: OrderStatus(
            away=3, unknown=1, waiting=2, leases=1, missed=4, forwarded={"accepted": 5}
        ),
        HEDGING: HedgingStatus(hedged=6, not_hedged=2),
        DRILL: Drill(
            namespace="east",
            targets=("*",),
            fault=DrillFault.HANG,
            delay=2.0,
            reason="game day",
            operator="ann",
            since=NOW,
            until=NOW + timedelta(seconds=30),
        ),
        QUEUES: (
            QueueStatus(
                queue="orders",
                active_tasks=1,
                total_tasks=2,
                locked=3,
                completed=4,
                failed=5,
                poisoned=6,
                too_late=7,
                usage=USAGE,
                handled={"": SECONDS, "ValueError": SECONDS},
            ),
        ),
    },
    token_expiries={"east": NOW},
    expiries=(
        Expiry(
            setting="endpoints[0].tls.certificate",
            file="server.pem",
            at=NOW,
            certificate="CN=localhost, serial 1f",
            urgency=2,
            refused="server.key: no key",
        ),
    ),
)
