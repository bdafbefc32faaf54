"""
The process as the system sees it: open files, memory that is returned to the system, the signals by
which a user or a supervisor ends it, and the service manager that has started it.
"""

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.ports import Observer
from gateway.telemetry.service_manager import ServiceManager

TRIM_AFTER: Final = 5.0  # seconds
MOST_MOMENTS: Final = 12
_OF_SYSTEMD: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # sd_notify(3)
_SPARE_FILES: Final = 200  # besides the connections
# The number of new objects after which the collector runs, and the numbers of its runs after which
# it examines older objects, too, and the oldest; Python's own are 700, 10 and 10.
_COLLECT_AFTER: Final = (5_000, 2, 2)


def allow_files(connections: int) -> str | None:
    """
    Raise the limit of open files as far as possible; return a doubt if the limit doesn't suffice
    for the connections, or None.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):  # by a sandbox, or the hard limit is above the kernel's
        most = now
    wanted = connections + _SPARE_FILES
    if most == resource.RLIM_INFINITY or most >= wanted:
        return None
    return (
        f"limits.max_connections: {connections} connections of all endpoints need {wanted} open"
        f" files, and this process may have {most}: raise LimitNOFILE, or ulimit -n"
    )


def collect_seldom() -> None:
    """
    Exempt the present objects from garbage collection: examining 40,000 queues, which Python does
    from time to time, would block the process for most of a second. Collect other cycles seldom:
    requests and moved messages leave none behind, and collecting as often as Python does takes up
    to 5 % of a send. Ended connections and failures do leave cycles, some 50 objects a second while
    namespaces come and go. Most of those objects have lived through a collection before they are
    garbage, so that older objects are examined more often than Python does.
    """
    gc.freeze()
    gc.collect()  # Python examines the oldest objects after a growth by a quarter of those it finds
    gc.set_threshold(*_COLLECT_AFTER)


@attrs.define(eq=False)
class Trimmer:
    """
    Returns free memory to the system when connections have ended.

    glibc keeps the memory of bodies for later ones, so that a process stays as large as it ever
    was, and a container's limit kills it for memory that isn't in use. Without glibc nothing is
    done.
    """

    _ends: Changes = attrs.field(factory=Changes, init=False)

    def record_end(self) -> None:
        """Note that a connection has ended."""
        self._ends.notify()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Until cancelled, trim when no connection has ended for a moment, or else each minute:
        trimming a large and fragmented heap takes up to 0.1 s. The objects that a full collection
        hasn't examined yet are collected before, as bodies may be in cycles among them.
        """
        trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda kept: 0)
        task_status.started()
        seen = self._ends.version
        while True:
            ends = await self._ends.wait(seen)
            for _ in range(MOST_MOMENTS):
                seen = ends
                await trio.sleep(TRIM_AFTER)
                ends = self._ends.version
                if ends == seen:
                    break
            gc.collect(1)
            trim(0)


async def reload_nothing() -> None:
    """Ignore SIGHUP: the process has no configuration that it could read again."""


@attrs.frozen(eq=False)
class SignalWatch:
    """A `Service` that passes on the signals by which a user or a supervisor asks for something."""

    end: Callable[[str], None]  # is called at each SIGTERM and SIGINT
    reload: Callable[[], Awaitable[object]] = reload_nothing  # is started at each SIGHUP

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch the signals until cancelled."""
        wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with trio.open_signal_receiver(*wanted) as received:
            async with trio.open_nursery() as reloads:
                task_status.started()
                async for number in received:
                    if number == signal.SIGHUP:
                        reloads.start_soon(self.reload)
                    else:
                        self.end(signal.Signals(number).name)


async def cancel_at_signal(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled, cancel the scope at SIGTERM and SIGINT."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for _ in received:
            scope.cancel()


@contextmanager
def service_manager(
    observer: Observer, environ: MutableMapping[str, str]
) -> Iterator[ServiceManager]:
    """
    The service manager that the environment names, as an observer that passes events on to
    `observer`. If its watchdog ends this process (SIGABRT), the stacks of all threads are written.

    The variables are removed from `environ`, so that no child takes them for its own.
    """
    address, microseconds, pid = (environ.pop(name, "") for name in _OF_SYSTEMD)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as its:
        its.setblocking(False)
        if not _connected(its, address):
            yield ServiceManager(observer)
            return
        watched = pid in {"", str(os.getpid())} and microseconds.isdecimal()
        watched = watched and int(microseconds) > 0  # for systemd, 0 means no watchdog, too
        if watched:
            faulthandler.enable()
        yield ServiceManager(observer, its, int(microseconds) / 1e6 if watched else None)


def _connected(its: socket.socket, address: str) -> bool:
    """Connect to the address, a file or an abstract name. False: no process listens there."""
    # There is no address, or it is of another machine (vsock).
    if not address.startswith(("/", "@")):
        return False
    try:
        its.connect(f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError:
        return False
    return True
