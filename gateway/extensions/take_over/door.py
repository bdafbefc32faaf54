"""The side of the running process: it hands its sockets to its successor, and then ends."""

import errno
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import attrs
import trio

from gateway.app.failure import Failure
from gateway.app.given import GivenSockets, by_bind
from gateway.app.process import cancel_at_signal
from gateway.domain.events.gateway import Doubtful
from gateway.extensions.take_over.events import TakeOverFailed
from gateway.extensions.take_over.predecessor import VERSION
from gateway.net.descriptors import MOST_DESCRIPTORS, DescriptorChannel, close_all, duplicates
from gateway.net.listeners import Listener, PausingListener
from gateway.net.unix import SocketFile, file_of, short_path
from gateway.pairing.state_file import StateFile
from gateway.ports import Observer

HELLO_SECONDS: Final = 5.0  # a gateway writes its first message at once
# Seconds for a successor to become ready after it was accepted. A successor that hangs would keep
# others from taking over, and all clients from being served if the stores are closed for it.
READY_SECONDS: Final = 300.0
LEAVE_SECONDS: Final = 5.0  # seconds for a given-up process to end before it is killed
_BACKLOG: Final = 16


async def see_off(pidfd: int, seconds: float = LEAVE_SECONDS) -> None:
    """
    Return when the process behind `pidfd` has ended; kill it if it hasn't within `seconds`.
    """
    with trio.move_on_after(seconds):
        await trio.lowlevel.wait_readable(pidfd)
        return
    with suppress(ProcessLookupError):  # the process has just ended
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    await trio.lowlevel.wait_readable(pidfd)


@attrs.define(eq=False)
class WaitingSuccessor:
    """A successor that waits for this process's stores, with the sockets in case it fails."""

    channel: DescriptorChannel
    pid: int
    pidfd: int  # of the process, whose id may later be another process's
    kept: GivenSockets


@attrs.define(eq=False)
class Door:
    """
    The Unix socket at which successors ask. It exists while this process serves, and it outlives
    the gateway's parts: a successor may have to wait until they are closed.
    """

    path: Path
    listener: trio.socket.SocketType
    observer: Observer
    ready_seconds: float = READY_SECONDS
    see_off: Callable[[int], Awaitable[None]] = see_off  # ends a successor that has failed
    waiting: WaitingSuccessor | None = attrs.field(default=None, init=False)
    _file: SocketFile | None = attrs.field(default=None, init=False)

    @property
    def _hidden(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{os.getpid()}")

    async def bind(self) -> None:
        """
        Bind the socket at a path where no successor looks before `show`.

        Raises:
            OSError: the socket can't be bound there.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._hidden.unlink(missing_ok=True)
        with short_path(self._hidden) as short:
            await self.listener.bind(short)
        self._hidden.chmod(0o600)  # the access control, besides the check of the user
        self.listener.listen(_BACKLOG)
        self._file = file_of(self._hidden)

    def show(self) -> None:
        """
        Move the socket to its path, where successors find this process instead of its predecessor.
        """
        if self._hidden.exists():
            self._hidden.replace(self.path)

    def close(self) -> None:
        """Close the socket, and remove its file unless it is a successor's."""
        self.listener.close()
        if self._file is not None:
            for path in (self._hidden, self.path):
                attrs.evolve(self._file, path=path).remove()
        if self.waiting is not None:
            self.waiting.kept.close()
            self.waiting.channel.close()
            os.close(self.waiting.pidfd)

    async def freed(self) -> GivenSockets | None:
        """
        Tell the waiting successor, if there is one, that all stores are closed. Return the sockets
        with which this process must serve again, because the successor has ended before it was
        ready, or wasn't ready in time; None: this process can end.

        A successor that fails and doesn't end is killed: it may have opened the stores.
        """
        waiting, self.waiting = self.waiting, None
        if waiting is None:
            return None
        reason: str | None = None
        try:
            async with trio.open_nursery() as nursery:
                # The successor continues alone then.
                await nursery.start(cancel_at_signal, nursery.cancel_scope)
                failure = await _failure_of(waiting.channel, self.ready_seconds)
                waiting.channel.close()
                if failure is not None:
                    self.observer.report(TakeOverFailed(pid=waiting.pid, reason=failure))
                    await self.see_off(waiting.pidfd)
                reason = failure
                nursery.cancel_scope.cancel()
        finally:
            waiting.channel.close()
            os.close(waiting.pidfd)
        if reason is None:
            waiting.kept.close()
            return None
        return waiting.kept


async def _failure_of(channel: DescriptorChannel, seconds: float) -> str | None:
    """Tell the successor that the stores are free; return why it isn't ready. None: it is."""
    with suppress(trio.BrokenResourceError):  # a broken channel has no answer, either
        await channel.send({"free": True})
    return await _not_ready(channel, seconds)


async def _not_ready(channel: DescriptorChannel, seconds: float) -> str | None:
    """Wait for the successor's answer; return why it isn't ready. None: it is."""
    try:
        with trio.move_on_after(seconds) as scope:
            answer = await channel.receive()
    except ValueError as error:
        return f"it sent something else: {error}"
    if scope.cancelled_caught:
        return f"it wasn't ready within {seconds:g} s"
    if answer is None:
        return "it ended before it was ready"
    return None if "ready" in answer[0] else f"it sent {sorted(answer[0])}"


async def open_door(stack: AsyncExitStack, path: Path, observer: Observer) -> Door:
    """
    A door that successors don't find before `show`; the stack closes it.

    Raises:
        Failure: there can't be a socket at that path.
    """
    door = Door(path, trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), observer)
    stack.callback(door.close)
    try:
        await door.bind()
    except OSError as error:
        raise Failure(f"take_over: no socket can be made at {path}: {error}") from error
    return door


