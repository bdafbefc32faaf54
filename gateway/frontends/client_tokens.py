"""
The namespace's own tokens of deliveries, as clients have them that keep such a token.

A token is a text of its own form, longer than the UUID that every other lock token is. A cluster
seals it (`gateway.wire.pairgate.sealed_tokens`). Without one it is open: who has it may use the
queue, and the namespace's part of it can't be guessed.
"""

import base64
from typing import Protocol

from gateway.domain.entity import EntityPath
from gateway.wire.pairgate.sealed_tokens import LONGEST, SHORTEST


class ClientTokens(Protocol):
    """Writes and reads the tokens that clients have."""

    def seal(self, entity: EntityPath, token: bytes) -> str:
        """The text for clients."""
        ...

    def unseal(self, entity: EntityPath, text: str) -> bytes | None:
        """The namespace's token; None: the text is no such token."""
        ...


class OpenTokens:
    """`ClientTokens` of a gateway without a cluster: each gateway reads them."""

    def seal(self, entity: EntityPath, token: bytes) -> str:
        """As `ClientTokens.seal`: Base64, safe in a URL."""
        return base64.urlsafe_b64encode(token).rstrip(b"=").decode()

    def unseal(self, entity: EntityPath, text: str) -> bytes | None:
        """As `ClientTokens.unseal`."""
        if not SHORTEST <= len(text) <= LONGEST:
            return None
        try:
            return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
