"""The gateway beside a command, as a process of its own."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

import attrs

from gateway.app.failure import ExitCode, Failure

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_SHOWN: Final = ("warning", "error", "critical")
Show = Callable[[dict[str, Any]], None]  # an event of the log
_MARGIN: Final = 5.0  # seconds beyond `grace`, for closing stores


def _terminate_with_parent() -> None:
    """Ask the kernel for SIGTERM when the process that has started this one ends, however."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@attrs.define(eq=False)
class RunningGateway:
    """A gateway that has started. `addresses` are those it listens at, by protocol."""

    process: "subprocess.Popen[str]"
    addresses: dict[str, str]


@contextmanager
def gateway(
    arguments: Sequence[str], grace: float, *, as_json: bool = False
) -> Iterator[RunningGateway]:
    """
    A gateway with these arguments of `serve`, which drains when the context ends.

    Its warnings and errors are on standard error; with `as_json` the whole log. It is in a session
    of its own: Ctrl-C at the terminal ends the command first.

    Raises:
        Failure: it doesn't start; the text and the code are its own.
    """
    command = [sys.executable, "-m", "gateway", "serve", "--json", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_terminate_with_parent,  # no other thread runs yet
    ) as process:
        assert process.stderr is not None
        try:
            show = _show_all if as_json else _show
            addresses = _until_started(process, process.stderr, show)
            follower = threading.Thread(target=_follow, args=(process.stderr, show), daemon=True)
            follower.start()
            yield RunningGateway(process, addresses)
        finally:
            process.terminate()
            try:
                process.wait(grace + _MARGIN)
            except subprocess.TimeoutExpired:
                process.kill()


def _until_started(process: "subprocess.Popen[str]", log: IO[str], show: Show) -> dict[str, str]:
    addresses, last = dict[str, str](), ""
    for line in log:
        event, last = _parsed(line), line
        if event.get("event") == "listening":
            addresses.setdefault(str(event["protocol"]), str(event["address"]))
        if event.get("event") == "started":
            return addresses
        show(event)
    text = str(_parsed(last).get("error") or last.strip() or "it has ended")
    raise Failure(f"the gateway didn't start: {text}", ExitCode(process.wait() or ExitCode.FAILED))


def _follow(log: IO[str], show: Show) -> None:
    for line in log:
        show(_parsed(line))


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"level": "error", "event": line.strip()}
    return found if isinstance(found, dict) else {}


def _show(event: dict[str, Any]) -> None:
    """Write what an operator should know to standard error, between the command's own lines."""
    if event.get("level") in _SHOWN:
        words = [str(event.get(name)) for name in ("event", "reason", "text") if event.get(name)]
        os.write(sys.stderr.fileno(), f"pairgate: {': '.join(words)}\n".encode(errors="replace"))


def _show_all(event: dict[str, Any]) -> None:
    os.write(sys.stderr.fileno(), f"{json.dumps(event)}\n".encode())
