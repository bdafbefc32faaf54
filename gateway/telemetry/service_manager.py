"""
Reports to systemd that this process is ready, reloads its configuration or ends, and that its event
loop runs.

The protocol is that of sd_notify(3): datagrams of assignments, sent to a Unix socket.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from gateway.domain.events.gateway import Draining, Event, Started
from gateway.ports import Observer

READY: Final = "READY=1"
_LONGEST_STATUS: Final = 200
_BEATS: Final = 3  # heartbeats in the time of the watchdog, so that one may be late


@attrs.define(eq=False)
class ServiceManager:
    """
    An `Observer` before another one; the service manager learns from events that the process is
    ready, and that it ends.

    Without a socket, no service manager has started the process, and nothing is reported.
    """

    _inner: Observer
    _socket: socket.socket | None = None
    watchdog: float | None = None  # seconds without a heartbeat, after which it is restarted
    _serves: bool = attrs.field(default=False, init=False)  # it has started, and doesn't end yet
    _untold: str = attrs.field(default="", init=False)  # the last state, while its queue is full

    def report(self, event: Event) -> None:
        match event:
            case Started():
                self._serves = True
                self._notify(READY, "STATUS=serving")
            case Draining(reason=reason):
                self._serves = False
                self._notify("STOPPING=1", f"STATUS=draining: {' '.join(reason.split())}")
        self._inner.report(event)

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """
        Report to the service manager that the configuration is read within the context; `systemctl
        reload` waits for its end. A process that still starts, or ends, reports nothing else
        meanwhile.
        """
        if not self._serves:
            yield
            return
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notify("RELOADING=1", f"MONOTONIC_USEC={now}")
        try:
            yield
        finally:
            if self._serves:
                self._notify(READY)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Send heartbeats until cancelled, or return if no watchdog waits for them. A task that blocks
        the event loop stops them.
        """
        task_status.started()
        if self.watchdog is None:
            return
        while True:
            self._send("WATCHDOG=1")
            await trio.sleep(self.watchdog / _BEATS)

    def _notify(self, *assignments: str) -> None:
        self._untold = "\n".join(each[:_LONGEST_STATUS] for each in assignments)
        self._send()

    def _send(self, *further: str) -> None:
        """Send without waiting. If the socket's queue is full, a state waits for the next call."""
        if self._socket is None:
            return
        text = "\n".join(filter(None, (self._untold, *further)))
        try:
            self._socket.send(text.encode())
        except OSError:
            return
        self._untold = ""
