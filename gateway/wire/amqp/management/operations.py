"""The operations of an entity's $management node, and their answers: values only."""

import enum
from datetime import UTC, datetime
from typing import Final

import attrs

from gateway.domain.message import (
    NO_PROPERTIES,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Message,
    Properties,
    ReceiveMode,
    Settlement,
)
from gateway.domain.topics.filters import Rule

EVER: Final = datetime(9999, 12, 31, tzinfo=UTC)  # from this date on, see `ListSessions`


class Disposition(enum.Enum):
    """The settlements of a locked message, in the words of the protocol."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    DEFERRED = "defered"
    SUSPENDED = "suspended"  # dead-lettered


@attrs.frozen(kw_only=True)
class RenewLocks:
    tokens: tuple[str, ...]


@attrs.frozen(kw_only=True)
class RenewSession:
    session_id: str


@attrs.frozen(kw_only=True)
class Schedule:
    messages: tuple[Message, ...]


@attrs.frozen(kw_only=True)
class CancelScheduled:
    sequence_numbers: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Peek:
    """`session_id`: only messages of that session. `omit_body`: without their bodies."""

    from_sequence: int
    limit: int
    session_id: str | None = None
    omit_body: bool | None = None


@attrs.frozen(kw_only=True)
class ReceiveDeferred:
    sequence_numbers: tuple[int, ...]
    mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    session_id: str | None = None


@attrs.frozen(kw_only=True)
class UpdateDisposition:
    """`reason` and `description` are for SUSPENDED; `properties` are set on the message."""

    status: Disposition
    tokens: tuple[str, ...]
    reason: str | None = None
    description: str | None = None
    properties: Properties | None = None
    session_id: str | None = None

    @property
    def settlement(self) -> Settlement:
        properties = self.properties or NO_PROPERTIES
        match self.status:
            case Disposition.COMPLETED:
                return Complete()
            case Disposition.ABANDONED:
                return Abandon(properties=properties)
            case Disposition.DEFERRED:
                return Defer(properties=properties)
            case Disposition.SUSPENDED:
                reason, description = self.reason or "", self.description or ""
                return DeadLetter(reason=reason, description=description, properties=properties)


@attrs.frozen(kw_only=True)
class GetSessionState:
    session_id: str


@attrs.frozen(kw_only=True)
class SetSessionState:
    session_id: str
    state: bytes | None = None


@attrs.frozen(kw_only=True)
class ListSessions:
    """
    Lists the sessions whose state was updated after that date; from `EVER` on, those with messages.
    """

    last_updated: datetime = EVER
    skip: int = 0
    top: int = 100

    @property
    def updated_since(self) -> datetime | None:
        """As `capabilities.Sessions.list_sessions` has it."""
        return None if self.last_updated >= EVER else self.last_updated


@attrs.frozen(kw_only=True)
class DeleteMessages:
    """At most `limit` messages, enqueued before that date if one is given."""

    limit: int
    before: datetime | None = None
    session_id: str | None = None


@attrs.frozen(kw_only=True)
class AddRule:
    rule: Rule


@attrs.frozen(kw_only=True)
class RemoveRule:
    name: str


@attrs.frozen(kw_only=True)
class ListRules:
    skip: int = 0
    top: int = 100


Operation = (
    RenewLocks
    | RenewSession
    | Schedule
    | CancelScheduled
    | Peek
    | ReceiveDeferred
    | UpdateDisposition
    | GetSessionState
    | SetSessionState
    | ListSessions
    | DeleteMessages
    | AddRule
    | RemoveRule
    | ListRules
)


# The answers. `Done` answers each operation without a result.


@attrs.frozen(kw_only=True)
class Done:
    pass


@attrs.frozen(kw_only=True)
class LocksRenewed:
    until: tuple[datetime, ...]  # in the order of the tokens


@attrs.frozen(kw_only=True)
class SessionRenewed:
    until: datetime


@attrs.frozen(kw_only=True)
class Scheduled:
    sequence_numbers: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Handed:
    """
    A message in an answer: the payload that a transfer of it would have, and the token of its lock.
    """

    payload: bytes
    lock_token: str | None = None


@attrs.frozen(kw_only=True)
class Messages:
    messages: tuple[Handed, ...]


@attrs.frozen(kw_only=True)
class SessionState:
    state: bytes | None = None


@attrs.frozen(kw_only=True)
class SessionNames:
    """
    `skip`: that of the request for the next ones. Java's retired SDK asks with it
    (`SessionBrowser.getMessageSessionsAsync`), until there are no names.
    """

    names: tuple[str, ...]
    skip: int = 0


@attrs.frozen(kw_only=True)
class Deleted:
    count: int


@attrs.frozen(kw_only=True)
class Rules:
    rules: tuple[Rule, ...]


Answer = (
    Done
    | LocksRenewed
    | SessionRenewed
    | Scheduled
    | Messages
    | SessionState
    | SessionNames
    | Deleted
    | Rules
)
