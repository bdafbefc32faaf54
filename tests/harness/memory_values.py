"""Values in memory, which outlive their users as a file outlives its processes."""

import attrs
import trio

from gateway.domain.errors import PreconditionFailed
from gateway.ports import ABSENT, ANY


@attrs.define(eq=False)
class MemoryValues:
    """Implements `Versioned` of bytes or None."""

    values: dict[str, tuple[bytes, str]] = attrs.field(factory=dict)
    writes: int = 0

    async def read(self, key: str) -> tuple[bytes | None, str]:
        await trio.lowlevel.checkpoint()
        return self.values.get(key, (None, ABSENT))

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        await trio.lowlevel.checkpoint()
        if if_match not in (ANY, self.values.get(key, (None, ABSENT))[1]):
            raise PreconditionFailed(key)
        self.writes += 1
        if value is None:
            self.values.pop(key, None)
            return ABSENT
        self.values[key] = value, str(self.writes)
        return str(self.writes)
