"""The events of a process feed the model of its backlog."""

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Diverted, Syphoned
from gateway.domain.health.backlog_model import DepthReading
from gateway.domain.message import AcceptedBy
from gateway.telemetry.watch import CountingMoves, GatewayWatch
from tests.harness.clocks import VirtualClock

ORDERS = EntityPath("orders")


async def test_the_spool_is_no_part_of_the_backlog() -> None:
    clock = VirtualClock()

    class Silent:
        def report(self, event: object) -> None:
            """Nothing to do."""

    watch = GatewayWatch(Silent(), clock)
    watch.backlog.read(DepthReading(began=clock(), ended=clock(), pending=0))
    moves = CountingMoves(watch, clock)
    for accepted_by in (AcceptedBy.BACKLOG, AcceptedBy.SPOOL):
        watch.report(Diverted(entity=ORDERS, accepted_by=accepted_by, queue=ORDERS, messages=5))
    moves.report(Syphoned(entity=ORDERS, queue=ORDERS, messages=2))
    watch.report(Syphoned(entity=ORDERS, queue=ORDERS, messages=5))  # the spool's

    assert watch.backlog.depth(clock()).pending == 3
    assert watch.moved == 7
