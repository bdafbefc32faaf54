"""The audit log: one JSON line for each call of an operator, on the disk before its answer."""

import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.domain.errors import starting_thread
from gateway.domain.events.control import AuditFailed, AuditRestored
from gateway.durable import refuse_foreign_link, sync_folder
from gateway.ports import Observer

MODE: Final = 0o600
LONGEST_WRITE: Final = 10.0  # seconds, after which the answer doesn't wait any more
EVERY: Final = 2.0  # seconds between two tries: a cure shows within five
MOST_MISSING: Final = 1000  # lines that wait for the file; of more the oldest are given up


@attrs.define(eq=False)
class AuditLog:
    """
    Appends lines to a file. The file is opened for each line, so that a file that was moved or
    removed is made again, without a signal to this process. Lines that the file didn't take wait,
    and are written as soon as it takes them.
    """

    file: Path
    observer: Observer
    longest_write: float = LONGEST_WRITE
    # A hanging thread keeps its place in the limiter: calls to a dead disk don't take the threads
    # that others need.
    _writing: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )
    _missing: deque[bytes] = attrs.field(factory=lambda: deque(maxlen=MOST_MISSING), init=False)
    _failed: int = attrs.field(default=0, init=False)  # lines since the file took the last one

    async def record(self, entry: Mapping[str, Any]) -> None:
        """
        Append the entry; it is on the disk when this returns. A line that can't be written is the
        event `audit_failed`, since an operator must be able to steer while a disk is full. A
        cancellation has no effect before that.
        """
        line = json.dumps(entry).encode() + b"\n"
        why = await self._append(line)
        if why is not None:
            self._failed += 1
            self.observer.report(AuditFailed(reason=f"{self.file}: {why}"))

    async def try_again(self) -> None:
        """
        Append the lines that are missing, if there are any. `audit_restored` says that the file
        takes lines again.
        """
        await trio.lowlevel.checkpoint()
        if not self._failed:
            return
        failed, lines = self._failed, list(self._missing)
        self._missing.clear()
        if await self._append(b"".join(lines)) is None:
            self._failed -= failed
            event = AuditRestored(
                file=str(self.file), lines=len(lines), missing=failed - len(lines)
            )
            self.observer.report(event)

    async def _append(self, lines: bytes) -> str | None:
        """The reason if the lines can't be written; they are then missing."""
        with trio.CancelScope(shield=True), trio.move_on_after(self.longest_write):
            try:
                with starting_thread():
                    await trio.to_thread.run_sync(
                        append, self.file, lines, abandon_on_cancel=True, limiter=self._writing
                    )
            except OSError as error:
                self._missing.extend(lines.splitlines(keepends=True))
                return error.strerror or str(error)
            return None
        # The thread goes on, and may write them still.
        return f"nothing was written for {self.longest_write:g} s"


@attrs.frozen
class AuditLogs:
    """The audit logs of this process by their files, one for all endpoints with that file."""

    every: float = EVERY
    logs: dict[Path, AuditLog] = attrs.field(factory=dict)

    def at(self, file: Path, observer: Observer) -> AuditLog:
        """The audit log with that file."""
        return self.logs.setdefault(file, AuditLog(file, observer))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write missing lines until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(self.every)
            for log in self.logs.values():
                await log.try_again()


def append(file: Path, line: bytes) -> None:
    """
    Append the line, and return when it is on the disk. A missing folder is made.

    Raises:
        OSError: the line can't be written, or a part of it only; or another user's link is on the
            way to the file.
    """
    refuse_foreign_link(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    # Not to wait: the open of a pipe that nobody reads would hang.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(file, flags, MODE)
    try:
        # A single write, so that lines of several processes don't mix.
        if os.write(descriptor, line) < len(line):
            raise OSError("the disk is full")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_folder(file.parent)
