"""The facts that a figure depends on besides the code: the machine, its disk, the versions."""

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import apsw

_SYNCS: Final = 200


def facts(folder: Path) -> Mapping[str, str]:
    """Return the facts of this machine now, and of the disk that holds `folder`."""
    return {
        **facts_of_processor(),
        "SQLite": apsw.sqlite_lib_version(),
        "sync of a written page": f"{1e6 * sync_time(folder):.0f} us, the median",
    }


def facts_of_processor() -> Mapping[str, str]:
    """Return the facts of this machine now, without a disk."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        "processor": f"{os.cpu_count()} x {_processor()}",
        "load": f"{os.getloadavg()[0]:.2f} before the first measurement",
        "system": _system(),
        "Python": platform.python_version(),
    }


def sync_time(folder: Path) -> float:
    """Seconds for one `fdatasync` after a write of 4 KiB, as each commit needs at least once."""
    file = os.open(folder / "sync", os.O_RDWR | os.O_CREAT, 0o600)
    times = []
    for number in range(_SYNCS):
        os.pwrite(file, b"x" * 4096, 4096 * number)
        began = time.perf_counter()
        os.fdatasync(file)
        times.append(time.perf_counter() - began)
    os.close(file)
    return sorted(times)[_SYNCS // 2]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _system() -> str:
    release = platform.freedesktop_os_release()
    return f"{release.get('PRETTY_NAME', '')}, Linux {platform.release()}"
