"""Figures that change on a terminal."""

from collections.abc import Callable
from typing import Final

import trio
from rich.console import RenderableType
from rich.live import Live

REFRESH: Final = 0.2  # seconds


async def keep_shown(live: Live, show: Callable[[], RenderableType]) -> None:
    """Until cancelled, show the present figures."""
    while True:
        live.update(show(), refresh=True)
        await trio.sleep(REFRESH)
