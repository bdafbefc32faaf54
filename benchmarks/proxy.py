"""nginx as a plain reverse proxy with kept-alive connections: the baseline for a hop more."""

import os
import pwd
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.demo.ports import free_port

START_LIMIT: Final = 300.0  # seconds
KNOCK_PAUSE: Final = 0.02
_SBIN: Final = "/usr/sbin"  # where Debian has it, and not every user's path does


class ProxyFailed(Exception):
    """nginx isn't there, or doesn't begin to listen."""


@attrs.frozen(kw_only=True)
class Proxy:
    """A running nginx."""

    port: int
    pids: tuple[int, ...]  # of its master and its worker


@asynccontextmanager
async def nginx(folder: Path, upstream: int) -> AsyncIterator[Proxy]:
    """
    Run an nginx of our own, not the system's service, in front of a port.

    Raises:
        ProxyFailed: it didn't start.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if program is None:
        raise ProxyFailed("nginx isn't installed: Debian's package is nginx-light")
    port = free_port()
    file = _configure(folder, port, upstream)
    command = [program, "-e", "stderr", "-p", str(folder), "-c", str(file)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL)
    try:
        if not await listens(process, port):
            raise ProxyFailed("nginx doesn't listen")
        yield Proxy(port=port, pids=(process.pid, *_children(process.pid)))
    finally:
        process.terminate()
        with trio.move_on_after(START_LIMIT, shield=True):
            await process.wait()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def listens(process: trio.Process, port: int) -> bool:
    """Wait until the process accepts connections. False: it has ended, or takes too long."""
    with trio.move_on_after(START_LIMIT):
        while process.poll() is None:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(KNOCK_PAUSE)  # polled, since another process changes the state
            else:
                await stream.aclose()
                return True
    return False


def _configure(folder: Path, port: int, upstream: int) -> Path:
    folder.mkdir()
    file = folder / "nginx.conf"
    file.write_text(_config(folder, port, upstream))
    return file


def _config(folder: Path, port: int, upstream: int) -> str:
    # Started by root, its workers would be another user, who can't write here.
    user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n".join(f"    {kind}_temp_path {folder / kind};" for kind in kinds)
    return f"""
daemon off;
worker_processes 1;
pid {folder / "nginx.pid"};
{user}
events {{ worker_connections 512; }}
http {{
    access_log off;
{folders}
    upstream broker {{
        server 127.0.0.1:{upstream};
        keepalive 128;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000000;
        location / {{
            proxy_pass http://broker;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
        }}
    }}
}}
"""
