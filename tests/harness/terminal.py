"""A command of `pairgate` at a terminal of its own, for tests of input and output."""

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from pexpect import EOF
from pexpect.fdpexpect import fdspawn

from tests.e2e.processes import environment
from tests.harness.patience import PATIENCE


@attrs.frozen(eq=False)
class Terminal:
    """The screen and the keyboard of one command. All methods block."""

    process: "subprocess.Popen[bytes]"
    screen: fdspawn

    def sees(self, text: str) -> str:
        """Return the output before the text, once the text is on the screen."""
        self.screen.expect_exact(text)
        return str(self.screen.before)

    def types(self, text: str) -> None:
        """The text, and the Enter key."""
        self.screen.send(f"{text}\r")

    def interrupts(self) -> None:
        """Ctrl-C. The terminal isn't the one that controls the process, so it gets the signal."""
        self.process.send_signal(signal.SIGINT)

    def ends(self) -> tuple[int, str]:
        """The exit code when the command has ended, and the rest of its output."""
        self.screen.expect(EOF)
        return self.process.wait(PATIENCE), str(self.screen.before)


@contextmanager
def at_terminal(
    folder: Path, *arguments: str | Path, columns: int = 120, rows: int = 24, **variables: str
) -> Iterator[Terminal]:
    """Run the command in that folder; it is killed when the scope ends."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (rows, columns))
    try:
        # Not by a fork of this process, which has threads: therefore without `pexpect.spawn`.
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *map(str, arguments)],
            cwd=folder,
            env={**environment(), "TERM": "xterm", **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    try:
        yield Terminal(process, fdspawn(ours, timeout=PATIENCE, encoding="utf-8"))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
