"""
Encryption of a diverted message: AES-256-GCM (NIST SP 800-38D) of all its sections.

    salt         16 bytes   of the AES key, which HKDF-SHA256 (RFC 5869) derives from a secret
    nonce        12 bytes   random, for this message
    ciphertext              of the message, encoded as in AMQP
    tag          16 bytes

With random nonces, one AES key may encrypt at most 2^32 messages (SP 800-38D, section 8.3). The
processes that share a secret can't count their messages together. Therefore each process derives
AES keys of its own, by random salts, and encrypts at most `MOST_MESSAGES` with one of them.
"""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import attrs

from gateway.domain.errors import MessageError
from gateway.domain.message import Message
from gateway.wire.amqp.message import decode_message, encode_message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SALT: Final = 16  # bytes: as many random bits as an AES key needs to be unique
# Of GCM, in bytes (SP 800-38D, 5.2.1.1 and 5.2.1.2).
NONCE: Final = 12
TAG: Final = 16
OVERHEAD: Final = SALT + NONCE + TAG
MOST_MESSAGES: Final = 2**24  # under one AES key; far fewer than 2^32, the limit
REMEMBERED: Final = 256  # AES keys to decrypt with; a process that diverts has one or two

_KEY: Final = 32  # bytes: AES-256
_PURPOSE: Final = b"envelope of Pairgate, AES-256-GCM"


@attrs.define(eq=False)
class MessageEncryption:
    """
    Encrypts and decrypts whole messages. `rng` must be cryptographically secure; a simulation
    gives one with a seed.
    """

    rng: random.Random
    most: int = MOST_MESSAGES
    _secret: bytes = attrs.field(default=b"", init=False, repr=False)  # of the current AES key
    _salt: bytes = attrs.field(default=b"", init=False, repr=False)
    _left: int = attrs.field(default=0, init=False)  # messages under the current AES key
    _cipher: "Callable[[bytes, bytes], AESGCM]" = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._cipher = lru_cache(maxsize=REMEMBERED)(_derived)

    def seal(self, secret: bytes, message: Message, associated: bytes) -> tuple[str, bytes]:
        """
        An id of this encrypted message, which only its copies share, and the encrypted message
        itself, which only the same secret and `associated` data open.

        Raises:
            MessageError: the message can't be encoded.
        """
        plain = encode_message(message)
        if self._left <= 0 or secret != self._secret:
            self._secret, self._salt = secret, self.rng.randbytes(SALT)
            self._left = self.most
        self._left -= 1
        nonce = self.rng.randbytes(NONCE)
        sealed = self._cipher(secret, self._salt).encrypt(nonce, plain, associated)
        return nonce.hex(), b"".join((self._salt, nonce, sealed))

    def open(self, secret: bytes, sealed: bytes, associated: bytes) -> Message:
        """
        The message that was encrypted.

        Raises:
            MessageError: it was encrypted with another secret or other `associated` data, was
                changed, or isn't an encrypted message at all.
        """
        from cryptography.exceptions import InvalidTag  # here for the reason in `_derived`

        if len(sealed) < OVERHEAD:
            raise MessageError(f"{len(sealed)} bytes are no encrypted message")
        salt, nonce = sealed[:SALT], sealed[SALT : SALT + NONCE]
        try:
            plain = self._cipher(secret, salt).decrypt(
                nonce, memoryview(sealed)[SALT + NONCE :], associated
            )
        except InvalidTag as error:
            raise MessageError("the message can't be decrypted: it was changed") from error
        return decode_message(plain)


def _derived(secret: bytes, salt: bytes) -> "AESGCM":
    """The cipher with the AES key of that secret and salt."""
    # Imported here: most processes encrypt nothing, and the imports slow their start down.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return AESGCM(HKDF(SHA256(), length=_KEY, salt=salt, info=_PURPOSE).derive(secret))
