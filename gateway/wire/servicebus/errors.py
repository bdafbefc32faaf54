"""
Errors as Service Bus REST answers them: one table, for a front end and, in reverse, for a client.

    <Error><Code>404</Code><Detail>no queue 'orders'</Detail></Error>

Several errors share a status, so a Pairgate also sends X-Pairgate-Error (the class in kebab case),
and X-Pairgate-Outcome if the status alone would mean "unknown". Answers of other servers are
interpreted by status and text (reference: the error model of Service Bus, section 8.2).

Service Bus gives each refusal an <Error>. A refusal without one comes from a server on the way,
such as a proxy: it says nothing about entities, rights or load, and nobody knows whether the
request went on. Only a refusal of a request for its form or size is one wherever it comes from.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Final
from xml.sax.saxutils import escape

import attrs

from gateway.domain.errors import (
    BrokerError,
    Busy,
    BusyReason,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InternalError,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
    PreconditionFailed,
    QuotaExceeded,
    SessionLockLost,
    SessionNotAvailable,
    SessionRequired,
    StateDamaged,
    StorageFull,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
    Unavailable,
    Untrusted,
)
from gateway.wire.http.hardened_xml import XmlError, parse_xml, text_of, without_illegal
from gateway.wire.http.messages import Headers, Response
from gateway.wire.servicebus.sentences import sentence_of, without_sentence

PAIRGATE: Final = ("X-Pairgate", "1")
ERROR: Final = "X-Pairgate-Error"
OUTCOME: Final = "X-Pairgate-Outcome"
XML: Final = "application/xml; charset=utf-8"

_STATUS: Final[dict[type[BrokerError], int]] = {
    InvalidRequest: 400,
    SessionRequired: 400,
    NotAuthorized: 401,
    QuotaExceeded: 403,
    EntityDisabled: 403,
    EntityNotFound: 404,
    LockLost: 404,
    SessionLockLost: 404,
    SessionNotAvailable: 409,
    MessageNotFound: 404,
    EntityExists: 409,
    TransactionRolledBack: 409,
    TransactionUnknown: 409,
    TransactionTimeout: 409,
    PreconditionFailed: 412,
    MessageTooLarge: 413,
    InternalError: 500,
    StateDamaged: 500,
    NotSupported: 501,
    Untrusted: 502,
    Unavailable: 503,
    Busy: 503,
    OutcomeUnknown: 504,
    StorageFull: 507,
}
_MAX_RETRY_AFTER: Final = 3600.0  # seconds; no server means more than that
_MAX_DETAIL: Final = 2000  # characters of another server's text that an error repeats
_AWAY_FOR: Final = "1"  # seconds, after which a namespace that can't be reached may be back
_CONFLICT_PAUSE: Final = 30.0  # seconds: another operation on that entity is in progress
# Errors about the namespace or its rights are reported with their status; a Pairgate's own texts,
# and errors about one entity or message, need none.
_TOLD: Final = frozenset({401, 403, 408, 429})
# A refusal of the request itself, whichever server gives it: the request would fail again.
_OF_REQUEST: Final[dict[int, type[BrokerError]]] = {
    400: InvalidRequest,
    411: InvalidRequest,
    413: MessageTooLarge,
    414: InvalidRequest,
    431: InvalidRequest,
}
_THROTTLED: Final = re.compile(r"\b(50001|50002|50004|50008|50009)\b|throttl|server ?busy", re.I)
_IN_PROGRESS: Final = re.compile(r"\b4090[01]\b|in progress|conflicting operation", re.I)
_TOO_LARGE: Final = re.compile(r"too large|message size|size of the (received )?message", re.I)
_DISABLED: Final = re.compile(r"disabled", re.I)
_DENIED: Final = re.compile(r"prevented|not authorized|authoriz|claim|forbidden ip", re.I)


def kebab(error: type[BrokerError]) -> str:
    """`EntityNotFound` becomes `entity-not-found`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", error.__name__).lower()


_BY_NAME: Final = {kebab(error): error for error in _STATUS}


def build_error(error: BrokerError, *, status: int | None = None, tracking: str = "") -> Response:
    """
    Build the answer for the error: status, headers, and a text for people.

    `status` is for an operation that answers this error with a status other than the table's;
    `tracking` follows the text, like `TrackingId:..., Timestamp:...` of Service Bus.
    """
    known = next(kind for kind in type(error).__mro__ if kind in _STATUS)
    if status is None:
        status = _STATUS[known]
    fields = [(ERROR, kebab(known))]
    if status >= 500:
        fields.append((OUTCOME, error.outcome.value))
    fields += retry_fields(error)
    refusal = build_refusal(status, sentence_of(error), tracking=tracking)
    return attrs.evolve(refusal, headers=Headers.of([*refusal.headers.items, *fields]))


def retry_fields(error: BrokerError) -> list[tuple[str, str]]:
    """The header that says when to ask again: of a busy namespace, and of one that is away."""
    if isinstance(error, Busy):
        return [("Retry-After", str(max(0, math.ceil(error.retry_after))))]
    return [("Retry-After", _AWAY_FOR)] if isinstance(error, Unavailable) else []


