"""What keeps large bodies: a few names with bytes, and nothing else is asked of it."""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.claim import Entry


class ClaimStore(Protocol):
    """
    Keeps bytes under names, which `domain.claim.is_name` knows.

    Every method raises `BrokerError` if the store can't be reached, is full, or refuses the
    credentials. A cancelled `put` or `remove` may have been done.
    """

    async def put(self, name: str, data: bytes) -> None:
        """Return once the bytes are there durably, also after a crash; others are replaced."""
        ...

    async def get(self, name: str, limit: int) -> bytes:
        """
        Raises:
            ClaimMissing: the store works, and has nothing of that name.
            ClaimCorrupt: it's more than `limit` bytes.
        """
        ...

    async def remove(self, name: str) -> None:
        """Return when there is nothing of that name, also where there was nothing."""
        ...

    async def list(self, shelf: str) -> Sequence[Entry]:
        """All whose names begin with the two characters of that shelf."""
        ...
