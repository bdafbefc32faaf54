"""How much work queues have, as a gateway's admin endpoint tells it; how busy processors are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.asking import ANSWER_SECONDS, admin_client, ask
from gateway.app.crew import Work
from gateway.app.targets import admin_authorization, admin_place, find_admin
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unavailable
from gateway.net.dialing import Place
from gateway.wire.scale import Figures, parse_figures

PROC_STAT: Final = Path("/proc/stat")  # of Linux
_IDLE: Final = slice(3, 5)  # idle, and waiting for a disk: proc_stat(5)


@attrs.define(eq=False, kw_only=True)
class ScaleReader:
    """Asks the gateway that the configuration names, or the one that is found here."""

    config: Config
    port_offset: int = 0
    _place: Place | None = attrs.field(default=None, init=False)
    _found: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def look(self, queues: Sequence[EntityPath]) -> Work:
        """
        What waits in all of these queues.

        Raises:
            BrokerError: no gateway answers, or it can't tell.
        """
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                figures = await self._ask(queues)
            except BrokerError:
                self._place = None  # the next one may be elsewhere
                raise
            return _sum(figures)
        self._place = None
        raise Unavailable(f"no answer from a gateway within {ANSWER_SECONDS:g} s")

    async def place(self) -> Place:
        """Where the gateway is, once one has answered."""
        await trio.lowlevel.checkpoint()
        while self._place is None:
            await self._found.wait()
        return self._place

    async def _ask(self, queues: Sequence[EntityPath]) -> list[Figures]:
        place = self._place or await self._find()
        text = admin_authorization(self.config, str(place), Right.LISTEN)
        async with admin_client(place) as client:
            found = [
                parse_figures(await ask(client, text, f"/scale/{queue.name}")) for queue in queues
            ]
        self._place = place
        self._found.set()
        return found

    async def _find(self) -> Place:
        url = self.config.agent.gateway
        if url is not None:
            await trio.lowlevel.checkpoint()
            return admin_place(url, "agent.gateway")
        address = await find_admin(self.config, self.port_offset)
        if address is None:
            raise Unavailable("no gateway answers at an endpoint `admin` without TLS")
        return admin_place(f"http://{address}", address)


def _sum(figures: Sequence[Figures]) -> Work:
    """All depths together, the greatest age; None where one of them can't be told."""
    depths = [each.depth for each in figures if each.depth is not None]
    ages = [each.age for each in figures if each.age is not None]
    return Work(
        depth=sum(depths) if len(depths) == len(figures) else None,
        oldest_age=max(ages, default=None),
    )


@attrs.define(eq=False)
class ProcessorLoad:
    """The share of its time that this machine's processors worked, between two calls."""

    _file: Path = PROC_STAT
    _before: tuple[int, int] | None = attrs.field(default=None, init=False)

    def __call__(self) -> float | None:
        """0 to 1; None at the first call, and where the system doesn't tell."""
        try:
            fields = self._file.read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) for field in fields]  # the rest is in the first ones too
        total, idle = sum(ticks), sum(ticks[_IDLE])
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return None
        return 1.0 - (idle - before[1]) / (total - before[0])
