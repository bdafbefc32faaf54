"""
The control call of a redrive: selects dead letters of the backlog, and checks if the syphon could
move them.
"""

import fnmatch
import hashlib
from datetime import datetime
from typing import Final

import attrs
from attrs import validators

from gateway.domain.clocks.lifetime import Stay, remaining
from gateway.domain.clocks.times import Now, to_micros
from gateway.domain.dead_letters import EXPIRED, reason_of
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, Unwrapped
from gateway.domain.envelope_fields import Malformed, NotOurs, entity_in, place_of, text_of_id
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, Delivery, Message
from gateway.domain.operators.control import SAYS, check_reason
from gateway.wire.pairgate.control_call import OF_NAMESPACE, ControlCall

MOST_GROUPS: Final = 1000  # further ones are counted as OTHERS
OTHERS: Final = "(others)"
# Messages of one order, so that a client can stop between two and report progress.
MOST_REDRIVEN: Final = 1000
MOST_SHOWN: Final = 1024  # bytes of a body, so that an answer with all samples stays small
_ADDED: Final = frozenset({DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION})


@attrs.frozen(kw_only=True)
class Selection:
    """
    The filters of a redrive. An empty filter or None excludes nothing, with one exception: expired
    messages are selected only if `reasons` names them.

    `after` and `before` compare the date at which a message came to the backlog. Messages without
    such a date match only if both are None.
    """

    reasons: tuple[str, ...] = ()  # case is ignored
    entities: tuple[str, ...] = ()  # patterns such as `orders/*`, case is ignored
    after: datetime | None = None
    before: datetime | None = None

    def matches(self, letter: "Letter") -> bool:
        """True if no filter excludes the letter, whether or not it has expired."""
        reasons = {reason.lower() for reason in self.reasons}
        if reasons and letter.reason.lower() not in reasons:
            return False
        if self.entities and not self._is_of(letter.entity):
            return False
        return self._came_in_time(letter.enqueued)

    def takes(self, letter: "Letter") -> bool:
        """True if the letter is selected."""
        named = EXPIRED.lower() in {reason.lower() for reason in self.reasons}
        return self.matches(letter) and (named or letter.reason != EXPIRED)

    def _is_of(self, entity: str | None) -> bool:
        if entity is None:
            return False
        return any(fnmatch.fnmatchcase(entity.lower(), each.lower()) for each in self.entities)

    def _came_in_time(self, enqueued: datetime | None) -> bool:
        if enqueued is None:
            return self.after is None and self.before is None
        is_late = self.after is not None and enqueued < self.after
        return not is_late and (self.before is None or enqueued < self.before)


@attrs.frozen(kw_only=True)
class SelectionById(Selection):
    """The filters, and the ids that the senders gave to their messages."""

    ids: frozenset[str]

    def matches(self, letter: "Letter") -> bool:
        """As `Selection.matches`."""
        return letter.sample.message_id in self.ids and super().matches(letter)


@attrs.frozen(kw_only=True)
class RedriveOrder:
    """
    Counts the selected dead letters or (`executes`) moves them, for the reason that the log has.

    Raises:
        InvalidRequest: the reason is too long, or keys don't fit each other.
    """

    selection: Selection
    spool: bool = False  # the gateway's spool instead of the backlog
    executes: bool = False
    rate: float | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0.0))
    )  # messages/s
    most: int = attrs.field(
        default=MOST_REDRIVEN, validator=[validators.ge(1), validators.le(MOST_REDRIVEN)]
    )
    # Dead letters to show, where none is moved.
    peek: int = attrs.field(default=0, validator=[validators.ge(0), validators.le(MOST_REDRIVEN)])
    # Bytes of their bodies to show, of those of a queue.
    preview: int = attrs.field(default=0, validator=[validators.ge(0), validators.le(MOST_SHOWN)])
    reason: str = ""
    ids: tuple[str, ...] = ()  # of messages; none: all that are selected
    # The dead letters of this queue or subscription instead of the backlog's, in the namespace of
    # that name; empty: the primary, or the only one.
    queue: str = ""
    namespace: str = ""
    source: str = ""  # the queue that has its dead letters; empty: the usual one
    target: str = ""  # the entity that they are moved to; empty: the queue
    properties: tuple[str, ...] = ()  # NAME=VALUE: application properties of what is moved
    without: tuple[str, ...] = ()  # names of application properties that are removed
    body: str | None = None  # of what is moved, as UTF-8; None: as it was

    def __attrs_post_init__(self) -> None:
        check_reason(self.reason)
        for name in ("queue", "source", "target"):
            if text := getattr(self, name):
                EntityPath.parse(text)
        changes = self.properties or self.without or self.body is not None
        others = (self.namespace, self.source, self.target, self.preview)
        if not self.queue and (changes or any(others)):
            text = "queue: expected with namespace, source, target, preview or a change"
            raise InvalidRequest(text)
        if self.queue and self.spool:
            raise InvalidRequest("spool: has no other queues than those of the backlog")
        for each in self.properties:
            if not each.partition("=")[0] or "=" not in each:
                raise InvalidRequest(f"properties: NAME=VALUE expected, got {each!r:.100}")
        needs_target = self.executes and not self.target
        if needs_target and self.queue and EntityPath.parse(self.queue).is_subscription:
            raise InvalidRequest(
                "target: expected for a subscription, which can't be sent to: its topic, for all"
                " subscriptions, or a queue"
            )

    @property
    def selected(self) -> Selection:
        """The selection, with the ids."""
        if not self.ids:
            return self.selection
        given = attrs.asdict(self.selection, recurse=False)
        return SelectionById(**given, ids=frozenset(self.ids))


