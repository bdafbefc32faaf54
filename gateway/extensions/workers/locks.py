"""Lets the processes of a gateway settle deliveries that another one of them holds."""

from pathlib import Path

import trio

from gateway.app.assembly.parts import Parts
from gateway.app.endpoints import crash_reporter, port_reporter
from gateway.extensions.workers.passing_on import serve_unix
from gateway.net.dialing import open_stream
from gateway.net.server_address import ServerAddress


async def serve_locks(
    parts: Parts,
    number: int,
    folder: Path,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """
    Answer the other processes until cancelled. `number` is that of this one, and `folder` has
    the sockets of all of them.
    """
    answer = parts.others.answering(parts.held_parts)
    assert answer is not None, "the gateway has workers"
    path = _path(folder, number)
    path.unlink(missing_ok=True)  # an earlier process with this number may have left it
    runtime = parts.plan.runtime
    crash, ended = crash_reporter(runtime), port_reporter(runtime, "locks of workers")
    await serve_unix(path, answer, crash, ended, task_status=task_status)


def _path(folder: Path, number: int) -> Path:
    return folder / f"locks of {number}"


async def dial(folder: Path, number: int) -> trio.abc.Stream:
    """
    Connect to the process of that number.

    Raises:
        OSError: it doesn't run.
    """
    path = str(_path(folder, number))
    return await open_stream(ServerAddress(host=f"process {number}", port=1, unix=path))
