"""Records and orders of processes, for tests that need only some of their fields."""

from gateway.domain.health.process_records import ProcessRecord
from gateway.domain.operators.control import Action
from gateway.domain.operators.given_orders import GivenOrder
from tests.harness.clocks import VirtualClock


def record_of(process: str = "p", **fields: object) -> ProcessRecord:
    """A record of now, of a gateway without figures unless `fields` say more."""
    now = VirtualClock()()
    usual = {
        "host": "here",
        "kind": "serve",
        "pid": 1,
        "version": "1",
        "started": now,
        "at": now,
        "interval": 600.0,
    }
    return ProcessRecord(process=process, **{**usual, **fields})  # type: ignore[arg-type]


def order_of(action: Action = Action.FAILOVER, **fields: object) -> GivenOrder:
    """An order of now for all entities, unless `fields` say more."""
    usual = {
        "revision": 1,
        "process": "p",
        "targets": ("*",),
        "operator": "ann",
        "at": VirtualClock()(),
    }
    return GivenOrder(action=action, **{**usual, **fields})  # type: ignore[arg-type]
