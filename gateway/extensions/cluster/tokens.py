"""
Lock tokens and marks of receipts that name the gateway of a cluster that holds the delivery.

    lock token    a UUID of version 4, as Service Bus has them, whose 122 free bits are
                  holder's tag (32)  random (50)  mark (40)
    mark          BLAKE2s of the bits before it, with a key that is derived from the secret
    holder's tag  the first 32 bits of BLAKE2s of its address; never 0
    process in a gateway with workers, 8 of the random bits name the process that holds the delivery

A gateway computes the tags of its peers from their addresses. The mark keeps requests with made-up
tokens from reaching a peer. The holder itself looks the whole token up, which is as hard to guess
as 90 random bits, or 82.
"""

import hashlib
import hmac
import random
import re
from collections.abc import Sequence
from typing import Final

import attrs

from gateway.wire.pairgate.sealed_tokens import SealedTokens

# The parts of a token, as at the top of this file.
_PROCESS_BITS: Final = 8
_RANDOM_BITS: Final = 50
_MARK_BITS: Final = 40
_NAMED: Final = 11  # bytes of tag and random bits
# The fixed bits of a UUID of version 4 (RFC 9562, 5.4) are in the middle of it.
_LOW: Final = 62
_MIDDLE: Final = 12
_VERSION: Final = 0x4 << 76 | 0x2 << 62
_FIXED: Final = 0xF << 76 | 0x3 << 62
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


def tag_of(address: str) -> int:
    """The tag of the gateway with that address."""
    digest = hashlib.blake2s(address.encode(), digest_size=4, person=b"pg-holdr").digest()
    return int.from_bytes(digest) or 1


def derived_key(secret: str, purpose: str) -> bytes:
    """A key for one purpose alone."""
    return hmac.digest(secret.encode(), f"Pairgate cluster: {purpose}".encode(), "sha256")


@attrs.frozen
class Holder:
    """The gateway with that tag, and, if it has workers, the process that holds a delivery."""

    tag: int
    process: int = 0


@attrs.define(eq=False)
class HolderTokens:
    """
    Makes tokens with the tag `own` and the number of this `process` (None: the gateway has one), by
    the first of the `secrets`; reads those of all of them.

    `rng` must be cryptographically secure; a simulation gives one with a seed.
    """

    own: int
    _secrets: Sequence[str] = attrs.field(repr=False)
    _rng: random.Random
    process: int | None = None
    _lock_keys: list[bytes] = attrs.field(init=False, repr=False)
    _receipt_keys: list[bytes] = attrs.field(init=False, repr=False)
    sealed: SealedTokens = attrs.field(init=False, repr=False)  # of the namespace

    def __attrs_post_init__(self) -> None:
        self._lock_keys = [derived_key(each, "lock tokens") for each in self._secrets]
        self._receipt_keys = [derived_key(each, "pop receipts") for each in self._secrets]
        self.sealed = SealedTokens(self._secrets)

    def new_token(self) -> str:
        """A lock token of this gateway."""
        own = self._rng.getrandbits(_RANDOM_BITS)
        if self.process is not None:
            own = own >> _PROCESS_BITS << _PROCESS_BITS | self.process
        named = self.own << _RANDOM_BITS | own
        free = named << _MARK_BITS | _mark(self._lock_keys[0], named)
        high, middle = free >> (_LOW + _MIDDLE), free >> _LOW & (1 << _MIDDLE) - 1
        digits = f"{high << 80 | middle << 64 | _VERSION | free & (1 << _LOW) - 1:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def holder_of(self, lock_token: str) -> Holder | None:
        """The holder in a lock token; None: no gateway of this cluster has made it."""
        if not _UUID.fullmatch(lock_token):
            return None
        whole = int(lock_token.replace("-", ""), 16)
        if whole & _FIXED != _VERSION:
            return None
        high, middle = whole >> 80, whole >> 64 & (1 << _MIDDLE) - 1
        free = (high << _MIDDLE | middle) << _LOW | whole & (1 << _LOW) - 1
        named, mark = free >> _MARK_BITS, free & (1 << _MARK_BITS) - 1
        # A comparison of numbers may take a time that reveals a part of the mark. A client that
        # found out the mark could cause requests to a peer, and would still have to guess the
        # random bits.
        if all(_mark(key, named) != mark for key in self._lock_keys):
            return None
        return Holder(named >> _RANDOM_BITS, named & (1 << _PROCESS_BITS) - 1)

    def is_made_here(self, holder: Holder) -> bool:
        """True for this very process, or an earlier one in its place."""
        return holder.tag == self.own and self.process in {None, holder.process}

    def marks(self, text: bytes) -> Sequence[bytes]:
        """Signatures of a receipt, one by each secret; the first signs new receipts."""
        return [hmac.digest(key, text, "sha256") for key in self._receipt_keys]


def _mark(key: bytes, named: int) -> int:
    digest = hashlib.blake2s(named.to_bytes(_NAMED), key=key, digest_size=_MARK_BITS // 8).digest()
    return int.from_bytes(digest)
