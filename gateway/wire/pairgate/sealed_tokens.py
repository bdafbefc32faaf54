"""
Tokens of a namespace as clients of a cluster get them: any of its gateways settles with them.

    sealed token   Base64 (URL-safe, without padding) of AES-SIV (RFC 5297) of the namespace's token

The key is derived from the secret of the cluster. The entity is authenticated too, so a token of
another entity can't be opened. AES-SIV needs no nonce, and no two deliveries share a token.
"""

import base64
import functools
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from gateway.domain.entity import EntityPath

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

SHORTEST: Final = 37  # characters: longer than the UUID that every other lock token is
LONGEST: Final = 1024  # characters: a token travels in a URL, beside a queue's name
_PURPOSE: Final = b"Pairgate cluster: sealed tokens"
_TAG: Final = 16  # bytes, of AES-GCM


@attrs.define(eq=False)
class SealedTokens:
    """Seals tokens by the first of the `secrets`; opens those of all of them."""

    _secrets: Sequence[str] = attrs.field(repr=False)

    @functools.cached_property
    def _ciphers(self) -> "list[AESSIV]":
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # slow to import

        keys = [hmac.digest(each.encode(), _PURPOSE, "sha512") for each in self._secrets]
        return [AESSIV(key) for key in keys]

    def seal(self, entity: EntityPath, token: bytes) -> str:
        """The text for clients. `token` has at least 12 bytes, and at most 750."""
        sealed = self._ciphers[0].encrypt(token, [entity.key.encode()])
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def unseal(self, entity: EntityPath, text: str) -> bytes | None:
        """The namespace's token; None: no gateway of this cluster has sealed the text."""
        from cryptography.exceptions import InvalidTag

        if not SHORTEST <= len(text) <= LONGEST:
            return None
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
        if len(sealed) <= _TAG:
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed, [entity.key.encode()])
            except InvalidTag:
                continue
        return None
