"""
The measurements of a client process, of its own work and of the servers'. The module needs only the
standard library, since it runs in the environments of other packages too.
"""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Stopwatch:
    """Measures from its creation until `read`."""

    def __init__(self, servers: Mapping[str, int]) -> None:
        """`servers` are the ids of the processes that are measured, by their names."""
        self.messages = 0
        self._latencies: list[float] = []
        self._servers = servers
        self._taken = {name: processor_time(pid) for name, pid in servers.items()}
        self._processor = time.process_time()
        self._began = time.perf_counter()

    def add(self, latency: float, messages: int = 1) -> None:
        """Note that a number of messages was answered after `latency` seconds."""
        self.messages += messages
        self._latencies.append(latency)

    def read(self) -> Mapping[str, Any]:
        """As `benchmarks.amqp_figures.Flight` wants it."""
        seconds = time.perf_counter() - self._began
        latencies = sorted(self._latencies) or [math.nan]
        return {
            "messages": self.messages,
            "seconds": seconds,
            "p50": latencies[len(latencies) // 2],
            "p99": latencies[len(latencies) * 99 // 100],
            "busy": (time.process_time() - self._processor) / seconds,
            "servers": {
                name: (processor_time(pid) - self._taken[name]) / self.messages
                for name, pid in self._servers.items()
            },
        }


def processor_time(pid: int) -> float:
    """Seconds that the threads of a process have taken so far, as Linux counts them."""
    # proc(5): utime and stime follow the name, which may have spaces and ends with a parenthesis.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
