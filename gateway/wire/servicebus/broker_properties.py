"""
BrokerProperties: the JSON object in which Service Bus REST has everything but properties and body.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.domain.clocks.times import moved
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.message import Delivery, Message, MessageState, Typed, Value
from gateway.wire.http.date import format_http_date, parse_http_date, round_up
from gateway.wire.servicebus.custom_properties import type_name

BROKER_PROPERTIES: Final = "BrokerProperties"
NO_TIME_TO_LIVE: Final = 922337203685.47754  # seconds: .NET's TimeSpan.MaxValue

# JSON name -> field of Message, for the ones that are plain text.
_TEXTS: Final = {
    "MessageId": "message_id",
    "CorrelationId": "correlation_id",
    "SessionId": "session_id",
    "Label": "subject",
    "To": "to",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "PartitionKey": "partition_key",
}

_STATES: Final = {state.value: state for state in MessageState}
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?", re.ASCII)
_TIME_SPAN: Final = re.compile(r"(?:(\d{1,8})\.)?(\d\d):(\d\d):(\d\d)(?:\.(\d{1,7}))?", re.ASCII)


def broker_properties(message: Message, *, strict: bool) -> dict[str, Any]:
    """
    Build a sender's BrokerProperties.

    Raises:
        NotSupported: with `strict` only: an id isn't text.
    """
    found: dict[str, Any] = {}
    for name, field in _TEXTS.items():
        value = getattr(message, field)
        if value is not None:
            text = value if isinstance(value, str) else _id_text(value, field, strict)
            found[name] = text
    if message.time_to_live is not None:
        found["TimeToLive"] = message.time_to_live.total_seconds()
    if message.scheduled is not None:
        found["ScheduledEnqueueTimeUtc"] = format_http_date(round_up(message.scheduled))
    if message.durable is not None:
        found["ForcePersistence"] = message.durable
    return found


def message_of_broker_properties(broker: Mapping[str, Any], **others: Any) -> Message:
    """
    Parse a sender's BrokerProperties; unknown fields are ignored. `others`: the message's other
    fields.

    0.21.1 of the Python client writes every value as a string.

    Raises:
        InvalidRequest: the text names the field.
    """
    texts: dict[str, Any] = {
        field: _text(broker, name) for name, field in _TEXTS.items() if name in broker
    }
    session, partition = texts.get("session_id"), texts.get("partition_key")
    if session is not None and partition is not None and session != partition:
        raise InvalidRequest(
            f"{BROKER_PROPERTIES}: PartitionKey must equal SessionId where both are given"
        )
    return Message(
        **texts,
        time_to_live=_time_to_live(broker),
        scheduled=_date(broker, "ScheduledEnqueueTimeUtc"),
        durable=_boolean(broker, "ForcePersistence"),
        **others,
    )


def delivery_properties(delivery: Delivery) -> dict[str, Any]:
    """
    Build a delivery's BrokerProperties: the sender's, and the broker's own.

    The time to live is the effective one: the queue's, if that is shorter.
    """
    own: dict[str, Any] = {
        "DeliveryCount": delivery.delivery_count,
        "SequenceNumber": delivery.sequence_number,
        "State": delivery.state.value,
        "LockToken": delivery.lock_token,
        "EnqueuedSequenceNumber": delivery.enqueued_sequence_number or 0,
        "DeadLetterSource": delivery.dead_letter_source,
    }
    dates = {"EnqueuedTimeUtc": delivery.enqueued, "LockedUntilUtc": delivery.locked_until}
    own |= {name: format_http_date(date) for name, date in dates.items() if date is not None}
    if delivery.enqueued is not None and delivery.expires is not None:
        own["TimeToLive"] = max(0.0, (delivery.expires - delivery.enqueued).total_seconds())
    sender = {"TimeToLive": NO_TIME_TO_LIVE} | broker_properties(delivery.message, strict=False)
    return sender | {name: value for name, value in own.items() if value is not None}


def delivery_of_broker_properties(
    broker: Mapping[str, Any], message: Message, *, lock_token: str | None
) -> Delivery:
    """
    Parse a delivery's BrokerProperties. `lock_token` is used if they have none.

    Raises:
        InvalidRequest: the text names the field.
    """
    enqueued = _date(broker, "EnqueuedTimeUtc")
    return Delivery(
        message=message,
        sequence_number=_integer(broker, "SequenceNumber") or 0,
        lock_token=_text(broker, "LockToken") or lock_token,
        delivery_count=max(1, _integer(broker, "DeliveryCount") or 1),
        enqueued=enqueued,
        enqueued_sequence_number=_integer(broker, "EnqueuedSequenceNumber") or None,
        locked_until=_date(broker, "LockedUntilUtc"),
        expires=_sum(enqueued, message.time_to_live),
        state=_STATES.get(_text(broker, "State") or "", MessageState.ACTIVE),
        dead_letter_source=_text(broker, "DeadLetterSource"),
    )


def _wrong(name: str, expected: str, value: Any) -> InvalidRequest:
    return InvalidRequest(f"{BROKER_PROPERTIES}: {name}: {expected} expected, got {value!r:.60}")


def _text(broker: Mapping[str, Any], name: str) -> str | None:
    match broker.get(name):
        case None:
            return None
        case str(text) if not _SURROGATE.search(text):
            return text
        case other:
            raise _wrong(name, "a string", other)


def _boolean(broker: Mapping[str, Any], name: str) -> bool | None:
    match broker.get(name):
        case None:
            return None
        case bool(value):
            return value
        case str(text) if text.lower() in {"true", "false"}:
            return text.lower() == "true"
        case other:
            raise _wrong(name, "true or false", other)


def _integer(broker: Mapping[str, Any], name: str) -> int | None:
    match broker.get(name):
        case None:
            return None
        case str(text) if _INTEGER.fullmatch(text):
            return int(text)
        case bool() as other:
            raise _wrong(name, "an integer", other)
        case int(value):
            return value
        case other:
            raise _wrong(name, "an integer", other)


def _date(broker: Mapping[str, Any], name: str) -> datetime | None:
    value = broker.get(name)
    if value is None:
        return None
    date = _date_of_text(value) if isinstance(value, str) else None
    if date is None:
        raise _wrong(name, "a date as in 'Fri, 02 Jan 2026 00:00:00 GMT'", value)
    return date


def _date_of_text(text: str) -> datetime | None:
    date = parse_http_date(text)
    if date is not None:
        return date
    try:
        date = datetime.fromisoformat(text)
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _time_to_live(broker: Mapping[str, Any]) -> timedelta | None:
    match broker.get("TimeToLive"):
        case None:
            return _time_span(broker)
        case str(text) if _DECIMAL.fullmatch(text):
            seconds = float(text)
        case bool() as other:
            raise _wrong("TimeToLive", "seconds", other)
        case int() | float() as number:
            seconds = float(number)
        case other:
            raise _wrong("TimeToLive", "seconds", other)
    if seconds < 0:
        raise _wrong("TimeToLive", "more than zero seconds", seconds)
    return None if seconds >= int(NO_TIME_TO_LIVE) else timedelta(seconds=seconds)


def _time_span(broker: Mapping[str, Any]) -> timedelta | None:
    value = broker.get("TimeToLiveTimeSpan")
    if value is None:
        return None
    match = _TIME_SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _wrong("TimeToLiveTimeSpan", "d.hh:mm:ss", value)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    span = timedelta(
        days=days,
        hours=hours,
        minutes=minutes,
        seconds=seconds,
        microseconds=int((match[5] or "").ljust(7, "0")) // 10,
    )
    return None if span.total_seconds() >= int(NO_TIME_TO_LIVE) else span


def _sum(date: datetime | None, span: timedelta | None) -> datetime | None:
    return None if date is None or span is None else moved(date, span)


def _id_text(value: Value, field: str, strict: bool) -> str:
    if strict:
        raise NotSupported(f"{field}: Service Bus REST can't carry a {type_name(value)}")
    match value:
        case bytes():
            return value.hex()
        case Typed(_, inner):
            return str(inner)
        case _:
            return str(value)
