"""Decides when the expiry of a certificate deserves a warning."""

import enum
from datetime import datetime, timedelta
from typing import Final

import attrs
from attrs import field

from gateway.domain.status.figures import (
    gauge,
    label,
)


class Urgency(enum.IntEnum):
    """The urgency of a certificate's renewal: the nearer its expiry, the higher."""

    NONE = 0
    SOON = 1
    VERY_SOON = 2
    EXPIRED = 3


# Before the expiry; a certificate with a short life has shorter warnings, since it is renewed late.
_WARNINGS: Final = {
    Urgency.SOON: (timedelta(days=30), 1 / 4),
    Urgency.VERY_SOON: (timedelta(days=7), 1 / 12),
}


@attrs.frozen(kw_only=True)
class Expiry:
    """The expiry of a certificate, or a revocation list, in a file that the configuration names."""

    setting: str = field(metadata=label("setting"))
    file: str = field(metadata=label("file"))
    at: datetime = field(
        metadata=gauge(
            "pairgate_certificate_expiry_time_seconds",
            "When a certificate expires, in seconds since 1970.",
        )
    )
    certificate: str = ""  # its subject and serial
    urgency: int = 0  # an `Urgency`, at the date of the status
    # Why changed files of this setting aren't used; empty: they are, or haven't changed.
    refused: str = field(
        default="",
        metadata=gauge(
            "pairgate_certificate_files_refused",
            "1: changed files can't be used, and the previous certificate stays in use.",
            of=lambda expiry: bool(expiry.refused),
        ),
    )


def urgency_of(starts: datetime, expires: datetime, now: datetime) -> Urgency:
    """
    SOON from 30 days before the expiry, VERY_SOON from 7 days before; but not before three
    quarters, and eleven twelfths, of the certificate's life have passed.
    """
    if now >= expires:
        return Urgency.EXPIRED
    for urgency in (Urgency.VERY_SOON, Urgency.SOON):
        most, share = _WARNINGS[urgency]
        if expires - now <= min(most, (expires - starts) * share):
            return urgency
    return Urgency.NONE
