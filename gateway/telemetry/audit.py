"""The audit log: one JSON line for each call of an operator, on the disk before its answer."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.domain.events.control import AuditFailed
from gateway.durable import refuse_foreign_link, sync_folder
from gateway.ports import Observer

MODE: Final = 0o600
LONGEST_WRITE: Final = 10.0  # seconds, after which the answer doesn't wait any more


@attrs.define(eq=False)
class AuditLog:
    """
    Appends lines to a file. The file is opened for each line, so that a file that was moved or
    removed is made again, without a signal to this process.
    """

    file: Path
    observer: Observer
    # A hanging thread keeps its place in the limiter: calls to a dead disk don't take the threads
    # that others need.
    _writing: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )

    async def record(self, entry: Mapping[str, Any]) -> None:
        """
        Append the entry; it is on the disk when this returns. A line that can't be written is the
        event `audit_failed`, since an operator must be able to steer while a disk is full. A
        cancellation has no effect before that.
        """
        with trio.CancelScope(shield=True), trio.move_on_after(LONGEST_WRITE) as scope:
            line = json.dumps(entry).encode() + b"\n"
            try:
                await trio.to_thread.run_sync(
                    append, self.file, line, abandon_on_cancel=True, limiter=self._writing
                )
            except OSError as error:
                self._report(error.strerror or str(error))
        if scope.cancelled_caught:
            self._report(f"nothing was written for {LONGEST_WRITE:g} s")

    def _report(self, reason: str) -> None:
        self.observer.report(AuditFailed(reason=f"{self.file}: {reason}"))


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
