"""HTTP load by `wrk`: a client in Python would take the processors from the measured processes."""

import json
import subprocess
from pathlib import Path
from typing import Final

import attrs
import trio

SCRIPT: Final = Path(__file__).with_name("send.lua")


class LoadFailed(Exception):
    """wrk didn't run, or a send was not answered with success."""


@attrs.frozen(kw_only=True)
class Measured:
    """A run of wrk. Latencies are seconds."""

    answers: int
    rate: float  # answers/s
    p50: float
    p99: float


async def post(url: str, token: str, *, connections: int, seconds: int) -> Measured:
    """
    Send to that URL over a number of kept-alive connections, over each as fast as it is answered.

    When the time is over, wrk leaves up to one send per connection unanswered.

    Raises:
        LoadFailed: a send got an error, or no send was answered.
    """
    command = ["wrk", "--threads", "1", "--connections", str(connections)]
    command += ["--duration", f"{seconds}s", "--timeout", "10s", "--script", str(SCRIPT)]
    finished = await trio.run_process(
        [*command, url, "--", token], capture_stdout=True, stderr=subprocess.STDOUT, check=False
    )
    output = finished.stdout.decode()
    if finished.returncode != 0:
        raise LoadFailed(output)
    result = json.loads(output.splitlines()[-1])
    if result["errors"] or not result["answers"]:
        raise LoadFailed(output)
    return Measured(
        answers=result["answers"],
        rate=result["answers"] / (result["duration"] / 1e6),
        p50=result["p50"] / 1e6,
        p99=result["p99"] / 1e6,
    )
