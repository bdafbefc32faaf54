"""The store of large bodies: named byte strings, with four operations."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from gateway.extensions.claims.claim import Entry


class ClaimStore(Protocol):
    """
    Stores bytes under names that `claim.is_name` accepts.

    Every method raises `BrokerError` if the store can't be reached, is full, or refuses the
    credentials. After a cancellation, a `put` or `remove` may have been done.
    """

    async def put(self, name: str, data: bytes) -> None:
        """Return once the bytes are durable under that name; they replace earlier ones."""
        ...

    async def get(self, name: str, limit: int) -> bytes:
        """
        Return the bytes under that name.

        Raises:
            ClaimMissing: the store works, and has no such name.
            ClaimCorrupt: there are more than `limit` bytes.
        """
        ...

    async def remove(self, name: str) -> None:
        """Return when the name doesn't exist, even if it never existed."""
        ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """All entries whose names begin with the prefix, which has two characters."""
        ...

    async def date(self) -> datetime:
        """
        The date now by the clock that dates the entries; the earlier of two dates, if that clock
        was set forward and one of the two is wrong.
        """
        ...
