"""
The facts of a ledger: what a namespace answered to a send, and what became of a message on the
backlog. The control call reads them from a process of the pair.
"""

import enum
from datetime import datetime
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import SAYS
from gateway.wire.pairgate.control_call import ControlCall

MOST_FACTS: Final = 2_000  # of an answer: below 1 MiB of JSON
LONGEST_ID: Final = 512  # characters of a message id: Service Bus allows 128
LONGEST_WHY: Final = 300  # characters: a line of a log


class PairSide(enum.Enum):
    """The namespace that a fact is about."""

    PRIMARY = "primary"  # or the only namespace
    SECONDARY = "secondary"


class What(enum.Enum):
    """The knowledge of a message at a namespace."""

    ACCEPTED = "accepted"
    NOT_SENT = "not-sent"
    UNKNOWN = "unknown"  # the send had no answer: the namespace may have the message
    COMPLETED = "completed"  # on the backlog: by a syphon, or by a receiver
    DEAD_LETTERED = "dead-lettered"  # on the backlog


@attrs.frozen(kw_only=True)
class Fact:
    """A fact about one message. `queue` is the backlog queue; empty: it is about the primary."""

    at: datetime
    message: str  # its id; empty: it has none
    entity: str  # on the primary
    side: PairSide
    what: What
    queue: str = ""
    why: str = ""  # of an error, or of a dead-lettering


def _date(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value)) if value else None
    except ValueError as error:
        text = f"a date such as 2026-11-29T18:00:00Z expected, got {value!r:.40}"
        raise InvalidRequest(text) from error


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError as error:
        raise InvalidRequest(f"a number expected, got {value!r:.40}") from error


def _flag(value: object) -> bool:
    return str(value).lower() == "true"


@attrs.frozen(kw_only=True)
class FactsQuery:
    """
    Selects facts by a message id, or by their dates. `after` is `next` of the answer before.

    Raises:
        InvalidRequest: an id is too long, a name is malformed, or a number is out of its limits.
    """

    message: str = attrs.field(default="", metadata={SAYS: "an id; empty: all messages"})
    entity: str = attrs.field(
        default="", metadata={SAYS: "a queue to search, beside those that the facts name"}
    )
    search: bool = attrs.field(
        default=False,
        converter=_flag,
        metadata={SAYS: "true: search the message in both namespaces, too"},
    )
    since: datetime | None = attrs.field(
        default=None, converter=_date, metadata={SAYS: "a date with a time zone: not earlier"}
    )
    until: datetime | None = attrs.field(
        default=None, converter=_date, metadata={SAYS: "a date with a time zone: earlier"}
    )
    after: int = attrs.field(
        default=0, converter=_number, metadata={SAYS: "`next` of the answer before"}
    )
    limit: int = attrs.field(
        default=MOST_FACTS, converter=_number, metadata={SAYS: f"facts, at most {MOST_FACTS}"}
    )

    def __attrs_post_init__(self) -> None:
        if len(self.message) > LONGEST_ID:
            raise InvalidRequest(f"message: at most {LONGEST_ID} characters expected")
        if self.entity:
            EntityPath.parse(self.entity)
        if self.search and not self.message:
            raise InvalidRequest("search: needs a message")
        for key in ("since", "until"):
            date = getattr(self, key)
            if date is not None and date.tzinfo is None:
                raise InvalidRequest(f"{key}: a date with a time zone expected")
        if self.after < 0:
            raise InvalidRequest("after: 0 or more expected")
        if not 1 <= self.limit <= MOST_FACTS:
            raise InvalidRequest(f"limit: 1 to {MOST_FACTS} expected")


@attrs.frozen(kw_only=True)
class Seen:
    """A message with that id in a queue."""

    side: PairSide
    queue: str
    state: str  # Active, Deferred or Scheduled
    number: int  # its sequence number
    deliveries: int
    since: datetime | None  # None: the namespace doesn't tell


@attrs.frozen(kw_only=True)
class Searched:
    """A queue that was searched. `whole`: all its messages were looked at; else `why` not."""

    side: PairSide
    queue: str
    whole: bool
    why: str = ""


@attrs.frozen(kw_only=True)
class LedgerFacts:
    """
    Facts, in the order in which they were written.

    `since` is the date from which the ledger remembers all that it was told. `gaps` are the dates
    at which a process was killed: up to a second of facts before each was never written.
    """

    process: str  # host and process
    ledger: str  # the id of its file: processes of one machine may share it
    facts: tuple[Fact, ...]
    since: datetime
    next: int | None = None  # None: there are no more
    unwritten: int = 0  # facts, since `since`, for which there was no room or no disk
    gaps: tuple[datetime, ...] = ()
    seen: tuple[Seen, ...] = ()
    searched: tuple[Searched, ...] = ()


FACTS: Final = ControlCall(
    name="facts",
    method="GET",
    summary="the facts of the ledger about one message, or between two dates",
    request=FactsQuery,
    answer=LedgerFacts,
    refusals=(501, 503),
    missing="keeps no ledger: [ledger] with a `file` in its configuration makes it keep one",
)
