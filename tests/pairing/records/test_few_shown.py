"""Azure Storage shows 32 messages of a queue: records of a pair's processes don't fill it."""

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
import trio
from trio.testing import MockClock

from gateway.domain import backlog
from gateway.domain.entity import QueueProperties
from gateway.domain.health.process_records import CountByName, GatewayRecord, ProcessRecord
from gateway.domain.operators.control import Action
from gateway.domain.operators.given_orders import GivenOrder
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.records.writer import USUAL, RecordWriter
from gateway.wire.http.messages import Request, Response
from gateway.wire.storage_queue.errors import Trace, build_refusal
from tests.brokers.storage_queue.harness import Harness, harness
from tests.pairing.harness import LABEL, Events
from tests.pairing.records.processes import KEYS

QUEUE = backlog.heartbeat_queue(LABEL)
HOUR = 3600.0
REFUSED = build_refusal("AuthorizationPermissionMismatch", Trace(request_id="id", time="now"))


async def may_only_send(
    request: Request, handle: Callable[[Request], Awaitable[Response]]
) -> Response:
    await trio.lowlevel.checkpoint()
    return REFUSED if request.method == "DELETE" else await handle(request)


def writer_of(here: Harness, process: str, orders: tuple[GivenOrder, ...] = ()) -> RecordWriter:
    """A gateway that diverts all the time."""

    async def describe() -> ProcessRecord:
        await trio.lowlevel.checkpoint()
        now = here.clock()
        return ProcessRecord(
            process=process,
            host=process,
            kind="serve",
            pid=1,
            version="1",
            started=now,
            at=now,
            interval=USUAL,
            orders=orders,
            gateway=GatewayRecord(diverted=CountByName(total=int(trio.current_time()))),
        )

    rng = random.Random(process)
    return RecordWriter(
        secondary=here.broker,
        label=LABEL,
        keys=lambda: KEYS,
        describe=describe,
        interval=USUAL,
        rng=rng,
        new_id=lambda: f"{process}-{rng.random()}",
        observer=Events(),
    )


@pytest.mark.parametrize(("gateways", "sends_only"), [(24, False), (12, True)])
async def test_the_order_of_one_gateway_is_seen_behind_the_records_of_many_that_divert(
    autojump_clock: MockClock, gateways: int, sends_only: bool
) -> None:
    async with harness() as here, trio.open_nursery() as nursery:
        await here.broker.create_queue(QUEUE, QueueProperties())
        here.account.fault = may_only_send if sends_only else None
        for number in range(gateways):
            nursery.start_soon(writer_of(here, f"p{number}").run)
        await trio.sleep(2 * HOUR)
        order = GivenOrder(
            revision=1,
            process="ordering",
            action=Action.FAILOVER,
            targets=("orders",),
            operator="ann",
            at=here.clock(),
            until=here.clock() + timedelta(hours=1),
        )
        nursery.start_soon(writer_of(here, "ordering", (order,)).run)
        await trio.sleep(1)
        reader = RecordReader(
            secondary=here.broker, label=LABEL, clock=here.clock, keys=lambda: KEYS
        )
        known = await reader.look()
        nursery.cancel_scope.cancel()

    assert known.orders == (order,)
    assert len(known.alive) == gateways + 1


async def test_a_gateway_that_ends_leaves_its_last_word_alone(autojump_clock: MockClock) -> None:
    async with harness() as here:
        await here.broker.create_queue(QUEUE, QueueProperties())
        with trio.move_on_after(HOUR):
            await writer_of(here, "p").run()
        left = await here.broker.peek(QUEUE, limit=100)
        known = await RecordReader(
            secondary=here.broker, label=LABEL, clock=here.clock, keys=lambda: KEYS
        ).look()

    assert len(left) == 1
    assert [each.process for each in known.ended] == ["p"]
