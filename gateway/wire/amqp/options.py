"""Limits of an AMQP connection."""

import attrs

from gateway.domain.option_fields import BYTES


@attrs.frozen(kw_only=True)
class EngineOptions:
    """
    Limits of one connection. A peer that exceeds a limit gets an error, and its connection ends;
    with `session_window` only the session ends.
    """

    container_id: str = "pairgate"
    # Bytes of one received frame; AMQP requires 512 at least.
    max_frame_size: int = attrs.field(
        default=65536, validator=attrs.validators.ge(512), metadata=BYTES
    )
    channel_max: int = attrs.field(
        default=255, validator=[attrs.validators.ge(0), attrs.validators.le(65535)]
    )
    # Transfers that a peer may send in one session before we renew its window.
    session_window: int = attrs.field(
        default=100_000_000, validator=[attrs.validators.ge(2), attrs.validators.le(2**31 - 1)]
    )
    max_links: int = attrs.field(default=1000, validator=attrs.validators.ge(1))  # in all sessions
    # Bytes of messages whose last frames haven't arrived, over all links.
    max_partial: int = attrs.field(
        default=16 * 1024 * 1024, validator=attrs.validators.ge(1), metadata=BYTES
    )
    # Seconds after which a frame, or a message of several frames, must be complete; the engine's
    # ticks may see it up to so many seconds later. Time in which nothing is read doesn't count. 0:
    # no limit.
    partial_timeout: float = attrs.field(default=240.0, validator=attrs.validators.ge(0))
    # Seconds without a received byte; the peer is told half of it, which must be at least one
    # second. 0: no limit.
    idle_timeout: float = attrs.field(default=240.0)

    @idle_timeout.validator
    def _is_long_enough(self, _: object, seconds: float) -> None:
        if seconds != 0 and not seconds >= 2:
            raise ValueError(f"'idle_timeout' must be 0, or >= 2: {seconds}")
