"""
The record of a process as the body of a message: JSON of at most `MOST_BYTES`.

    {
        "pairgate-syphon": {...},
        "pairgate-record": "...",
        "pairgate-seal": {"kid": "...", "mac": "..."}
    }

The first key is the heartbeat that earlier versions read, of a process with a syphon. The second is
the record, as text of JSON, so that the MAC is of exactly these characters: HMAC-SHA256 of
`pairgate-record`, the label and the text, with a key of the envelope.
"""

import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import cattrs
import cattrs.preconf.json

from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.health.heartbeats import Heartbeat
from gateway.domain.health.problems import Problem
from gateway.domain.health.process_records import (
    MOST_BYTES,
    CountByName,
    ProcessRecord,
    record_of,
)
from gateway.domain.operators.control import check_reason, check_targets

LONGEST_NAME: Final = 100  # characters
LONGEST_INTERVAL: Final = 86_400.0  # seconds
SHORTEST_INTERVAL: Final = 0.1
LONGEST_TEXT: Final = 300  # characters of a problem, and of its remedy
SHORT_TEXT: Final = 60  # the same, where the room is scarce; also of an order's reason
_HEARTBEAT: Final = "pairgate-syphon"
_RECORD: Final = "pairgate-record"
_SEAL: Final = "pairgate-seal"
_MALFORMED: Final = (
    cattrs.BaseValidationError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
    InvalidRequest,
)


class WrongSeal(MessageError):
    """A record that no process with a key of the pair has written as it is."""


def body_of(record: ProcessRecord, label: str, keys: Sequence[EnvelopeKey]) -> bytes:
    """
    The record as the body of a message, sealed with the first key. What has no room is cut: the
    names of the longer counts first, then texts, then problems, then the oldest orders. Totals
    stay exact, and the record tells how much it lacks.
    """
    for fitting in _ever_shorter(_cleaned(record)):
        body = _encoded(fitting, label, keys)
        if len(body) <= MOST_BYTES:
            return body
    raise AssertionError("a record without lists has room")


def record_in(
    body: object, label: str, keys: Sequence[EnvelopeKey], *, enqueued: datetime | None = None
) -> ProcessRecord | None:
    """
    The record in the body of a message that was enqueued then, by the secondary's clock; None: the
    message is another's, or damaged. Heartbeats of earlier versions have no seal.

    Raises:
        WrongSeal: the record isn't sealed with one of the keys.
    """
    if not isinstance(body, bytes) or len(body) > MOST_BYTES:
        return None
    try:
        content: Any = json.loads(body)
        if not isinstance(content, dict):
            return None
        if _RECORD not in content:
            return record_of(_heartbeat_in(content[_HEARTBEAT], enqueued))
        text = str(content[_RECORD])
        _verify(content, text, label, keys)
        record: ProcessRecord = _converter.structure(json.loads(text), ProcessRecord)
        return attrs.evolve(record, at=enqueued or record.at) if _is_sound(record) else None
    except _MALFORMED:
        return None


def heartbeat_value(heartbeat: Heartbeat) -> Mapping[str, Any]:
    """The heartbeat as earlier versions read it."""
    dates = {"started": heartbeat.started.isoformat(), "at": heartbeat.at.isoformat()}
    return {**attrs.asdict(heartbeat), **dates}


def _heartbeat_in(found: Any, enqueued: datetime | None) -> Heartbeat:
    heartbeat = Heartbeat(
        syphon=str(found["syphon"])[:LONGEST_NAME],
        host=str(found["host"])[:LONGEST_NAME],
        process=str(found["process"])[:LONGEST_NAME],
        pid=int(found["pid"]),
        started=_date(found["started"]),
        at=enqueued or _date(found["at"]),
        interval=float(found["interval"]),
        moved=int(found["moved"]),
        paused=found["paused"] is True,
    )
    if not 0.0 < heartbeat.interval <= LONGEST_INTERVAL:
        raise ValueError("interval")
    return heartbeat


def _encoded(record: ProcessRecord, label: str, keys: Sequence[EnvelopeKey]) -> bytes:
    text = _dump(_converter.unstructure(record))
    content: dict[str, Any] = {_RECORD: text}
    if (heartbeat := record.heartbeat()) is not None:
        content = {_HEARTBEAT: heartbeat_value(heartbeat), **content}
    if keys:
        content[_SEAL] = {"kid": keys[0].id, "mac": keys[0].mac(_sealed(label, text))}
    return _dump(content).encode()


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _sealed(label: str, text: str) -> bytes:
    return f"{_RECORD}\0{label}\0{text}".encode("utf-8", "surrogatepass")


