"""Decides when the expiry of a certificate deserves a warning."""

import enum
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import attrs


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

    setting: str
    file: str
    at: datetime
    certificate: str = ""  # its subject and serial
    urgency: int = 0  # an `Urgency`, at the date of the status
    # Why changed files of this setting aren't used; empty: they are, or haven't changed.
    refused: str = ""

    def problems(self) -> Iterator[str]:
        """Return a line for each problem that an operator must solve."""
        if self.refused:
            yield (
                f"changed certificate files can't be used, and the previous ones stay in use:"
                f" {self.refused}; correct the files"
            )
        named = f"{self.setting} ({self.certificate}, {self.file})"
        if self.urgency >= Urgency.EXPIRED:
            yield f"{named} has expired at {self.at:%Y-%m-%dT%H:%M:%SZ}; replace the file"
        elif self.urgency >= Urgency.VERY_SOON:
            yield f"{named} expires at {self.at:%Y-%m-%dT%H:%M:%SZ}; replace the file"


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
