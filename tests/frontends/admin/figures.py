"""Parts of the tests of figures that other tests need, too."""

import trio

from gateway.domain.status.process import Status
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.auth import Authorizer
from gateway.telemetry.metrics import exposition
from tests.frontends.rest_client import POLICIES, wall_clock
from tests.wire.pairgate.status import OUTAGE


async def read() -> Status:
    await trio.lowlevel.checkpoint()
    return OUTAGE


def frontend(*, accepts_well_known_key: bool = True, closed: bool = False) -> FiguresFrontend:
    policies = POLICIES if closed else ()
    authorizer = Authorizer(
        policies, wall_clock=wall_clock, accepts_well_known_key=accepts_well_known_key
    )
    return FiguresFrontend(authorizer=authorizer, read=read, exposition=exposition)
