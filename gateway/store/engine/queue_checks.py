"""
Checks what clients set in a queue (its properties, messages, dead-letter reasons), and makes rows
of messages.
"""

from datetime import datetime, timedelta
from typing import Final

from gateway.domain.clocks.times import Now, later, to_micros
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest, SessionRequired
from gateway.domain.texts import check_session_id
from gateway.store.engine.records import Incoming, MessageNumbers, Row, State

_SHORTEST_IDLE: Final = timedelta(minutes=5)
_LONGEST: Final = {
    "lock_duration": timedelta(minutes=5),
    "duplicate_detection_window": timedelta(days=7),
}
# The properties in Service Bus's words, as its clients know them.
_WORDS: Final = {
    "forward_to": "ForwardTo",
    "forward_dead_lettered_messages_to": "ForwardDeadLetteredMessagesTo",
    "lock_duration": "LockDuration",
    "default_time_to_live": "DefaultMessageTimeToLive",
    "duplicate_detection_window": "DuplicateDetectionHistoryTimeWindow",
    "max_size_in_megabytes": "MaxSizeInMegabytes",
    "max_message_size": "the maximum message size",
}
_NEVER_CHANGED: Final = {
    "requires_session": "The value for the RequiresSession property of an existing {} cannot be"
    " changed",
    "requires_duplicate_detection": "The value for the RequiresDuplicateDetection property of an"
    " existing {} cannot be changed",
    "enable_partitioning": "Partitioning cannot be changed for {}",
}


def check_properties(properties: QueueProperties) -> None:
    """
    Check the properties of an entity.

    Raises:
        InvalidRequest: names the property and its limit.
    """
    for name in ("forward_to", "forward_dead_lettered_messages_to"):
        if (target := getattr(properties, name)) is not None:
            _check_target(name, EntityPath.parse(target))
    idle = properties.auto_delete_on_idle
    if idle is not None and idle < _SHORTEST_IDLE:
        raise InvalidRequest(f"AutoDeleteOnIdle: at least {_SHORTEST_IDLE} expected, got {idle}")
    for name in ("lock_duration", "default_time_to_live", "duplicate_detection_window"):
        _check_duration(name, getattr(properties, name))
    for name in ("max_size_in_megabytes", "max_message_size"):
        size = getattr(properties, name)
        if size is not None and size < 1:
            raise InvalidRequest(f"{_WORDS[name]}: at least 1 expected, got {size}")


def _check_duration(name: str, duration: timedelta | None) -> None:
    if duration is not None and not timedelta(0) < duration <= _LONGEST.get(name, duration):
        limit = f", at most {_LONGEST[name]}" if name in _LONGEST else ""
        raise InvalidRequest(f"{_WORDS[name]}: more than zero{limit} expected, got {duration}")


def _check_target(name: str, target: EntityPath) -> None:
    if target.is_dead_letter or target.is_subscription:
        raise InvalidRequest(f"{_WORDS[name]}: a queue or topic expected, got {target}")


def check_update(path: EntityPath, kind: str, old: QueueProperties, new: QueueProperties) -> None:
    """
    As `check_properties`; also refuses to change properties that are fixed at creation. `kind` is
    Service Bus's word for the entity.

    Raises:
        InvalidRequest: names the property.
    """
    for name, refusal in _NEVER_CHANGED.items():
        if getattr(old, name) != getattr(new, name):
            raise InvalidRequest(f"{refusal.format(kind)}: {path}")
    check_properties(new)


def check_message(message: Incoming, properties: QueueProperties) -> None:
    """
    Check the session id of a message.

    Raises:
        SessionRequired: the queue requires sessions, and the message has no session id.
        InvalidRequest: the session id is invalid; names the limit.
    """
    if not properties.requires_session:
        return
    if message.session is None:
        raise SessionRequired("session id: this entity requires one in every message")
    check_session_id(message.session)


def micros_of(date: datetime) -> int:
    """
    Convert to microseconds since 1970.

    Raises:
        InvalidRequest: the date has no time zone.
    """
    if date.tzinfo is None:
        raise InvalidRequest(f"date: a time zone expected, got {date}")
    return to_micros(date)


def accept(message: Incoming, place: MessageNumbers, properties: QueueProperties, now: Now) -> Row:
    """
    Make a row of a message: active, or scheduled for its date, with the date at which it expires.

    While the wall clock is in doubt, the row uses the earlier or later of the two possible dates,
    so that no message becomes active too early or expires too early.
    """
    enqueued, begins, state, due = now.own, now.own_latest, State.ACTIVE, None
    if message.scheduled is not None and to_micros(message.scheduled) > now.earliest:
        enqueued = begins = due = to_micros(message.scheduled)
        state = State.SCHEDULED
    life, longest = message.time_to_live, properties.default_time_to_live
    if life is None or (longest is not None and longest < life):
        life = longest
    return Row(
        sequence=place.sequence,
        number=place.number,
        state=state,
        enqueued=enqueued,
        due=due,
        expires=None if life is None else later(begins, life),
        size=message.size,
        session=message.session,
        content=message.content,
    )
