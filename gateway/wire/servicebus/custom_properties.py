"""
Application properties as headers of Service Bus REST: one header each, with its type in its text.

    Colour: "red \\"ish\\""                    a string
    Due: "Fri, 02 Jan 2026 00:00:00 GMT"     a date, whole seconds
    Size: 12   Weight: 1.5   Fresh: true

There are no other types.

The trace context of an HTTP client (`traceparent`, `tracestate` and `Diagnostic-Id` as any HTTP
request may have them, without quotes) becomes that of the message, if that has none of its own.

With `strict`, as a client of ours writes, a value that would arrive changed is refused, since the
envelope of the backlog is signed. Only the two properties of the legacy envelope that have such
types go as text: `x-ms-timetolive` as `d.hh:mm:ss.fffffff`, `x-ms-scheduledenqueuetimeutc` without
its fraction; `domain/envelope_fields.py` reads both.

A front end that answers a REST client has no choice: it leaves out values that can't be written,
and writes numbers of every width, UUIDs and symbols as number or text.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

from gateway.domain.envelope_fields import SCHEDULED, TIMESPAN
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.message import Described, Kind, Typed, Value
from gateway.wire.http.date import format_http_date, parse_http_date
from gateway.wire.http.messages import Headers

# Headers that clients, proxies and servers add themselves aren't properties of a message.
_STANDARD: Final = """
    accept accept-charset accept-encoding accept-language accept-ranges access-control-allow-origin
    allow alt-svc authorization brokerproperties cache-control connection content-disposition
    content-encoding content-language content-length content-location content-md5 content-range
    content-type cookie date dnt etag expect expires forwarded from host http2-settings if-match
    if-modified-since if-none-match if-range if-unmodified-since keep-alive last-modified link
    location max-forwards origin pragma prefer proxy-authenticate proxy-authorization
    proxy-connection range referer retry-after server set-cookie strict-transport-security te
    trailer transfer-encoding upgrade upgrade-insecure-requests user-agent vary via warning
    www-authenticate servicebussupplementaryauthorization servicebusdlqsupplementaryauthorization
"""
_NOT_PROPERTIES: Final = frozenset(_STANDARD.split())
_NOT_PROPERTY_PREFIXES: Final = ("x-forwarded-", "sec-", "x-ms-client-", "x-real-ip")
_OURS: Final = frozenset(
    f"x-pairgate-{name}" for name in ("accepted-by", "error", "outcome", "receive", "locked-until")
) | {"x-pairgate"}  # the envelope's names begin with x-pairgate- too, and are properties

# W3C Trace Context, and the name that Azure's SDKs used before it.
_TRACE_CONTEXT: Final = frozenset({"traceparent", "tracestate", "diagnostic-id"})
_NAMES_OF_CONTEXT: Final = {"diagnostic-id": "Diagnostic-Id"}  # as receivers search for it

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: token
_UNWRITABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_INTEGERS: Final = frozenset(
    {Kind.UBYTE, Kind.USHORT, Kind.UINT, Kind.ULONG, Kind.BYTE, Kind.SHORT, Kind.INT}
)


def property_fields(properties: Mapping[str, Value], *, strict: bool) -> Iterator[tuple[str, str]]:
    """
    Build one header for each property.

    Raises:
        NotSupported: with `strict` only: REST can't carry the name or the value.
    """
    names: set[str] = set()
    for name, value in properties.items():
        text = _property_text(name, value, strict)
        legal = _is_property(name) and name.lower() not in names
        if strict and not legal:
            raise NotSupported(
                f"application property {name!r}: Service Bus REST can't carry that name"
            )
        if legal and text is not None:
            names.add(name.lower())
            yield name, text


def properties_of(headers: Headers) -> dict[str, Value]:
    """
    Parse the properties; a header whose text isn't the value of a property is ignored.

    Raises:
        InvalidRequest: a property is given twice.
    """
    found: dict[str, Value] = {}
    names: set[str] = set()
    context: dict[str, list[str]] = {}  # of the HTTP request
    for name, text in headers.items:
        if not _is_property(name):
            continue
        if name.lower() in _TRACE_CONTEXT and not text.startswith('"'):
            context.setdefault(name.lower(), []).append(text)
            continue
        value = _property_value(text)
        if value is None:
            continue
        if name.lower() in names:
            raise InvalidRequest(f"application property {name!r} is given twice")
        names.add(name.lower())
        found[name] = value
    if context and names.isdisjoint(_TRACE_CONTEXT):
        found |= _context_of_request(context)
    return found


def _context_of_request(context: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """The headers as properties; one that is given twice is invalid, except for tracestate."""
    for name, texts in context.items():
        if name == "tracestate":
            yield name, ",".join(texts)
        elif len(texts) == 1 and texts[0]:
            yield _NAMES_OF_CONTEXT.get(name, name), texts[0]


@functools.lru_cache(maxsize=1024)
def _is_property(name: str) -> bool:
    """
    True if the header is an application property. Cached: nearly all messages have the same names.
    """
    lowered = name.lower()
    return (
        _NAME.fullmatch(name) is not None
        and lowered not in _NOT_PROPERTIES
        and lowered not in _OURS
        and not lowered.startswith(_NOT_PROPERTY_PREFIXES)
    )


def _property_value(text: str) -> Value:
    """The value in a header's text; None if the header isn't a property."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        content = text[1:-1].replace('\\"', '"')
        date = parse_http_date(content)
        return content if date is None else date
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    if _DECIMAL.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return None


