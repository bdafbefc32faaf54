"""Stores that weren't closed, or that are damaged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from gateway.store.embedded.files import Disk
from tests.store.embedded.stores import opened

ROOT = Path(__file__).parents[3]
GOOD_DISK = Disk(file_system=lambda _path: "ext4", sync_seconds=lambda _file: 1e-3)

SEND_AND_DIE = """
import os, random, signal, sys
from datetime import UTC, datetime
from pathlib import Path
import trio
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message

async def main():
    path, options = Path(sys.argv[1]), EmbeddedOptions(create_missing=True)
    async with EmbeddedBroker(path, lambda: datetime.now(UTC), random.Random(0), options) as broker:
        for number in sys.argv[2:]:
            await broker.send(EntityPath("orders"), [Message(message_id=number)])
        os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


def send_and_die(path: Path, *numbers: str) -> None:
    """Leaves a log behind."""
    program = [sys.executable, "-c", SEND_AND_DIE, str(path), *numbers]
    died = subprocess.run(program, cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL


def content(folder: Path) -> dict[str, bytes]:
    """All but the lock, which is written to see how fast the disk is, and empty logs."""
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".lock"]
    return {path.name: path.read_bytes() for path in files if path.stat().st_size > 0}


def break_index(path: Path, name: str) -> None:
    """Spoil the root page of an index, or of a table."""
    with opened(path) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).get
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, b"\xff" * 100, (root - 1) * 4096)
    os.close(file)
