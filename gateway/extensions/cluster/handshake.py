"""
The encrypted channel between two gateways of a cluster, without its sockets.

    hello of the client   "PGCLUST1"  id of the secret (8 bytes)  X25519 public key (32)
    hello of the server   "PGCLUST1"  X25519 public key (32)
    then frames           length (4 bytes, big-endian)  AES-256-GCM ciphertext with its tag

The first frame of each side is empty: it proves that the side knows the secret. A key for each
direction is derived (HKDF-SHA256, RFC 5869) from the secret and the X25519 exchange (RFC 7748),
with both hellos and the server's address as salt. So each side knows that the other one has the
secret, that it means this server, and that nothing was changed, left out or sent twice; a secret
that leaks later doesn't open a recorded connection.
"""

import hashlib
import random
from typing import TYPE_CHECKING, Final

import attrs

from gateway.domain.errors import GatewayError
from gateway.extensions.cluster.tokens import derived_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LENGTH: Final = 4  # bytes before a ciphertext
TAG: Final = 16  # bytes of the tag of AES-GCM: the whole ciphertext of an empty frame
_MAGIC: Final = b"PGCLUST1"
# Bytes: of the secret's id, which only tells secrets apart, of a point of X25519 (RFC 7748), and of
# a key of AES-256.
_ID: Final = 8
_POINT: Final = 32
_KEY: Final = 32
CLIENT_HELLO: Final = len(_MAGIC) + _ID + _POINT  # bytes
SERVER_HELLO: Final = len(_MAGIC) + _POINT
MOST_FRAMES: Final = 2**32  # in one direction: then the connection ends


class ChannelError(GatewayError):
    """The other side doesn't have the secret, means another gateway, or breaks the rules."""


def id_of(secret: str) -> bytes:
    """Tells a gateway with several secrets which one a peer uses."""
    return derived_key(secret, "id")[:_ID]


@attrs.define(eq=False)
class SealedFrames:
    """A side of a channel whose keys are agreed. Frames must be opened in their order."""

    _sending: "AESGCM"
    _receiving: "AESGCM"
    _sent: int = attrs.field(default=0, init=False)
    _opened: int = attrs.field(default=0, init=False)

    def seal(self, plain: bytes) -> bytes:
        """
        The frame, with its length.

        Raises:
            ChannelError: the channel has carried as many frames as its key allows.
        """
        if self._sent >= MOST_FRAMES:
            raise ChannelError("the channel's key is used up")
        sealed = self._sending.encrypt(self._sent.to_bytes(12), plain, None)
        self._sent += 1
        return len(sealed).to_bytes(LENGTH) + sealed

    def open(self, sealed: bytes) -> bytes:
        """
        The content of the next frame, whose ciphertext this is.

        Raises:
            ChannelError: the other side has other keys, or the frame isn't the next one.
        """
        from cryptography.exceptions import InvalidTag  # here for the reason in `_keys`

        try:
            plain = self._receiving.decrypt(self._opened.to_bytes(12), sealed, None)
        except (InvalidTag, ValueError) as error:
            raise ChannelError(
                "the other side has another secret or another address in mind, or the bytes were"
                " changed on their way"
            ) from error
        self._opened += 1
        return plain


@attrs.define(eq=False)
class ClientHandshake:
    """The side that connects to the gateway with that address."""

    _secret: str = attrs.field(repr=False)
    _address: str
    _rng: random.Random
    _private: "X25519PrivateKey" = attrs.field(init=False, repr=False)
    hello: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._private = _private_key(self._rng)
        self.hello = _MAGIC + id_of(self._secret) + _public(self._private)

    def agree(self, hello: bytes) -> SealedFrames:
        """
        The channel, once the server's hello has arrived. Nothing is proven yet.

        Raises:
            ChannelError: it isn't the hello of a gateway.
        """
        if len(hello) != SERVER_HELLO or not hello.startswith(_MAGIC):
            raise ChannelError("the other side is no gateway of a cluster")
        shared = _exchanged(self._private, hello[len(_MAGIC) :])
        to_server, to_client = _keys(self._secret, shared, self.hello + hello, self._address)
        return SealedFrames(to_server, to_client)


@attrs.frozen(eq=False)
class ServerHandshake:
    """The side that has that address and is connected to."""

    _secrets: tuple[str, ...] = attrs.field(repr=False)
    _address: str
    _rng: random.Random

    def agree(self, hello: bytes) -> tuple[bytes, SealedFrames]:
        """
        The server's hello, and the channel. Nothing is proven yet.

        Raises:
            ChannelError: it isn't the hello of a gateway, or of one with an unknown secret.
        """
        if len(hello) != CLIENT_HELLO or not hello.startswith(_MAGIC):
            raise ChannelError("the other side is no gateway of a cluster")
        named, point = hello[len(_MAGIC) :][:_ID], hello[len(_MAGIC) + _ID :]
        secret = next((each for each in self._secrets if id_of(each) == named), None)
        if secret is None:
            raise ChannelError("the other side uses a secret that isn't configured here")
        private = _private_key(self._rng)
        own = _MAGIC + _public(private)
        shared = _exchanged(private, point)
        to_server, to_client = _keys(secret, shared, hello + own, self._address)
        return own, SealedFrames(to_client, to_server)


def is_begun(hello: bytes) -> bool:
    """False if bytes with this beginning can't be the hello of a gateway."""
    return _MAGIC.startswith(hello[: len(_MAGIC)])


def _private_key(rng: random.Random) -> "X25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(rng.randbytes(_POINT))


def _public(private: "X25519PrivateKey") -> bytes:
    return private.public_key().public_bytes_raw()


def _exchanged(private: "X25519PrivateKey", point: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return private.exchange(X25519PublicKey.from_public_bytes(point))
    except ValueError as error:  # a point of small order: the result would be known to everybody
        raise ChannelError("the other side's public key is invalid") from error


def _keys(secret: str, shared: bytes, hellos: bytes, address: str) -> "tuple[AESGCM, AESGCM]":
    """The ciphers to the server and to the client."""
    # Imported here: most processes are in no cluster, and the imports slow their start down.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    salt = hashlib.sha256(hellos + address.encode()).digest()
    derive = HKDF(SHA256(), length=2 * _KEY, salt=salt, info=b"Pairgate cluster channel")
    keys = derive.derive(derived_key(secret, "channel") + shared)
    return AESGCM(keys[:_KEY]), AESGCM(keys[_KEY:])
