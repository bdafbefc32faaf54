"""Writes the log in a thread of its own, so that a blocked log delays no message."""

import os
import select
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

MOST_LINES: Final = 10_000  # waiting lines: at a few hundred bytes each, a few megabytes


class LineWriter:
    """
    Passes lines to a thread that writes them to a file descriptor, in their order.

    Lines that find no room, or can't be written (the disk is full, the reader has gone), are
    dropped and counted; the next line that can be written has their number before it. The thread is
    a daemon, and nothing is buffered between the thread and the descriptor: the process can end
    even while the thread is blocked in a write.
    """

    def __init__(
        self,
        fd: int,
        gap: Callable[[int], str],
        *,
        tell: Callable[[], float | None] = lambda: None,
        most: int = MOST_LINES,
    ) -> None:
        """
        `gap` makes the line that reports a number of dropped lines; at most `most` lines wait.
        `tell`, called in the thread, writes lines that are due and returns the seconds until the
        next one is, as far as is known now; None: none before another line.
        """
        self._fd = fd
        self._gap = gap
        self._tell = tell
        self._most = most
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._closed = False
        self._changed = Condition()
        self._cut = False  # True: a line was written in part
        self._thread = Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line, which ends with a line end; never blocks, never raises."""
        with self._changed:
            if self._closed or len(self._lines) >= self._most:
                self._dropped += 1
                return
            self._lines.append(line)
            self._changed.notify()

    def close(self, seconds: float) -> bool:
        """
        Accept no more lines; wait until the queued ones are written, but for no more than
        `seconds`. True: the thread has ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due: float | None = None
        while True:
            with self._changed:
                is_due = not self._changed.wait_for(lambda: self._lines or self._closed, due)
                line = self._lines.popleft() if self._lines else ""
                dropped, self._dropped = self._dropped, 0
            if not (line or dropped or is_due):
                return
            try:
                if dropped:
                    self._write(self._gap(dropped))
                    dropped = 0  # told, whatever becomes of the line
                if line:
                    self._write(line)
            except OSError:
                with self._changed:
                    self._dropped += dropped + bool(line)
            if not line and not is_due:
                return
            due = self._tell()

    def _write(self, text: str) -> None:
        data = (("\n" if self._cut else "") + text).encode("utf-8", "backslashreplace")
        while data:
            try:
                written = os.write(self._fd, data)
            # another process that shares the descriptor made it non-blocking
            except BlockingIOError:
                select.select([], [self._fd], [])
                continue
            data = data[written:]
            self._cut = bool(data)
