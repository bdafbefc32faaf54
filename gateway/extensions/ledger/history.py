"""
The meaning of the facts about one message: where it is, and whether it may arrive twice.

Only counts matter, never the order: the facts come from machines whose clocks differ.
"""

import enum
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import attrs

from gateway.extensions.ledger.facts import Fact, PairSide, What


class MessagePlace(enum.Enum):
    """The place of a message, as far as the facts tell."""

    AT_PRIMARY = "at-primary"
    ON_BACKLOG = "on-backlog"
    COMPLETED = "completed-on-backlog"
    DEAD_LETTERED = "dead-lettered"
    UNKNOWN = "unknown"
    NOT_SENT = "not-sent"
    NOT_RECORDED = "not-recorded"


class Twice(enum.Enum):
    """Tells if a message arrives twice, by sends of clients, gateways and syphons alike."""

    NO = "no"
    POSSIBLE = "possible"
    CERTAIN = "certain"


@attrs.define
class Counts:
    """The facts about one message of one entity, counted."""

    of: Counter[tuple[PairSide, What]] = attrs.field(factory=Counter)

    def add(self, fact: Fact) -> None:
        self.of[fact.side, fact.what] += 1

    @property
    def accepted(self) -> int:
        """Copies that the primary has accepted."""
        return self.of[PairSide.PRIMARY, What.ACCEPTED]

    @property
    def doubtful(self) -> int:
        """Sends without an answer."""
        return self.of[PairSide.PRIMARY, What.UNKNOWN] + self.of[PairSide.SECONDARY, What.UNKNOWN]

    @property
    def diverted(self) -> int:
        """Copies that a backlog queue has accepted."""
        return self.of[PairSide.SECONDARY, What.ACCEPTED]

    @property
    def completed(self) -> int:
        """Copies that were completed on the backlog."""
        return self.of[PairSide.SECONDARY, What.COMPLETED]

    @property
    def dead_lettered(self) -> int:
        """Copies that were dead-lettered on the backlog."""
        return self.of[PairSide.SECONDARY, What.DEAD_LETTERED]

    @property
    def waiting(self) -> int:
        """Copies that wait on the backlog."""
        return max(0, self.diverted - self.completed - self.dead_lettered)

    @property
    def where(self) -> MessagePlace:
        if self.accepted:
            return MessagePlace.AT_PRIMARY
        if self.waiting:
            return MessagePlace.ON_BACKLOG
        if self.dead_lettered:
            return MessagePlace.DEAD_LETTERED
        if self.completed:
            return MessagePlace.COMPLETED
        if self.doubtful:
            return MessagePlace.UNKNOWN
        return MessagePlace.NOT_SENT if self.of else MessagePlace.NOT_RECORDED

    @property
    def twice(self) -> Twice:
        if self.accepted > 1:
            return Twice.CERTAIN
        kept = self.accepted + self.waiting
        if kept > 1 or (kept and self.doubtful) or self.doubtful > 1:
            return Twice.POSSIBLE
        return Twice.NO


@attrs.frozen(kw_only=True)
class MessageHistory:
    """All facts about one message of one entity, by their dates."""

    entity: str
    facts: Sequence[Fact]
    counts: Counts

    @property
    def queues(self) -> Sequence[str]:
        """The backlog queues that have, or may have, a copy."""
        had: Counter[str] = Counter()
        for each in self.facts:
            if each.side is PairSide.SECONDARY and each.what in {What.ACCEPTED, What.UNKNOWN}:
                had[each.queue] += 1
            elif each.side is PairSide.SECONDARY and each.what is not What.NOT_SENT:
                had[each.queue] -= 1
        return sorted(queue for queue, copies in had.items() if copies > 0)

    def latest(self, what: What, side: PairSide) -> Fact | None:
        """The latest fact of that kind."""
        found = [each for each in self.facts if each.what is what and each.side is side]
        return found[-1] if found else None


def histories(facts: Sequence[Fact]) -> list[MessageHistory]:
    """The histories of one message id: one for each entity, by names."""
    by_entity: dict[str, list[Fact]] = {}
    for each in sorted(facts, key=_date):
        by_entity.setdefault(each.entity.lower(), []).append(each)
    return [
        MessageHistory(entity=found[0].entity, facts=found, counts=counted(found))
        for _, found in sorted(by_entity.items())
    ]


def counted(facts: Sequence[Fact]) -> Counts:
    counts = Counts()
    for each in facts:
        counts.add(each)
    return counts


def _date(fact: Fact) -> datetime:
    return fact.at


def text_of(fact: Fact) -> str:
    """The fact in words, for people."""
    place = f"backlog queue {fact.queue}" if fact.side is PairSide.SECONDARY else "the primary"
    match fact.what:
        case What.ACCEPTED:
            return f"{place} accepted it"
        case What.NOT_SENT:
            return f"{place} didn't accept it: {fact.why}"
        case What.UNKNOWN:
            return f"{place} gave no answer, and may have it: {fact.why}"
        case What.COMPLETED:
            return f"completed on {place}"
        case What.DEAD_LETTERED:
            return f"dead-lettered on {place}: {fact.why}"


def time_text(date: datetime) -> str:
    """The date in UTC, to the millisecond."""
    return f"{date.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"
