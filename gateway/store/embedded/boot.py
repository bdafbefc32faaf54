"""The boot of this machine, which a store compares with that of its last commit."""

import functools
import time
from pathlib import Path
from typing import Final

from gateway.domain.clocks.clock_note import Boot

_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> Boot | None:
    """The machine's boot; None: the system doesn't tell."""
    name = _name()
    return Boot(name, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000) if name else None


def no_boot() -> Boot | None:
    """As for a system that doesn't tell."""
    return None


@functools.cache  # each commit asks, and a process doesn't outlive the boot
def _name() -> str:
    try:
        return _ID.read_text().strip()
    except OSError:
        return ""