def _property_text(name: str, value: Value, strict: bool) -> str | None:
    """The header's text for a value; None if it can't be expressed and may be omitted."""
    text = _exact_text(name, value)
    if text is None and not strict:
        text = _nearest_text(value)
    if text is not None and not _UNWRITABLE.search(text):
        return text
    if strict:
        raise NotSupported(
            f"application property {name!r}: Service Bus REST can't carry this {type_name(value)}"
        )
    return None


def _exact_text(name: str, value: Value) -> str | None:
    """The text of a value that is received exactly as it was sent."""
    text = None
    match value:
        case bool():
            text = "true" if value else "false"
        case int() if -(2**63) <= value < 2**63:
            text = str(value)
        case float() if math.isfinite(value):
            text = repr(value)
        case str() if parse_http_date(value) is None:
            text = _quoted(value)
        case datetime() if value.microsecond == 0 or name == SCHEDULED:
            text = _quoted(format_http_date(value))
        case Described(descriptor, int(ticks)) if descriptor == TIMESPAN and ticks >= 0:
            text = _quoted(_time_span_text(ticks))
    return text


def _nearest_text(value: Value) -> str | None:
    text = None
    match value:
        case str():
            text = _quoted(value)
        case UUID():
            text = _quoted(str(value))
        case datetime():
            text = _quoted(format_http_date(value))
        case Typed(kind, int(number)) if kind in _INTEGERS:
            text = str(number)
        case Typed(Kind.FLOAT, float(number)) if math.isfinite(number):
            text = repr(number)
        case Typed(Kind.SYMBOL | Kind.CHAR, str(content)) | Described(_, str(content)):
            text = _quoted(content)
    return text


def _quoted(text: str) -> str:
    # Only the quote is escaped: 0.21.1 of the Python client neither writes nor reads `\\`.
    return '"' + text.replace('"', '\\"') + '"'


def _time_span_text(ticks: int) -> str:
    """.NET's constant format of a timespan: `d.hh:mm:ss.fffffff`."""
    seconds, fraction = divmod(ticks, 10_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}.{hour:02}:{minute:02}:{second:02}.{fraction:07}"


def type_name(value: Value) -> str:
    """The name of the value's type for errors."""
    return value.kind.value if isinstance(value, Typed) else type(value).__name__