def build_refusal(status: int, text: str, *, tracking: str = "") -> Response:
    """Build the answer to a request that isn't an operation at all, for example one cut short."""
    detail = escape(without_illegal(f"{text}. {tracking}" if tracking else text))
    body = f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>"
    return Response(
        status=status, headers=Headers.of([PAIRGATE, ("Content-Type", XML)]), body=body.encode()
    )


def challenged(response: Response, challenges: Iterable[str]) -> Response:
    """The response; if it is a 401, with these values of WWW-Authenticate."""
    if response.status != _STATUS[NotAuthorized]:
        return response
    return response.with_fields(("WWW-Authenticate", each) for each in challenges)


def fails(response: Response) -> bool:
    """True if the answer counts as an outage: another connection may lead to a better server."""
    return response.status >= 400 and parse_error(response).counts_as_outage


def parse_error(response: Response, *, settling: bool = False) -> BrokerError:
    """
    Parse an answer that isn't a success; never raises.

    A refusal without an <Error>, every success other than the expected one, and a redirect is an
    unknown outcome. With `settling`, 404 and 410 are about the lock.
    """
    detail = without_sentence(_written(response.body) or "")
    name = response.headers.get(ERROR) or ""
    known = _BY_NAME.get(name)
    said = f"{name}, " if known else ""  # the answer to HEAD has no other text
    text = detail or f"{said}HTTP status {response.status}"
    if detail and known is None and (response.status in _TOLD or response.status >= 500):
        text = f"{detail} (HTTP status {response.status})"
    if known is Busy:
        return Busy(text, retry_after=retry_after(response))
    if known is not None:
        return known(text)
    if response.headers.get(OUTCOME) == Unavailable.outcome.value:
        return Unavailable(text)
    if is_of_the_way(response):
        return of_the_way(text, response)
    if settling and response.status in {404, 410}:
        return LockLost(text)
    return _JUDGES.get(response.status, _unlisted)(text, response)


def is_of_the_way(response: Response) -> bool:
    """True if a refusal was written neither by Service Bus nor by a Pairgate."""
    return response.headers.get(PAIRGATE[0]) is None and _written(response.body) is None


def of_the_way(text: str, response: Response) -> BrokerError:
    """The error of a refusal that the service didn't write."""
    kind = _OF_REQUEST.get(response.status)
    if kind is not None:
        return kind(text)
    if 300 <= response.status < 400:
        return OutcomeUnknown(f"redirects aren't followed: {text}")
    return OutcomeUnknown(
        f"{text}, without an error of the service: a proxy on the way may say this"
    )


def _unlisted(text: str, response: Response) -> BrokerError:
    return InvalidRequest(text) if 400 <= response.status < 500 else OutcomeUnknown(text)


def _busy(text: str, response: Response) -> BrokerError:
    return Busy(text, retry_after=retry_after(response))


def _internal(text: str, response: Response) -> BrokerError:
    return _busy(text, response) if _THROTTLED.search(text) else OutcomeUnknown(text)


def _conflict(text: str, _: Response) -> BrokerError:
    if _IN_PROGRESS.search(text):
        return Busy(text, retry_after=_CONFLICT_PAUSE, reason=BusyReason.IN_PROGRESS)
    return EntityExists(text)


def _forbidden(text: str, _: Response) -> BrokerError:
    for pattern, error in (
        (_TOO_LARGE, MessageTooLarge),
        (_DISABLED, EntityDisabled),
        (_DENIED, NotAuthorized),
    ):
        if pattern.search(text):
            return error(text)
    return QuotaExceeded(text)


def _always(error: type[BrokerError]) -> Callable[[str, Response], BrokerError]:
    return lambda text, _: error(text)


_JUDGES: Final[dict[int, Callable[[str, Response], BrokerError]]] = {
    400: _always(InvalidRequest),
    401: _always(NotAuthorized),
    403: _forbidden,
    404: _always(EntityNotFound),
    408: _always(OutcomeUnknown),  # Service Bus's own timeout: it may have done the operation
    409: _conflict,
    410: _always(EntityNotFound),
    412: _always(PreconditionFailed),
    413: _always(MessageTooLarge),
    429: _busy,
    500: _internal,
    501: _always(NotSupported),
    503: _busy,
    507: _always(StorageFull),
}


def retry_after(response: Response) -> float:
    """The seconds that an answer asks to wait; 10 if it doesn't say."""
    text = response.headers.get("Retry-After") or ""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text, re.ASCII):
        return Busy().retry_after
    return min(float(text), _MAX_RETRY_AFTER)


def _written(body: bytes) -> str | None:
    """The text of an <Error>; None if the body isn't one."""
    try:
        root = parse_xml(body)
    except XmlError:
        return None
    if root.tag.rpartition("}")[2] != "Error":
        return None
    return re.sub(r"\s*\.? ?TrackingId:.*", "", text_of(root, "Detail"), flags=re.S)[:_MAX_DETAIL]
