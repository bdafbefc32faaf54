"""
Azurite, the emulator of Azure Storage, with one service only: the npm package of `locks/node`.

It answers before anything is on the disk (it saves every 5 s), and a get costs it time for every
message that it holds.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from gateway.demo.ports import free_port
from tests.harness.servers import ServerFailed, ServerProcess, answers, running

ACCOUNT: Final = "devstoreaccount1"  # the emulator's well-known one
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
# The SDKs speak versions that are younger than it.
_SWITCHES: Final = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
MODULES: Final = Path(__file__).parents[2] / ".node" / "node_modules"  # where make installs it


@asynccontextmanager
async def azurite(
    folder: Path, modules: Path = MODULES, service: str = "queue", certificate: Path | None = None
) -> AsyncIterator[tuple[ServerProcess, int]]:
    """
    Run one with its data in `folder`; yield its process and its port. It's killed in the end.

    `service` is "queue" or "blob". With a certificate, whose key is beside it, it has TLS and takes
    access tokens too; it doesn't check their signatures.

    Raises:
        ServerFailed: it or Node.js isn't installed, or it didn't start.
    """
    script = modules / "azurite" / "dist" / "src" / service / "main.js"
    if not script.exists():
        raise ServerFailed(f"Azurite isn't installed in {modules}: make .node/.stamp does it")
    await trio.Path(folder).mkdir(parents=True, exist_ok=True)
    port = free_port()
    options = [f"--{service}Host", "127.0.0.1", f"--{service}Port", str(port)]
    options += ["--location", str(folder)]
    if certificate is not None:
        key = certificate.with_suffix(".key")
        options += ["--cert", str(certificate), "--key", str(key), "--oauth", "basic"]
    server = ServerProcess(
        # By its script: the command of that name starts another process.
        command=["node", str(script), *options, *_SWITCHES],
        folder=folder,
        is_ready=lambda: _is_ready(port, secure=certificate is not None),
    )
    async with running(server):
        yield server, port


async def _is_ready(port: int, *, secure: bool) -> bool:
    if not secure:
        return await answers(port, _question(port), b"HTTP/1.1 403")
    try:
        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
    except OSError:
        return False
    return True


def _question(port: int) -> bytes:
    """A request without a signature, which a server that is ready refuses."""
    return f"GET /{ACCOUNT}?comp=list HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def version(modules: Path = MODULES) -> str:
    text: str = json.loads((modules / "azurite" / "package.json").read_text())["version"]
    return text
