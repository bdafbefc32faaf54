"""Processes whose wall clock another one moves: by libfaketime, Debian's package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from tests.harness.servers import ServerFailed

_LIBRARIES: Final = Path("/usr/lib")
_LIBRARY: Final = "*/faketime/libfaketimeMT.so.1"
_LOOK: Final = 1  # seconds between two looks into the file: each costs as much as a send
# Threads that wait for Python's lock wait so long (`sys.getswitchinterval`). The library takes the
# end of that wait, which is by the monotonic clock, for a date: without this they would spin.
_SWITCH: Final = 5  # milliseconds


@attrs.frozen
class WallClock:
    """
    A clock of its own for all processes that are started with `environment`; its time passes at the
    usual rate.
    """

    file: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """
        The environment of a process that has this clock. Its monotonic clock stays the machine's.

        Raises:
            ServerFailed: libfaketime isn't installed.
        """
        found = sorted(_LIBRARIES.glob(_LIBRARY))
        if not found:
            raise ServerFailed("libfaketime isn't installed: Debian's package is libfaketime")
        if not self.file.exists():
            self._write(0.0)
        return {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": str(_LOOK),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "FAKETIME_WAIT_MS": str(_SWITCH),
        }

    async def step(self, seconds: float) -> None:
        """Set it so far from the machine's; negative: behind it. Return when all have seen it."""
        self._write(seconds)
        await trio.sleep(2 * _LOOK)

    def _write(self, seconds: float) -> None:
        other = self.file.with_suffix(".new")
        other.write_text(f"{seconds:+g}\n")
        other.replace(self.file)
