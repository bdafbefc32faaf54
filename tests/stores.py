"""Stores as `serve` leaves them: no other command makes any."""

from contextlib import AsyncExitStack
from pathlib import Path

import trio

from gateway.app.assembly.building import make_parts
from gateway.app.runtime import Runtime
from gateway.config.file import load


def make_stores(file: Path) -> None:
    """Make the stores of that configuration, with all entities that it names."""
    config = load(file, environ={}, here=file.parent).config

    async def open_and_close() -> None:
        async with AsyncExitStack() as stack:
            await make_parts(stack, config, Runtime())

    trio.run(open_and_close)
