"""The row of gateways that hand their sockets over."""

from typing import Final

from gateway.app.succession import Start, Succession, SuccessionRow
from gateway.extensions.take_over import FLAG
from gateway.extensions.take_over.options import TAKE_OVER


async def _open(start: Start) -> Succession:
    # The door, which no other gateway needs.
    from gateway.extensions.take_over.take_over import open_succession

    return await open_succession(start)


def _is_wanted(start: Start) -> bool:
    return FLAG in start.flags or start.config.of(TAKE_OVER) is not None


SUCCESSION: Final = SuccessionRow(_is_wanted, _open)
