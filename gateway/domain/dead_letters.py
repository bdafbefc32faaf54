"""The dead letters of the backlog queues: their number, reasons and age."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
from attrs import field

from gateway.domain.message import DEAD_LETTER_REASON, Delivery, Message
from gateway.domain.status.figures import (
    gauge,
)

EXPIRED: Final = "TTLExpiredException"
MALFORMED: Final = "EnvelopeMalformed"
OTHER: Final = "other"
UNKNOWN: Final = "unknown"
# The reasons that a syphon or a namespace writes. All others count as `other`, so that a metric has
# a bounded number of labels.
REASONS: Final = (
    MALFORMED,
    EXPIRED,
    "EntityNotFound",
    "EntityDisabled",
    "MessageTooLarge",
    "InvalidRequest",
    "NotSupported",
    "MaxDeliveryCountExceeded",
    "HeaderSizeExceeded",
    "ClaimMissing",
    "ClaimCorrupt",
    "PackCorrupt",
)
_LABELS: Final = frozenset(REASONS)


@attrs.frozen(kw_only=True)
class DeadLetters:
    """The dead letters of all backlog queues of a label. None: not known."""

    messages: int | None = None
    oldest_age: float | None = field(  # seconds since the oldest of them came to the backlog
        default=None,
        metadata=gauge(
            "pairgate_{place}_dead_letters_oldest_age_seconds",
            "Age of the oldest dead letter since it was enqueued.",
        ),
    )
    # By `label_of`. `unknown`: dead letters that the namespace counts but can't peek.
    reasons: Mapping[str, int] = field(
        factory=dict,
        metadata=gauge(
            "pairgate_{place}_dead_letters",
            "Dead letters, by reason.",
            labels=("reason",),
            of=lambda dead: dead.by_reason,
        ),
    )

    # Of `messages`, those whose time to live has ended here as it would have on their own queue,
    # which keeps no expired messages: nobody needs to do anything.
    expired: int = field(
        default=0,
        metadata=gauge(
            "pairgate_{place}_dead_letters_expired",
            "Dead letters that merely expired, as they would on their own queue.",
        ),
    )

    @property
    def to_look_at(self) -> int:
        """The messages that somebody should look at; 0 also if their number isn't known."""
        return max(0, (self.messages or 0) - self.expired)

    @property
    def by_reason(self) -> Mapping[str, int] | None:
        """The number for each known reason; None: not known."""
        if self.messages is None:
            return None
        return {reason: self.reasons.get(reason, 0) for reason in (*REASONS, OTHER, UNKNOWN)}

    @property
    def text(self) -> str:
        """As `20 EnvelopeMalformed, 1 other`, the most frequent reason first."""
        ordered = sorted(self.reasons.items(), key=lambda each: (-each[1], each[0]))
        return ", ".join(f"{count} {reason}" for reason, count in ordered)


def reason_of(message: Message) -> str:
    """The reason that a dead letter carries."""
    reason = message.properties.get(DEAD_LETTER_REASON)
    return reason if isinstance(reason, str) and reason else UNKNOWN


def label_of(reason: str) -> str:
    """The reason, if it is one of `REASONS`; else `other`."""
    return reason if reason in _LABELS or reason == UNKNOWN else OTHER


def summary(
    messages: int | None, peeked: Sequence[Delivery], now: datetime, *, expired: int = 0
) -> DeadLetters:
    """
    Summarize `messages` dead letters, of which `peeked`, each queue's oldest, were peeked, and
    `expired` of these as in `DeadLetters`.
    """
    reasons = Counter(label_of(reason_of(each.message)) for each in peeked)
    if messages is not None and messages > len(peeked):
        reasons[UNKNOWN] += messages - len(peeked)
    dates = [each.enqueued for each in peeked if each.enqueued is not None]
    age = max(0.0, (now - min(dates)).total_seconds()) if dates else None
    return DeadLetters(messages=messages, oldest_age=age, reasons=dict(reasons), expired=expired)