@attrs.frozen(kw_only=True)
class Letter:
    """A dead letter of a backlog queue, as far as it is readable."""

    reason: str  # `TTLExpiredException` also if the time to live has ended meanwhile
    entity: str | None  # its destination; None: not readable
    enqueued: datetime | None  # on the backlog
    message: Message  # as it was on the backlog
    unwrapped: Unwrapped | None  # None: the syphon couldn't unwrap it
    problem: str  # the reason for that; empty: none

    @property
    def identity(self) -> str:
        """A text that all copies of this diverted message share, and no other message."""
        if self.unwrapped is None:
            return text_of_id(self.message.message_id)
        # An attempt may have sent many messages.
        return f"{self.unwrapped.attempt} {text_of_id(self.unwrapped.message.message_id)}"

    @property
    def sample(self) -> "Sample":
        """The letter without its body; its message id is that of its sender."""
        message = self.message if self.unwrapped is None else self.unwrapped.message
        return Sample(
            reason=self.reason,
            entity=self.entity,
            message_id="" if message.message_id is None else str(message.message_id),
            enqueued=self.enqueued,
            size=len(message.body) if isinstance(message.body, bytes) else None,
            problem=self.problem,
        )

    def preview(self, most: int) -> str:
        """The first bytes of the body, as text: whatever isn't UTF-8 is replaced."""
        body = self.message.body
        return (body if isinstance(body, bytes) else str(body).encode())[:most].decode(
            errors="replace"
        )

    def revived(self, codec: Envelope, *, attempt: str, now: datetime) -> Message:
        """
        The message for its backlog queue, in the same envelope, so that the MAC stays valid. An
        expired message gets a new envelope, in which its time to live starts again.
        """
        if self.reason != EXPIRED or self.unwrapped is None:
            return self.message
        inner = attrs.evolve(self.unwrapped.message, time_to_live=self.unwrapped.time_to_live)
        return codec.wrap(
            inner,
            self.unwrapped.entity,
            attempt=attempt,
            now=now,
            primary=self.unwrapped.primary,
            place=place_of(self.message),
        )


@attrs.frozen(kw_only=True)
class QueueLetter(Letter):
    """A dead letter of any queue."""

    number: int  # its sequence number

    @property
    def identity(self) -> str:
        """As `Letter.identity`: a message without an id is never known again."""
        message = self.message
        if message.message_id is None:
            return str(self.number)
        body = message.body if isinstance(message.body, bytes) else repr(message.body).encode()
        return f"{text_of_id(message.message_id)} {hashlib.sha256(body).hexdigest()}"


def open_letter(delivery: Delivery, codec: Envelope, now: datetime, *, deducts: bool) -> Letter:
    """
    Read a dead letter. `deducts`: time to live keeps running on the backlog (`backlog_ttl`).
    """
    reason = reason_of(delivery.message)
    message = as_it_was(delivery.message)
    unwrapped, problem = None, ""
    try:
        unwrapped = codec.unwrap(message)
    except (Malformed, NotOurs) as error:
        problem = str(error)
    if deducts and unwrapped is not None and unwrapped.expires is not None:
        left = remaining(unwrapped, Now(to_micros(now), 0.0), Stay.at_receipt(delivery))
        if left is not None and left.total_seconds() <= 0:
            reason = EXPIRED
    return Letter(
        reason=reason,
        entity=entity_in(message.properties),
        enqueued=delivery.enqueued,
        message=message,
        unwrapped=unwrapped,
        problem=problem,
    )


@attrs.frozen(kw_only=True)
class Group:
    """Dead letters of one reason for one entity."""

    reason: str
    entity: str | None  # None: not readable
    messages: int = 0
    moves: int = 0  # selected ones that the syphon could move
    oldest: datetime | None = None  # of the dates that are known
    newest: datetime | None = None
    problem: str = ""  # of the first that the syphon couldn't move


