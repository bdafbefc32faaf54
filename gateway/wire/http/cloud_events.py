"""
Deliveries as CloudEvents 1.0 over HTTP, in binary mode, and the meaning of a handler's responses.

The attributes are the headers `ce-*`; the message's own properties and the body are as in Service
Bus REST: `BrokerProperties`, one header for each application property, and bytes.
"""

import enum
import math
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import attrs

from gateway.domain.message import Delivery
from gateway.wire.http.date import parse_http_date
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.rest_message import body_bytes, delivery_headers

VERSION: Final = "1.0"
TYPE: Final = "pairgate.message"
# HTTP protocol binding, 3.1.3.2: printable ASCII is not encoded, except space, quote and percent.
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
# Statuses about the endpoint, not the message: credentials, a request too slow, too early, too
# many.
_ENDPOINT_STATUS: Final = frozenset({401, 407, 408, 425, 429, 502, 503, 504})
_MOST_SECONDS: Final = 3600.0  # the longest pause that an endpoint may ask for


# The theory. A handler fails for two causes, the message or the endpoint. What is wrong with the
# message counts against it: POISON at once, FAILED after some deliveries. What is wrong with the
# endpoint counts against no message: DOWN pauses all of them. A status of 5xx says too little, so
# FAILED is the doubt between the two: `listening.handlers.Blame` decides by the messages around it.
class HandlerVerdict(enum.Enum):
    """The meaning of a handler's response for the message."""

    DONE = "done"
    POISON = "poison"  # the message can't be processed, now or later
    FAILED = "failed"  # a retry may help
    DOWN = "down"  # the message isn't at fault: the endpoint can't process any


@attrs.frozen(kw_only=True)
class HandlerAnswer:
    verdict: HandlerVerdict
    retry_after: float | None = None  # seconds, if the endpoint gives them


def build_request(delivery: Delivery, *, queue: str, account: str, target: str) -> Request:
    """The request that delivers a message to an endpoint."""
    fields = [
        ("ce-specversion", VERSION),
        ("ce-type", TYPE),
        ("ce-source", _text(f"/{account}/{queue}" if account else f"/{queue}")),
        ("ce-id", _text(_id_of(delivery))),
        ("ce-attempt", str(delivery.delivery_count)),  # an extension
    ]
    if delivery.enqueued is not None:
        time = delivery.enqueued.astimezone(UTC).isoformat().replace("+00:00", "Z")
        fields.append(("ce-time", time))
    if delivery.message.subject is not None:
        fields.append(("ce-subject", _text(delivery.message.subject)))
    taken = {name.lower() for name, _ in fields}
    own = [field for field in delivery_headers(delivery) if field[0].lower() not in taken]
    return Request(
        method="POST",
        target=target,
        headers=Headers.of([*fields, *own]),
        body=body_bytes(delivery.message, strict=False),
    )


def parse_answer(response: Response, now: datetime) -> HandlerAnswer:
    """The endpoint's answer; a redirect isn't followed, and counts as the endpoint's error."""
    status = response.status
    if 200 <= status < 300:
        return HandlerAnswer(verdict=HandlerVerdict.DONE)
    if status in _ENDPOINT_STATUS or status < 400:
        return HandlerAnswer(verdict=HandlerVerdict.DOWN, retry_after=_retry_after(response, now))
    return HandlerAnswer(verdict=HandlerVerdict.POISON if status < 500 else HandlerVerdict.FAILED)


def _id_of(delivery: Delivery) -> str:
    message_id = delivery.message.message_id
    if message_id is None:
        return str(delivery.sequence_number)
    return str(getattr(message_id, "value", message_id))


def _text(text: str) -> str:
    return quote(text, safe=_SAFE, errors="replace")


def _retry_after(response: Response, now: datetime) -> float | None:
    """RFC 9110, 10.2.3: seconds, or a date."""
    text = (response.headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), _MOST_SECONDS)
    date = parse_http_date(text)
    if date is None:
        return None
    return min(max(0.0, math.ceil((date - now).total_seconds())), _MOST_SECONDS)
