"""Options of claim check and packing. All times are in seconds, all sizes in bytes."""

import enum
from typing import Final

import attrs
from attrs import validators

from gateway.domain.backoff import Backoff
from gateway.domain.option_fields import BYTES
from gateway.extensions.claims.pack import MAX_MEMBERS, MAX_PACK

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