class Drains(Protocol):
    """The part of `gateway.app.serving.GatewayShutdown` that a hand-over needs."""

    @property
    def is_asked(self) -> bool: ...

    def leave(self, reason: str) -> None: ...


@attrs.define(eq=False, kw_only=True)
class HandOver:
    """A `Service` that answers successors for as long as the gateway's parts run."""

    door: Door
    listeners: Sequence[tuple[str, Listener]]  # of all endpoints, with the configured addresses
    state: StateFile | None
    has_stores: bool
    ending: Drains
    serving: trio.Event  # set when this process accepts
    _is_busy: bool = attrs.field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer successors until cancelled."""
        task_status.started()
        await self.serving.wait()
        self.door.show()
        listener = PausingListener(trio.SocketListener(self.door.listener), self._report_lack)
        async with trio.open_nursery() as nursery:
            while True:
                stream = await listener.accept()
                nursery.start_soon(self._attend, DescriptorChannel(stream.socket))

    def _report_lack(self, peer: str, error: OSError) -> None:
        text = f"take_over: a process that asks must wait: {error.strerror}"
        self.door.observer.report(Doubtful(text=text))

    async def _attend(self, channel: DescriptorChannel) -> None:
        try:
            refusal = await self._refusal(channel)
            if refusal is None:
                self._is_busy = True
                await self._hand_over(channel)
            else:
                await channel.send({"refused": refusal})
        except (trio.BrokenResourceError, ValueError):
            return
        finally:
            waiting = self.door.waiting
            if waiting is None or waiting.channel is not channel:
                channel.close()

    async def _refusal(self, channel: DescriptorChannel) -> str | None:
        """Return the reason why this peer gets nothing; None: it is a successor."""
        peer = channel.peer
        if peer.user != os.geteuid():
            text = f"take_over: process {peer.pid} of user {peer.user} asked for the sockets"
            self.door.observer.report(Doubtful(text=text))
            return "it runs as another user"
        hello = None
        with trio.move_on_after(HELLO_SECONDS):
            hello = await channel.receive()
        if hello is not None:
            close_all(hello[1])
        if hello is None or hello[0].get("version") != VERSION:
            return "it speaks another version of the hand-over: restart it instead"
        if self.ending.is_asked:
            return "it drains already"
        if self._is_busy:
            return "another process takes over"
        return None

    async def _hand_over(self, channel: DescriptorChannel) -> None:
        pid = channel.peer.pid
        entries = [(bind, listener.descriptors) for bind, listener in self.listeners]
        passed = [number for _, numbers in entries for number in numbers]
        try:
            kept = self._copied(entries)
        except OSError as error:
            self._is_busy = False
            await channel.send({"refused": f"it can't hand its sockets over: {error.strerror}"})
            return
        if self.state is not None and not self.has_stores:
            await self.state.hold()
        message = {
            "frees_stores": self.has_stores,
            "endpoints": [[bind, len(numbers)] for bind, numbers in entries],
        }
        reason: str | None = "it ended before it was ready"
        with suppress(trio.BrokenResourceError, ProcessLookupError):
            await channel.send(message, passed)
            if kept is not None:
                pidfd = os.pidfd_open(pid)
                self.door.waiting = WaitingSuccessor(channel, pid=pid, pidfd=pidfd, kept=kept)
                self._leave(f"process {pid} takes over, and waits for the stores")
                await trio.sleep_forever()
            reason = await _not_ready(channel, self.door.ready_seconds)
        if reason is None:
            self._leave(f"process {pid} has taken over")
            await trio.sleep_forever()  # the successor sees when this process ends
        self._go_on(kept)
        self.door.observer.report(TakeOverFailed(pid=pid, reason=str(reason)))

    def _copied(self, entries: Sequence[tuple[str, list[int]]]) -> GivenSockets | None:
        """
        The sockets with which this process serves again if a successor that needs its stores fails;
        None: there are no stores.

        Raises:
            OSError: there are too many sockets to hand over, or too many open files.
        """
        passed = [number for _, numbers in entries for number in numbers]
        if len(passed) > MOST_DESCRIPTORS:
            raise OSError(errno.E2BIG, f"it has more than {MOST_DESCRIPTORS}")
        if not self.has_stores:
            return None
        copies = iter(duplicates(passed))
        return by_bind([(bind, list(islice(copies, len(numbers)))) for bind, numbers in entries])

    def _go_on(self, kept: GivenSockets | None) -> None:
        """Serve as before: the successor has failed."""
        if kept is not None:
            kept.close()
        if self.state is not None:
            self.state.go_on()
        self._is_busy = False

    def _leave(self, reason: str) -> None:
        for _, listener in self.listeners:
            listener.leave_file()
        self.ending.leave(reason)
