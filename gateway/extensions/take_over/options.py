"""`take_over`: the Unix socket at which `serve --take-over` asks for the listening sockets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.options import Config
from gateway.extensions.tables import Table

TAKE_OVER: Final = Table[Path | None](name="take_over", kind=Path | None, missing=None)


def files(config: Config) -> Iterator[tuple[str, Path]]:
    """The socket, with the path of its key."""
    path = config.of(TAKE_OVER)
    if path is not None:
        yield "take_over", path
