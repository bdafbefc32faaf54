"""
The remaining time to live of a diverted message, where wall clocks may be wrong.

Three pairs of dates measure how long a message has lived, each as wrong as its clocks:

    the gateway's when it took the message    ours now
    the gateway's when it took the message    ours now, without a step that is in doubt
    the backlog's when it was enqueued        the backlog's when it was handed out, and our
                                              monotonic clock since then

A pair with a negative result is ignored. So are the first two if the gateway took the message at a
date before this program was built, as a machine without a battery does after its boot. Of the
others the smallest result counts, so that a message may live too long but never expires too early.
"""

from datetime import datetime, timedelta
from typing import Final

from gateway.domain.clocks.clock_note import BUILT
from gateway.domain.clocks.times import Now, moved, to_date, to_micros
from gateway.domain.envelope import Unwrapped
from gateway.domain.message import Delivery
from gateway.domain.values import value

TOLERANCE: Final = timedelta(seconds=5)  # of clocks that are right, and dates in whole seconds
LONGEST_SEND: Final = timedelta(minutes=1)  # from the gateway's receipt to the backlog
_ZERO: Final = timedelta(0)


@value
class Stay:
    """A message's time on the backlog, by the clock of that namespace alone."""

    enqueued: datetime
    lasted: timedelta

    @classmethod
    def at_receipt(cls, delivery: Delivery) -> "Stay | None":
        """The stay until the delivery. None: the namespace doesn't report the dates."""
        if delivery.received is None or delivery.enqueued is None:
            return None
        return cls(delivery.enqueued, delivery.received - delivery.enqueued)


def remaining(unwrapped: Unwrapped, now: Now, stay: Stay | None = None) -> timedelta | None:
    """
    The remaining time to live. Zero or less: the message has expired. None: it never expires.

    The time to live of a scheduled message starts at its date, as in Service Bus. The result is at
    most the time to live that the message was sent with.
    """
    life, expires = unwrapped.time_to_live, unwrapped.expires
    if expires is None:
        return life
    if life is None:
        return expires - _begin(unwrapped, to_date(now.earliest))
    by_ours = _lived(unwrapped, to_date(now.wall), life, expires)
    begun = moved(expires, -life)
    told = []
    if begun is not None and to_micros(begun) >= BUILT:
        told.append(by_ours)
        if now.before is not None:
            told.append(_lived(unwrapped, to_date(now.before), life, expires))
    if stay is not None:
        told.append(_lived_by(stay, unwrapped, life, expires))
    least = min((lived for lived in told if lived >= -TOLERANCE), default=_ZERO)
    if least <= by_ours <= least + TOLERANCE:
        least = by_ours
    return life - max(least, _ZERO)


def _begin(unwrapped: Unwrapped, date: datetime) -> datetime:
    scheduled = unwrapped.message.scheduled
    return date if scheduled is None else max(date, scheduled)


def _lived(unwrapped: Unwrapped, date: datetime, life: timedelta, expires: datetime) -> timedelta:
    """The time lived until that date, by the expiry in the envelope."""
    return _begin(unwrapped, date) - expires + life


def _lived_by(stay: Stay, unwrapped: Unwrapped, life: timedelta, expires: datetime) -> timedelta:
    """
    The time lived by the stay on the backlog, plus the time before it if the clocks of gateway and
    backlog agree well enough to tell.
    """
    if stay.lasted < _ZERO:
        return stay.lasted
    begun = _begin(unwrapped, stay.enqueued)
    before = begun - expires + life
    lived = max(stay.lasted - (begun - stay.enqueued), _ZERO)
    return lived + before if -TOLERANCE <= before <= LONGEST_SEND else lived
