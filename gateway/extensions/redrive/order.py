"""
The control call of a redrive: selects dead letters of the backlog, and checks if the syphon could
move them.
"""

import fnmatch
from datetime import datetime
from typing import Final

import attrs
from attrs import validators

from gateway.domain.clocks.lifetime import Stay, remaining
from gateway.domain.clocks.times import Now, to_micros
from gateway.domain.dead_letters import EXPIRED, reason_of
from gateway.domain.envelope import Envelope, Unwrapped
from gateway.domain.envelope_fields import Malformed, NotOurs, entity_in, place_of, text_of_id
from gateway.domain.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, Delivery, Message
from gateway.domain.operators.control import check_reason
from gateway.wire.pairgate.control_call import OF_NAMESPACE, ControlCall

MOST_GROUPS: Final = 1000  # further ones are counted as OTHERS
OTHERS: Final = "(others)"
# Messages of one order, so that a client can stop between two and report progress.
MOST_REDRIVEN: Final = 1000
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
class RedriveOrder:
    """
    Counts the selected dead letters or (`executes`) moves them, for the reason that the log has.

    Raises:
        InvalidRequest: the reason is too long.
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
    # Dead letters to show without their bodies, where none is moved.
    peek: int = attrs.field(default=0, validator=[validators.ge(0), validators.le(MOST_REDRIVEN)])
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        check_reason(self.reason)


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


def open_letter(delivery: Delivery, codec: Envelope, now: datetime, *, deducts: bool) -> Letter:
    """
    Read a dead letter. `deducts`: time to live keeps running on the backlog (`backlog_ttl`).
    """
    reason = reason_of(delivery.message)
    message = _as_it_was(delivery.message)
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
    """A dead letter without its body."""

    reason: str
    entity: str | None  # None: not readable
    message_id: str
    enqueued: datetime | None  # on the backlog
    size: int | None  # bytes of the body; None: it is no bytes
    problem: str  # the reason why the syphon couldn't move it; empty: none


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
    samples: list[Sample] = attrs.field(factory=list, init=False)
    _groups: dict[tuple[str, str | None], Group] = attrs.field(factory=dict, init=False)

    def add(self, letter: Letter) -> None:
        """Count the letter, if it matches the selection."""
        if not self.selection.matches(letter):
            return
        if len(self.samples) < self.peek:
            self.samples.append(letter.sample)
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
    problems: tuple[str, ...] = ()  # without repetitions
    is_outage: bool = False  # a later attempt may succeed

    def __add__(self, other: "Redriven") -> "Redriven":
        return Redriven(
            moved=self.moved + other.moved,
            left=self.left + other.left,
            problems=tuple(dict.fromkeys((*self.problems, *other.problems))),
            is_outage=self.is_outage or other.is_outage,
        )


def _as_it_was(message: Message) -> Message:
    kept = {name: value for name, value in message.properties.items() if name not in _ADDED}
    return attrs.evolve(message, properties=kept, time_to_live=None)


REDRIVE: Final[ControlCall[RedriveOrder, Survey | Redriven]] = ControlCall(
    name="redrive",
    summary="counts dead letters of the backlog, or moves them",
    request=RedriveOrder,
    answer=Redriven,
    survey=Survey,
    refusals=OF_NAMESPACE,
    audited=("moved", "left"),
    patience=600.0,  # for the dead letters of all backlog queues
    old_path="/redrive",
)
