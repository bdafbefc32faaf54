"""
Load of queues, as a gateway's admin endpoint reports it, and load of this machine's processors.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import attrs
import trio

from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.admin_endpoint import AdminEndpoint, admin_at, find_admin
from gateway.app.operations.asking import ask
from gateway.app.operations.gateway_keys import GatewayKeys
from gateway.deadlines import answered_within
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, Unavailable
from gateway.listening.agent.process_pool import ListenerLoad
from gateway.net.http.client import HttpClient
from gateway.wire.pairgate.control_call import ANSWER_SECONDS
from gateway.wire.pairgate.scale import (
    MISSING,
    EntityFigures,
    parse_all_figures,
    parse_figures,
    query_texts,
)

PROC_STAT: Final = Path("/proc/stat")  # of Linux
_IDLE: Final = slice(3, 5)  # idle, and waiting for a disk: proc_stat(5)


@attrs.define(eq=False, kw_only=True)
class ScaleReader:
    """Reads the load from the gateway that the configuration names, or from the local one."""

    keys: GatewayKeys
    choice: AdminChoice = attrs.field(factory=AdminChoice)
    _endpoint: AdminEndpoint | None = attrs.field(default=None, init=False)
    _found: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def poll(self, queues: Sequence[EntityPath]) -> ListenerLoad:
        """
        The load of all these queues together.

        Raises:
            BrokerError: no gateway answers, or it doesn't know the load.
        """
        return sum_of(await self.figures(queues))

    async def figures(self, queues: Sequence[EntityPath]) -> Sequence[EntityFigures]:
        """
        The figures of each of these queues. A missing queue among several counts as empty.

        Raises:
            EntityNotFound: no queue of them exists.
            BrokerError: no gateway answers, or it doesn't know the load.
        """
        try:
            with answered_within(ANSWER_SECONDS, "from a gateway", error=Unavailable):
                figures = await self._ask(queues)
        except BrokerError:
            self._endpoint = None  # the next gateway may have another address
            raise
        if all(each.status == MISSING for each in figures):
            names = ", ".join(queue.name for queue in queues[:10])
            raise EntityNotFound(f"none of these queues exists: {names}")
        return figures

    async def endpoint(self) -> AdminEndpoint:
        """The gateway's address, once a gateway has answered."""
        while self._endpoint is None:
            await self._found.wait()
        return self._endpoint

    async def _ask(self, queues: Sequence[EntityPath]) -> list[EntityFigures]:
        endpoint = self._endpoint or await self._find()
        text = self.keys.authorization(endpoint, Right.LISTEN)
        async with endpoint.client() as client:
            found = await self._ask_all(client, text, queues)
        self._endpoint = endpoint
        self._found.set()
        return found

    async def _ask_all(
        self, client: HttpClient, text: str | None, queues: Sequence[EntityPath]
    ) -> list[EntityFigures]:
        if len(queues) > 1:
            with suppress(EntityNotFound):  # a gateway of an older version knows single queues only
                return [
                    figures
                    for query, _ in query_texts(queues)
                    for figures in parse_all_figures(await ask(client, text, f"/scale?{query}"))
                ]
        return [
            parse_figures(await ask(client, text, f"/scale/{quote(queue.name)}"))
            for queue in queues
        ]

    async def _find(self) -> AdminEndpoint:
        config = self.keys.config
        url = config.agent.gateway
        if url is not None and self.choice.url is None:
            return admin_at(config, url, "agent.gateway", self.choice)
        endpoint = await find_admin(config, self.choice)
        if endpoint is None:
            raise Unavailable("no gateway answers at an `admin` endpoint of this configuration")
        return endpoint


def sum_of(figures: Sequence[EntityFigures]) -> ListenerLoad:
    """The sum of depths and the maximum age; None if one of them is unknown."""
    depths = [each.depth for each in figures if each.depth is not None]
    ages = [each.age for each in figures if each.age is not None]
    return ListenerLoad(
        depth=sum(depths) if len(depths) == len(figures) else None,
        oldest_age=max(ages, default=None),
    )


@attrs.define(eq=False, kw_only=True)
class WorkWatch:
    """
    The load of a listener's queues. A look reads the queues that had messages at the last look, or
    whose messages were announced since; the others only every `idle_interval` seconds, as long as
    new messages are announced.
    """

    reader: ScaleReader
    queues: Sequence[EntityPath]
    idle_interval: float
    is_told: bool = False  # True: messages are announced
    _figures: dict[str, EntityFigures] = attrs.field(factory=dict, init=False)
    _asked: dict[str, float] = attrs.field(factory=dict, init=False)  # by Trio's clock
    _announced: set[str] = attrs.field(factory=set, init=False)  # since the last question began

    def announce(self, queue: EntityPath) -> None:
        """Note that messages of that queue are coming, or have come."""
        self._figures.pop(queue.key, None)
        self._announced.add(queue.key)

    def set_announced(self, *, is_told: bool) -> None:
        """Note whether all new messages are announced from now on."""
        self.is_told = is_told
        for queue in self.queues:
            self.announce(queue)  # messages may have come meanwhile

    async def poll(self) -> ListenerLoad:
        """
        The load of all queues together.

        Raises:
            BrokerError: as `ScaleReader.figures`.
        """
        due, found = [queue for queue in self.queues if self._is_due(queue)], {**self._figures}
        if due:
            now = trio.current_time()
            self._announced.clear()  # the announced queues are due, and are read now
            for queue, figures in zip(due, await self.reader.figures(due), strict=True):
                found[queue.key] = figures
                if queue.key not in self._announced:
                    self._figures[queue.key] = figures
                    self._asked[queue.key] = now
        return sum_of([*found.values()])

    def _is_due(self, queue: EntityPath) -> bool:
        known = self._figures.get(queue.key)
        if known is None or known.depth != 0 or not self.is_told:
            return True
        return trio.current_time() >= self._asked[queue.key] + self.idle_interval


@attrs.define(eq=False)
class ProcessorLoad:
    """The share of time for which this machine's processors were busy between two calls."""

    _file: Path = PROC_STAT
    _before: tuple[int, int] | None = attrs.field(default=None, init=False)

    def __call__(self) -> float | None:
        """Return the share, 0 to 1; None at the first call, and if the system doesn't report it."""
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
