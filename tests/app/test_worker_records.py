"""The parts of a record that are put together from what others have counted."""

import attrs
import trio

from gateway.app.assembly.records import OwnFigures, gateway_record, rate_now
from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Syphoned
from gateway.domain.health.backlog_model import DepthReading
from gateway.domain.health.process_records import CountByName
from gateway.domain.status.pair import SendCount
from gateway.domain.status.process import Workers
from tests.wire.pairgate.status import OUTAGE


async def test_the_record_of_a_gateway_has_the_entities_of_its_workers() -> None:
    sends = [SendCount(accepted_by="backlog", outcome="accepted", messages=5)]
    assert OUTAGE.pair is not None
    pair = attrs.evolve(OUTAGE.pair, sends=tuple(sends), diverted={"orders": 4, "bills": 1})
    worker = attrs.evolve(OUTAGE, pair=pair)

    async def workers() -> Workers:
        await trio.lowlevel.checkpoint()
        return Workers(running=[worker], ended=[worker])

    told = await gateway_record(Runtime(), OwnFigures(workers=workers))

    assert told.diverted == CountByName(total=10, most={"orders": 8, "bills": 2})


def test_a_syphon_tells_no_rate_once_the_backlog_is_empty() -> None:
    runtime = Runtime()

    def read(messages: int) -> None:
        now = runtime.now()
        runtime.observer.backlog.read(DepthReading(began=now, ended=now, pending=messages))

    read(20)
    runtime.observer.report(
        Syphoned(entity=EntityPath("orders"), queue=EntityPath("b"), messages=20)
    )
    moving = rate_now(runtime, 0)
    read(0)

    assert (moving, rate_now(runtime, 0)) == (2.0, 0.0)
