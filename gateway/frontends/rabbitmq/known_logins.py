"""
The logins that the primary has accepted, so that a client can connect in an outage.

A login is known by a salted digest of its credentials, in memory alone: neither a password nor a
token is kept.
"""

from typing import Final

import attrs

from gateway.domain.bounded import Bounded
from gateway.frontends.rabbitmq.login import ClientLogin
from gateway.wire.rabbitmq.relayed import RelayedFrame

# Seconds. The primary may have revoked a login since: a day is longer than most outages.
_MOST_AGE: Final = 86_400.0
_MOST: Final = 10_000  # logins: more than a broker has users


@attrs.define(eq=False)
class KnownLogins:
    # The primary's `connection.start`, as its clients get it, and its `connection.tune`.
    start: RelayedFrame | None = None
    tune: RelayedFrame | None = None
    # When each login and vhost was accepted last, by Trio's clock.
    _accepted: Bounded[tuple[bytes, str], float] = attrs.field(
        factory=lambda: Bounded(_MOST, renews=True)
    )

    def record(self, login: ClientLogin, now: float) -> None:
        """The primary has accepted that login."""
        self.start, self.tune = login.start, login.tune
        if login.is_in_one_step:
            self._accepted[login.digest, login.vhost] = now

    def forget(self, login: ClientLogin) -> None:
        """The primary has refused it."""
        self._accepted.pop((login.digest, login.vhost), None)

    def knows(self, login: ClientLogin, now: float) -> bool:
        """True if the primary has accepted these credentials for that vhost, within a day."""
        accepted = self._accepted.get((login.digest, login.vhost))
        return login.is_in_one_step and accepted is not None and now - accepted < _MOST_AGE
