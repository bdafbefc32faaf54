"""
`[claims]` and `[[packing]]`, the options of their parts, and what is wrong with them. All times are
in seconds, all sizes in bytes.
"""

import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
from attrs import validators

from gateway.brokers.entra.options import CredentialOptions
from gateway.config.options import Config
from gateway.config.places import absolute, problems_of_credential
from gateway.domain.backoff import Backoff
from gateway.domain.errors import InvalidRequest
from gateway.domain.option_fields import BYTES, FLAT, SECRET
from gateway.extensions.claims.pack import MAX_MEMBERS, MAX_PACK
from gateway.extensions.tables import Table
from gateway.wire.azure_blob import check_container, parse_blob_account

_FORTNIGHT: Final = 14 * 86400.0  # seconds: the default time to live of many queues in Azure
_LONG: Final[float | None] = _FORTNIGHT
_positive = validators.gt(0.0)


class Compression(enum.Enum):
    ZSTD = "zstd"
    NONE = "none"


@attrs.frozen(kw_only=True)
class ClaimOptions:
    """Options of the claim check. Sizes are bytes, times are seconds; None: for ever."""

    name: str = attrs.field(default="claims", validator=validators.min_len(1))
    above: int = attrs.field(default=128 * 1024, validator=validators.ge(1), metadata=BYTES)
    max_body: int = attrs.field(
        default=64 * 1024 * 1024, validator=validators.ge(1), metadata=BYTES
    )
    max_fetched: int = attrs.field(
        default=64 * 1024 * 1024, validator=validators.ge(1), metadata=BYTES
    )
    compression: Compression = Compression.ZSTD
    encrypt: bool = False  # each body under a key of its own, which travels in the reference
    timeout: float = attrs.field(default=10.0, validator=_positive)  # of one operation of the store
    retry: Backoff = Backoff(first=1.0, cap=30.0)  # of a body that couldn't be read
    missing_grace: float = attrs.field(default=60.0, validator=validators.ge(0.0))
    # after the message was completed
    keep: float = attrs.field(default=600.0, validator=validators.ge(0.0))
    keep_done: float = attrs.field(default=_FORTNIGHT, validator=validators.ge(3600.0))
    keep_expired: float | None = attrs.field(
        default=_LONG, validator=validators.optional(validators.ge(0.0))
    )
    keep_at_most: float | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(3600.0))
    )
    collect_every: float = attrs.field(default=3600.0, validator=_positive)


@attrs.frozen(kw_only=True)
class PackingRule:
    """
    The entities whose small messages are packed, for example `telemetry/*`, and the limits of a
    pack.
    """

    match: str
    wait: float = attrs.field(default=0.02, validator=[validators.ge(0.0), validators.le(60.0)])
    max_messages: int = attrs.field(
        default=100, validator=[validators.ge(2), validators.le(MAX_MEMBERS)]
    )
    max_pack: int = attrs.field(
        default=192 * 1024, validator=[validators.ge(1024), validators.le(MAX_PACK)], metadata=BYTES
    )  # uncompressed
    send_timeout: float = attrs.field(default=30.0, validator=_positive)


_ACCOUNT_KEY: Final = re.compile(r"(^|;) *(AccountKey|SharedAccessSignature) *=", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class Claims:
    """`[claims]`: without this section every body stays in its message."""

    store: str  # folder:PATH or azure-blob:CONNECTION_STRING, without its key
    container: str = "pairgate-claims"  # of azure-blob
    key: str = attrs.field(default="", repr=False, metadata=SECRET)
    connection_string: str = attrs.field(default="", repr=False, metadata=SECRET)  # instead of both
    credential: CredentialOptions | None = None  # of azure-blob, instead of the key
    options: ClaimOptions = attrs.field(factory=ClaimOptions, metadata=FLAT)


CLAIMS: Final = Table[Claims | None](name="claims", kind=Claims | None, missing=None)
PACKING: Final = Table[tuple[PackingRule, ...]](
    name="packing", kind=tuple[PackingRule, ...], missing=()
)


def completed(config: Config, folder: Path) -> Config:
    """The configuration with the store's path below its folder."""
    claims = config.of(CLAIMS)
    if claims is None:
        return config
    store = absolute(claims.store, folder, own="folder")
    return config.with_table(CLAIMS, attrs.evolve(claims, store=store))


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    claims = config.of(CLAIMS)
    if claims is None:
        return
    scheme, _, rest = claims.store.partition(":")
    if scheme == "folder":
        if not rest:
            yield "claims.store: a path expected after 'folder:'"
        return
    if scheme != "azure-blob":
        yield "claims.store: folder:PATH or azure-blob:CONNECTION_STRING expected"
        return
    if _ACCOUNT_KEY.search(rest):
        yield "claims.store: must not contain a secret; write key = { env = ... }"
        return
    try:
        check_container(claims.container)
    except InvalidRequest as error:
        yield f"claims.{error}"
    yield from _blob_account(claims, claims.connection_string or rest)


def _blob_account(claims: Claims, text: str) -> Iterator[str]:
    credential = claims.credential
    try:
        account = parse_blob_account(text, claims.key, needs_key=credential is None)
    except InvalidRequest as error:
        yield f"claims.store: {error}"
        return
    if credential is not None:
        hosts = [account.host]
        for problem in problems_of_credential(credential, is_plain=not account.secure, hosts=hosts):
            yield f"claims.credential{problem}"


def warnings(config: Config) -> Iterator[str]:
    """Yield a line if only one of diverted messages and large bodies is encrypted."""
    claims, pairing = config.of(CLAIMS), config.pairing
    if claims is None or pairing is None or claims.options.encrypt == pairing.encrypt:
        return
    if pairing.encrypt:
        yield (
            "claims.encrypt: false, although pairing.encrypt is true: the store's owner can read"
            " the large bodies"
        )
    else:
        yield (
            "pairing.encrypt: false, although claims.encrypt is true: the secondary's owner can"
            " read the keys of the large bodies that were diverted"
        )
