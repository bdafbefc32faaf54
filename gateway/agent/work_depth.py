"""
Load of queues, as a gateway's admin endpoint reports it, and load of this machine's processors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.agent.process_pool import Work
from gateway.app.operations.admin_endpoint import AdminChoice, AdminEndpoint, admin_at, find_admin
from gateway.app.operations.asking import ANSWER_SECONDS, ask
from gateway.config.options import Config
from gateway.deadlines import answered_within
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unavailable
from gateway.wire.pairgate.scale import Figures, parse_figures

PROC_STAT: Final = Path("/proc/stat")  # of Linux
_IDLE: Final = slice(3, 5)  # idle, and waiting for a disk: proc_stat(5)


@attrs.define(eq=False, kw_only=True)
class ScaleReader:
    """Asks the gateway that the configuration names, or the local one."""

    config: Config
    choice: AdminChoice = attrs.field(factory=AdminChoice)
    _endpoint: AdminEndpoint | None = attrs.field(default=None, init=False)
    _found: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def look(self, queues: Sequence[EntityPath]) -> Work:
        """
        The load of all these queues together.

        Raises:
            BrokerError: no gateway answers, or it doesn't know the load.
        """
        try:
            with answered_within(ANSWER_SECONDS, "from a gateway", error=Unavailable):
                figures = await self._ask(queues)
        except BrokerError:
            self._endpoint = None  # the next gateway may have another address
            raise
        return _sum(figures)

    async def endpoint(self) -> AdminEndpoint:
        """The gateway's address, once a gateway has answered."""
        await trio.lowlevel.checkpoint()
        while self._endpoint is None:
            await self._found.wait()
        return self._endpoint

    async def _ask(self, queues: Sequence[EntityPath]) -> list[Figures]:
        endpoint = self._endpoint or await self._find()
        text = endpoint.authorization(Right.LISTEN)
        async with endpoint.client() as client:
            found = [
                parse_figures(await ask(client, text, f"/scale/{queue.name}")) for queue in queues
            ]
        self._endpoint = endpoint
        self._found.set()
        return found

    async def _find(self) -> AdminEndpoint:
        url = self.config.agent.gateway
        if url is not None and self.choice.url is None:
            await trio.lowlevel.checkpoint()
            return admin_at(self.config, url, "agent.gateway", self.choice)
        endpoint = await find_admin(self.config, self.choice)
        if endpoint is None:
            raise Unavailable("no gateway answers at an `admin` endpoint of this configuration")
        return endpoint


def _sum(figures: Sequence[Figures]) -> Work:
    """The sum of depths and the maximum age; None if one of them is unknown."""
    depths = [each.depth for each in figures if each.depth is not None]
    ages = [each.age for each in figures if each.age is not None]
    return Work(
        depth=sum(depths) if len(depths) == len(figures) else None,
        oldest_age=max(ages, default=None),
    )


@attrs.define(eq=False)
class ProcessorLoad:
    """The share of time for which this machine's processors were busy between two calls."""

    _file: Path = PROC_STAT
    _before: tuple[int, int] | None = attrs.field(default=None, init=False)

    def __call__(self) -> float | None:
        """0 to 1; None at the first call, and if the system doesn't report it."""
        try:
            fields = self._file.read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) for field in fields]  # the other fields are contained in the first ones
        total, idle = sum(ticks), sum(ticks[_IDLE])
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return None
        return 1.0 - (idle - before[1]) / (total - before[0])
