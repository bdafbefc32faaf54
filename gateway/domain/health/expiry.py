"""Decides when the end of a certificate deserves a warning."""

import enum
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import attrs


class Urgency(enum.IntEnum):
    """How near the end of a certificate is."""

    NONE = 0
    SOON = 1
    VERY_SOON = 2
    ENDED = 3


# Before the end; a certificate with a short life has shorter warnings, since it is renewed late.
_WARNINGS: Final = {
    Urgency.SOON: (timedelta(days=30), 1 / 4),
    Urgency.VERY_SOON: (timedelta(days=7), 1 / 12),
}


@attrs.frozen(kw_only=True)
class Expiry:
    """The end of a certificate, or of a revocation list, in a file that the configuration names."""

    setting: str
    file: str
    at: datetime
    certificate: str = ""  # its subject and serial
    urgency: int = 0  # an `Urgency`, at the date of the status
    # Why changed files of this setting aren't used; empty: they are, or haven't changed.
    refused: str = ""

    def problems(self) -> Iterator[str]:
        """One line for each problem that an operator must solve."""
        if self.refused:
            yield (
                f"changed certificate files can't be used, and the previous ones stay in use:"
                f" {self.refused}; correct the files"
            )
        named = f"{self.setting} ({self.certificate}, {self.file})"
        if self.urgency >= Urgency.ENDED:
            yield f"{named} has ended at {self.at:%Y-%m-%dT%H:%M:%SZ}; replace the file"
        elif self.urgency >= Urgency.VERY_SOON:
            yield f"{named} ends at {self.at:%Y-%m-%dT%H:%M:%SZ}; replace the file"


def urgency_of(starts: datetime, ends: datetime, now: datetime) -> Urgency:
    """
    SOON from 30 days before the end, VERY_SOON from 7 days before; but not before three quarters,
    and eleven twelfths, of the certificate's life have passed.
    """
    if now >= ends:
        return Urgency.ENDED
    for urgency in (Urgency.VERY_SOON, Urgency.SOON):
        most, share = _WARNINGS[urgency]
        if ends - now <= min(most, (ends - starts) * share):
            return urgency
    return Urgency.NONE
