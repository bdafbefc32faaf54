"""
Encryption of a body in the store: AES-256-GCM under a key of its own, which travels in the
reference. The name of the body in the store is bound to it.
"""

from typing import Final

from gateway.domain.errors import MessageError

KEY: Final = 32  # bytes: AES-256
TAG: Final = 16  # bytes that the encryption adds
_NONCE: Final = bytes(12)  # all zero, since each key encrypts one body only


def encrypted(data: bytes, key: bytes, name: str) -> bytes:
    """The encrypted body with that name. The key must never encrypt another one."""
    # Imported here, as most processes encrypt nothing, and the import slows down their start.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).encrypt(_NONCE, data, name.encode())


def decrypted(data: bytes, key: bytes, name: str) -> bytes:
    """
    The body that was encrypted.

    Raises: MessageError: the body was changed, or has another key or name.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(_NONCE, data, name.encode())
    except InvalidTag as error:
        raise MessageError("the body in the store can't be decrypted: it was changed") from error
