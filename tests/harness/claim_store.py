"""A store of bodies in memory that fails when it's told to, before or after it has done a thing."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.extensions.claims.claim import ClaimCorrupt, ClaimMissing, Entry, is_name
from gateway.ports import WallClock

BEFORE: Final = "before"
AFTER: Final = "after"

Trouble = Callable[[str, str, str], None]
"""
Called with BEFORE or AFTER, the method's name, and the name in the store; its exception is raised.
"""


def no_trouble(moment: str, step: str, name: str) -> None:
    """All is well."""


@attrs.define(eq=False)
class MemoryClaimStore:
    """Implements `ClaimStore`. `latency` is of each step, in seconds."""

    clock: WallClock
    trouble: Trouble = no_trouble
    latency: float = 0.0
    kept: dict[str, tuple[bytes, datetime]] = attrs.field(factory=dict)

    @property
    def bodies(self) -> set[str]:
        return {name for name in self.kept if not name.endswith(".done")}

    async def put(self, name: str, data: bytes) -> None:
        if not is_name(name):
            raise ValueError(f"{name!r} isn't a name of a claim store")
        await self._begin("put", name)
        self.kept[name] = data, self.clock()
        self.trouble(AFTER, "put", name)

    async def get(self, name: str, limit: int) -> bytes:
        await self._begin("get", name)
        if name not in self.kept:
            raise ClaimMissing(f"there is no {name}")
        data, _ = self.kept[name]
        if len(data) > limit:
            raise ClaimCorrupt(f"{name} has more than {limit} bytes")
        return data

    async def remove(self, name: str) -> None:
        await self._begin("remove", name)
        self.kept.pop(name, None)
        self.trouble(AFTER, "remove", name)

    async def list(self, prefix: str) -> Sequence[Entry]:
        await self._begin("list", prefix)
        found = [(name, date) for name, (_, date) in self.kept.items() if name.startswith(prefix)]
        return [Entry(name, date) for name, date in found]

    async def date(self) -> datetime:
        await self._begin("date", "")
        return self.clock()

    async def _begin(self, step: str, name: str) -> None:
        if self.latency:
            await trio.sleep(self.latency)
        await trio.lowlevel.checkpoint()
        self.trouble(BEFORE, step, name)
