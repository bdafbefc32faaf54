"""The roles that a process can have."""

from enum import Enum
from typing import Final

from gateway.config.endpoints import LISTEN, SERVE, SYPHON


class Role(Enum):
    """
    The purpose of a process. A gateway is one process (`ALONE`), or a `PARENT` with workers, which
    serve its clients.
    """

    ALONE = SERVE
    PARENT = "parent"
    WORKER = "worker"
    SYPHON = SYPHON
    LISTENER = LISTEN

    @property
    def leads(self) -> bool:
        """True if the process does what a gateway needs once: setup, syphons, operators' orders."""
        return self in LEADING


LEADING: Final = frozenset({Role.ALONE, Role.PARENT})
GATEWAY: Final = LEADING | {Role.WORKER}
