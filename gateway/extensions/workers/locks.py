"""Lets the processes of a gateway settle deliveries that another one of them holds."""

from pathlib import Path

import trio

from gateway.app.endpoints import crash_reporter
from gateway.app.runtime import Runtime
from gateway.extensions.cluster.cluster import Cluster
from gateway.extensions.cluster.processes import name_of
from gateway.extensions.workers.passing_on import serve_unix
from gateway.frontends.leases import Leases
from gateway.net.dialing import ServerAddress, open_stream


async def serve_locks(
    cluster: Cluster,
    leases: Leases,
    folder: Path,
    runtime: Runtime,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """
    Answer the other processes until cancelled. `folder` has the sockets of all of them.
    """
    processes = cluster.processes
    assert processes is not None, "the gateway has workers"
    path = _path(folder, name_of(processes.own))
    path.unlink(missing_ok=True)  # an earlier process with this number may have left it
    server = cluster.server_of_process(leases)
    await serve_unix(
        path, server.serve_connection, crash_reporter(runtime), task_status=task_status
    )


def _path(folder: Path, name: str) -> Path:
    return folder / f"locks of {name}"


async def dial(folder: Path, name: str) -> trio.abc.Stream:
    """
    Connect to the process of that name.

    Raises:
        OSError: it doesn't run.
    """
    return await open_stream(ServerAddress(host=name, port=1, unix=str(_path(folder, name))))