def _verify(content: Any, text: str, label: str, keys: Sequence[EnvelopeKey]) -> None:
    if not keys:
        return
    try:
        kid, mac = str(content[_SEAL]["kid"]), str(content[_SEAL]["mac"]).encode()
    except _MALFORMED as error:
        raise WrongSeal("it has no seal") from error
    candidates = [key for key in keys if key.id == kid]
    data = _sealed(label, text)
    if not any(hmac.compare_digest(key.mac(data).encode(), mac) for key in candidates):
        raise WrongSeal(f"its seal isn't by the pair's key {kid[:LONGEST_NAME]!r}")


def _is_sound(record: ProcessRecord) -> bool:
    seconds = (
        record.interval,
        record.renewal.total_seconds(),
        record.lifetime.total_seconds(),
    )
    counts = [record.revision, record.orders_left_out]
    if record.gateway is not None:
        diverted, spooled = record.gateway.diverted.total, record.gateway.spooled
        counts += [diverted, spooled, diverted - spooled]
    if record.syphon is not None:
        counts += [record.syphon.moved.total, record.syphon.in_hand or 0]
    for order in record.orders:
        check_targets(order.targets)
        check_reason(order.reason)
    return (
        all(SHORTEST_INTERVAL <= each <= LONGEST_INTERVAL for each in seconds)
        and min(counts) >= 0
        and len(record.process) <= LONGEST_NAME
    )


def _cleaned(record: ProcessRecord) -> ProcessRecord:
    """The record with names and texts of a usual length."""
    return attrs.evolve(
        record,
        host=record.host[:LONGEST_NAME],
        problems=tuple(_shortened(each, LONGEST_TEXT) for each in record.problems),
    )


def _shortened(problem: Problem, most: int) -> Problem:
    texts = ("text", "entity", "detail", "remedy")
    return attrs.evolve(problem, **{each: getattr(problem, each)[:most] for each in texts})


def _ever_shorter(record: ProcessRecord) -> Iterator[ProcessRecord]:
    """The record, and with each step less of it, in the order that `body_of` tells."""
    yield record
    while (room := _longest_count(record)) > 0:
        record = _with_counts(record, room // 2)
        yield record
    record = attrs.evolve(
        record,
        problems=tuple(_shortened(each, SHORT_TEXT) for each in record.problems),
        orders=tuple(attrs.evolve(each, reason=each.reason[:SHORT_TEXT]) for each in record.orders),
    )
    yield record
    while record.problems:
        kept = record.problems[: len(record.problems) // 2]
        left = record.problems_left_out + len(record.problems) - len(kept)
        record = attrs.evolve(record, problems=kept, problems_left_out=left)
        yield record
    record = _without_lists(record)
    yield record
    while record.orders:
        record = attrs.evolve(
            record, orders=record.orders[1:], orders_left_out=record.orders_left_out + 1
        )
        yield record


def _longest_count(record: ProcessRecord) -> int:
    gateway = 0 if record.gateway is None else len(record.gateway.diverted.most)
    return max(gateway, 0 if record.syphon is None else len(record.syphon.moved.most))


def _with_counts(record: ProcessRecord, most: int) -> ProcessRecord:
    """The record with at most so many names in each count."""
    gateway, syphon = record.gateway, record.syphon
    if gateway is not None:
        gateway = attrs.evolve(gateway, diverted=_cut(gateway.diverted, most))
    if syphon is not None:
        syphon = attrs.evolve(syphon, moved=_cut(syphon.moved, most))
    return attrs.evolve(record, gateway=gateway, syphon=syphon)


def _cut(count: CountByName, most: int) -> CountByName:
    if len(count.most) <= most:
        return count
    kept = sorted(count.most.items(), key=lambda each: each[1], reverse=True)[:most]
    return attrs.evolve(count, most=dict(kept), is_whole=False)


def _without_lists(record: ProcessRecord) -> ProcessRecord:
    """The record without the texts that follow from orders and configuration."""
    gateway, syphon = record.gateway, record.syphon
    if gateway is not None:
        gateway = attrs.evolve(gateway, drills=())
    if syphon is not None:
        reasons = {"": sum(syphon.dead_lettered.values())} if syphon.dead_lettered else {}
        syphon = attrs.evolve(syphon, held_back=(), dead_lettered=reasons)
    return attrs.evolve(record, gateway=gateway, syphon=syphon)


def _date(text: object) -> datetime:
    return datetime.fromisoformat(str(text)).astimezone(UTC)


def _make_converter() -> cattrs.Converter:
    converter = cattrs.preconf.json.make_converter(omit_if_default=True)
    converter.register_structure_hook(datetime, lambda text, _: _date(text))
    converter.register_unstructure_hook(timedelta, lambda span: span.total_seconds())
    converter.register_structure_hook(timedelta, lambda seconds, _: timedelta(seconds=seconds))
    return converter


_converter: Final = _make_converter()