@attrs.frozen(kw_only=True)
class Sample:
    """A dead letter, with as much of its body as was asked for."""

    reason: str
    entity: str | None  # None: not readable
    message_id: str
    enqueued: datetime | None  # on the backlog
    size: int | None  # bytes of the body; None: it is no bytes
    problem: str  # the reason why the syphon couldn't move it; empty: none
    body: str | None = None  # its beginning, as UTF-8; None: not asked for, or it is no bytes


@attrs.frozen(kw_only=True)
class Survey:
    """The dead letters that match a selection, by reason and entity, including expired ones."""

    groups: tuple[Group, ...] = ()
    # Backlog queues that couldn't be read, each with the reason.
    problems: tuple[str, ...] = ()
    is_outage: bool = False  # a later attempt may succeed
    samples: tuple[Sample, ...] = ()  # as many as were asked for

    @property
    def messages(self) -> int:
        return sum(group.messages for group in self.groups)

    @property
    def moves(self) -> int:
        return sum(group.moves for group in self.groups)


@attrs.define(eq=False)
class Grouping:
    """Counts dead letters by reason and entity, and keeps no more than some samples."""

    selection: Selection
    most: int = MOST_GROUPS
    peek: int = 0  # samples at most
    preview: int = 0  # bytes of their bodies
    samples: list[Sample] = attrs.field(factory=list, init=False)
    _groups: dict[tuple[str, str | None], Group] = attrs.field(factory=dict, init=False)

    def add(self, letter: Letter) -> None:
        """Count the letter, if it matches the selection."""
        if not self.selection.matches(letter):
            return
        if len(self.samples) < self.peek:
            body = letter.preview(self.preview) if self.preview else None
            self.samples.append(attrs.evolve(letter.sample, body=body))
        key = (letter.reason, letter.entity)
        if key not in self._groups and len(self._groups) >= self.most:
            key = (OTHERS, OTHERS)
        group = self._groups.get(key) or Group(reason=key[0], entity=key[1])
        dates = [d for d in (group.oldest, group.newest, letter.enqueued) if d is not None]
        moves = self.selection.takes(letter) and not letter.problem
        self._groups[key] = Group(
            reason=group.reason,
            entity=group.entity,
            messages=group.messages + 1,
            moves=group.moves + moves,
            oldest=min(dates, default=None),
            newest=max(dates, default=None),
            problem=group.problem or letter.problem,
        )

    def groups(self) -> tuple[Group, ...]:
        """The groups, the largest first."""
        order = sorted(
            self._groups.values(), key=lambda each: (-each.messages, each.reason, each.entity or "")
        )
        return tuple(order)


@attrs.frozen(kw_only=True)
class Redriven:
    """The result of a redrive, for the selected dead letters."""

    moved: int = 0
    left: int = 0  # the syphon couldn't move them, or their namespace refused them
    unknown: int = 0  # still dead letters, and perhaps moved too: `problems` names them
    problems: tuple[str, ...] = ()  # without repetitions
    is_outage: bool = False  # a later attempt may succeed

    def __add__(self, other: "Redriven") -> "Redriven":
        return Redriven(
            moved=self.moved + other.moved,
            left=self.left + other.left,
            unknown=self.unknown + other.unknown,
            problems=tuple(dict.fromkeys((*self.problems, *other.problems))),
            is_outage=self.is_outage or other.is_outage,
        )


def as_it_was(message: Message) -> Message:
    """The message without what its dead-lettering has added, and without a time to live."""
    kept = {name: value for name, value in message.properties.items() if name not in _ADDED}
    return attrs.evolve(message, properties=kept, time_to_live=None)


@attrs.frozen(kw_only=True)
class DeadLetterQuery:
    """Asks which queues have dead letters."""

    namespace: str = attrs.field(
        default="", metadata={SAYS: "by its name; empty: the primary, or the only one"}
    )


@attrs.frozen(kw_only=True)
class DeadLetterCount:
    """A queue or subscription that has dead letters, or may have some."""

    entity: str
    messages: int | None  # None: not known


@attrs.frozen(kw_only=True)
class DeadLetterList:
    """The answer for one namespace, with the most dead letters first."""

    entities: tuple[DeadLetterCount, ...] = ()
    total: int = 0  # more than `entities`, if they were too many


REDRIVE: Final[ControlCall[RedriveOrder, Survey | Redriven]] = ControlCall(
    name="redrive",
    summary="counts dead letters of the backlog or of a queue, or moves them",
    request=RedriveOrder,
    answer=Redriven,
    survey=Survey,
    refusals=OF_NAMESPACE,
    audited=("moved", "left", "unknown"),
    patience=600.0,  # for the dead letters of all backlog queues
    old_path="/redrive",
)
DEAD_LETTERS: Final = ControlCall(
    name="dead-letters",
    method="GET",
    summary="the queues and subscriptions of a namespace that have dead letters",
    request=DeadLetterQuery,
    answer=DeadLetterList,
    refusals=(501, *OF_NAMESPACE),
    missing="redrives nothing",
    patience=90.0,  # more than the namespace has for its list
)
