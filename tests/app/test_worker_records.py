"""The part of a gateway's record that its workers have counted."""

import attrs
import trio

from gateway.app.assembly.records import OwnFigures, gateway_record
from gateway.app.runtime import Runtime
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
