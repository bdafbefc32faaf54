"""Other gateways and processes that hold deliveries, as the leases of one of them see them."""

from typing import Protocol

from gateway.domain.entity import EntityPath
from gateway.domain.message import Delivery, Settlement


class Elsewhere(Protocol):
    """
    The other gateways of a cluster, and the other processes of this one: each has leases of its
    own.
    """

    @property
    def seals(self) -> bool:
        """True if clients may get sealed tokens, because other gateways can open them."""
        ...

    def seal(self, entity: EntityPath, token: bytes) -> str:
        """The namespace's token in the form for clients: each of the gateways can open it."""
        ...

    def unseal(self, entity: EntityPath, lock_token: str) -> bytes | None:
        """The namespace's token of that entity; None: no gateway has sealed it."""
        ...

    def new_token(self) -> str:
        """A lock token by which the others know that this process holds the delivery."""
        ...

    def is_elsewhere(self, lock_token: str) -> bool:
        """True if one of the others has made that token."""
        ...

    async def settle(self, entity: EntityPath, lock_token: str, settlement: Settlement) -> None:
        """
        As `Leases.settle`, by the process that has made the token.

        Raises:
            LockLost: also if that process is gone.
            HolderSilent: that process didn't answer.
        """
        ...

    async def renew(self, entity: EntityPath, lock_token: str) -> Delivery:
        """As `Leases.renew`, by the process that has made the token. Raises as `settle`."""
        ...
