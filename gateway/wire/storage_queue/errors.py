"""
Errors as the Queue service answers them, with the codes that its clients ask for.

    <?xml version="1.0" encoding="utf-8"?>
    <Error><Code>QueueNotFound</Code><Message>The specified queue does not exist.
    RequestId:...
    Time:2026-11-21T00:50:39.5564321Z</Message></Error>

The code is in `x-ms-error-code` too, for answers without a body (REST API: Queue Storage error
codes; common error codes). `extra` are further elements, such as MaxLimit. Several errors share a
code, so a Pairgate also sends X-Pairgate-Error (the class in kebab case).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from xml.sax.saxutils import escape

import attrs

from gateway.domain.errors import (
    BrokerError,
    Busy,
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
from gateway.wire.servicebus.errors import ERROR, kebab, of_the_way, retry_after, retry_fields
from gateway.wire.servicebus.sentences import without_address

CODE_HEADER: Final = "x-ms-error-code"
XML_TYPE: Final = "application/xml"
DECLARATION: Final = '<?xml version="1.0" encoding="utf-8"?>'
NO_EXTRA: Final[Mapping[str, str]] = MappingProxyType({})

# Each code with its status and the service's text.
CODES: Final[Mapping[str, tuple[int, str]]] = {
    "InvalidHeaderValue": (400, "The value for one of the HTTP headers is not in the correct"
                           " format."),
    "InvalidQueryParameterValue": (400, "Value for one of the query parameters specified in the"
                                   " request URI is invalid."),
    "OutOfRangeQueryParameterValue": (400, "One of the query parameters specified in the request"
                                      " URI is outside the permissible range."),
    "MissingRequiredQueryParameter": (400, "A query parameter that's mandatory for this request is"
                                      " not specified."),
    "OutOfRangeInput": (400, "One of the request inputs is out of range."),
    "InvalidResourceName": (400, "The specified resource name contains invalid characters."),
    "InvalidUri": (400, "The requested URI does not represent any resource on the server."),
    "InvalidInput": (400, "One of the request inputs is not valid."),
    "InvalidXmlDocument": (400, "XML specified is not syntactically valid."),
    "InvalidXmlNodeValue": (400, "The value for one of the XML nodes is not in the correct"
                            " format."),
    "InvalidMd5": (400, "The MD5 value specified in the request is invalid."),
    "Md5Mismatch": (400, "The MD5 value specified in the request did not match with the MD5 value"
                    " calculated by the server."),
    "InvalidMarker": (400, "The specified marker is invalid."),
    "InvalidMetadata": (400, "The metadata specified is invalid. It has characters that are not"
                        " permitted."),
    "EmptyMetadataKey": (400, "The key for one of the metadata key-value pairs is empty."),
    "MetadataTooLarge": (400, "The metadata specified exceeds the maximum permissible limit"
                         " (8KB)."),
    "MessageTooLarge": (400, "The message exceeds the maximum allowed size."),
    "PopReceiptMismatch": (400, "The specified pop receipt did not match the pop receipt for a"
                           " dequeued message."),
    "InvalidAuthenticationInfo": (400, "Authentication information is not given in the correct"
                                  " format. Check the value of Authorization header."),
    "NoAuthenticationInformation": (401, "Server failed to authenticate the request. Please refer"
                                    " to the information in the www-authenticate header."),
    "AuthenticationFailed": (403, "Server failed to authenticate the request. Make sure the value"
                             " of Authorization header is formed correctly including the"
                             " signature."),
    "AuthorizationFailure": (403, "This request is not authorized to perform this operation."),
    "AuthorizationPermissionMismatch": (403, "This request is not authorized to perform this"
                                        " operation using this permission."),
    "AuthorizationServiceMismatch": (403, "This request is not authorized to perform this operation"
                                     " using this service."),
    "AuthorizationResourceTypeMismatch": (403, "This request is not authorized to perform this"
                                          " operation using this resource type."),
    "AuthorizationProtocolMismatch": (403, "This request is not authorized to perform this"
                                      " operation using this protocol."),
    "AuthorizationSourceIPMismatch": (403, "This request is not authorized to perform this"
                                      " operation using this source IP."),
    "InsufficientAccountPermissions": (403, "Write operations are not allowed."),
    "CorsPreflightFailure": (403, "CORS not enabled or no matching rule found for this request."),
    "ResourceNotFound": (404, "The specified resource does not exist."),
    "QueueNotFound": (404, "The specified queue does not exist."),
    "MessageNotFound": (404, "The specified message does not exist."),
    "UnsupportedHttpVerb": (405, "The resource doesn't support specified Http Verb."),
    "QueueAlreadyExists": (409, "The specified queue already exists."),
    "QueueDisabled": (409, "The specified queue has been disabled by the administrator."),
    "MissingContentLengthHeader": (411, "The Content-Length header was not specified."),
    "ConditionNotMet": (412, "The condition specified using HTTP conditional header(s) is not"
                        " met."),
    "RequestBodyTooLarge": (413, "The request body is too large and exceeds the maximum permissible"
                            " limit."),
    "InternalError": (500, "The server encountered an internal error. Please retry the request."),
    "OperationTimedOut": (500, "Operation could not be completed within the specified time."),
    "NotImplemented": (501, "The requested operation is not implemented on the specified"
                       " resource."),
    "ServerBusy": (503, "The server is currently unable to receive requests. Please retry your"
                   " request."),
}  # fmt: skip

# The code for each error of a namespace.
_OF_BROKER: Final[Mapping[type[BrokerError], str]] = {
    SessionRequired: "QueueDisabled",
    InvalidRequest: "InvalidInput",
    NotAuthorized: "AuthenticationFailed",
    QuotaExceeded: "ServerBusy",
    EntityDisabled: "QueueDisabled",
    SessionNotAvailable: "QueueDisabled",
    EntityNotFound: "QueueNotFound",
    EntityExists: "QueueAlreadyExists",
    PreconditionFailed: "ConditionNotMet",
    LockLost: "PopReceiptMismatch",
    MessageNotFound: "MessageNotFound",
    MessageTooLarge: "RequestBodyTooLarge",  # so the service says it, of a text too
    NotSupported: "NotImplemented",
    Untrusted: "InternalError",
    InternalError: "InternalError",
    StateDamaged: "InternalError",
    TransactionRolledBack: "InternalError",  # never: there are no transactions over HTTP
    TransactionUnknown: "InternalError",
    TransactionTimeout: "InternalError",
    Busy: "ServerBusy",
    StorageFull: "ServerBusy",
    Unavailable: "ServerBusy",
    OutcomeUnknown: "OperationTimedOut",
}
# In reverse, for a client of the service. Any other code is interpreted by its status.
_TO_BROKER: Final[Mapping[str, type[BrokerError]]] = {
    "QueueNotFound": EntityNotFound,
    "ResourceNotFound": EntityNotFound,
    "MessageNotFound": MessageNotFound,
    "PopReceiptMismatch": LockLost,
    "QueueAlreadyExists": EntityExists,
    "QueueDisabled": EntityDisabled,
    "QueueBeingDeleted": Busy,
    "MessageTooLarge": MessageTooLarge,
    "RequestBodyTooLarge": MessageTooLarge,
    "ConditionNotMet": PreconditionFailed,
    "NotImplemented": NotSupported,
    "APINotImplemented": NotSupported,  # Azurite's
    "ServerBusy": Busy,
    "OperationTimedOut": OutcomeUnknown,
    "InternalError": OutcomeUnknown,
}
_BY_STATUS: Final[Mapping[int, type[BrokerError]]] = {
    401: NotAuthorized,
    403: NotAuthorized,
    404: EntityNotFound,
    408: OutcomeUnknown,
    409: EntityExists,
    412: PreconditionFailed,
    413: MessageTooLarge,
    429: Busy,
}
_BY_NAME: Final = {kebab(kind): kind for kind in _OF_BROKER}
# Answers with these codes have the service's text alone: an error's own text would only repeat it,
# or name the namespaces behind the gateway.
_SILENT: Final = frozenset({"QueueNotFound", "MessageNotFound", "PopReceiptMismatch"})
_FIRST_RETRY: Final = 1.0  # seconds
_MAX_TEXT: Final = 2000  # characters of another server's text that an error repeats


class StorageRefusal(InvalidRequest):
    """
    The service's refusal of a request, with that code; raised by this codec and its users.

    `says`: the code that the answer names instead, with the status and text of `code`: the service
    has two statuses for InvalidAuthenticationInfo.
    """

    def __init__(
        self, code: str, detail: str = "", *, says: str = "", extra: Mapping[str, str] = NO_EXTRA
    ) -> None:
        super().__init__(detail or CODES[code][1])
        self.code = code
        self.says = says or code
        self.detail = detail
        self.extra = extra


@attrs.frozen(kw_only=True)
class Trace:
    """The end of an error's text: the request's id, and the date."""

    request_id: str
    time: str


def build_error(error: BrokerError, trace: Trace) -> Response:
    """Build the answer for the error."""
    if isinstance(error, StorageRefusal):
        why = {"says": error.says, "detail": error.detail}
        return build_refusal(error.code, trace, **why, extra=error.extra)
    known = next(kind for kind in type(error).__mro__ if kind in _OF_BROKER)
    code = _OF_BROKER[known]
    response = build_refusal(code, trace, detail="" if code in _SILENT else without_address(error))
    fields = [(ERROR, kebab(known)), *retry_fields(error)]
    return attrs.evolve(response, headers=Headers((*response.headers.items, *fields)))


def build_refusal(
    code: str,
    trace: Trace,
    *,
    says: str = "",
    detail: str = "",
    extra: Mapping[str, str] = NO_EXTRA,
) -> Response:
    """
    Build the answer with that code; `detail` follows the service's own text. `says`: as in
    `StorageRefusal`.
    """
    status, message = CODES[code]
    code = says or code
    text = f"{message} {detail}" if detail else message
    text = f"{text}\nRequestId:{trace.request_id}\nTime:{trace.time}"
    more = "".join(f"<{name}>{_escaped(value)}</{name}>" for name, value in extra.items())
    body = (
        f"{DECLARATION}<Error><Code>{code}</Code><Message>{_escaped(text)}</Message>{more}</Error>"
    )
    return Response(
        status=status,
        headers=Headers(((CODE_HEADER, code), ("Content-Type", XML_TYPE))),
        body=body.encode(),
    )


def fails(response: Response) -> bool:
    """True if the answer counts as an outage: another connection may lead to a better server."""
    return response.status >= 400 and parse_error(response).counts_as_outage


def parse_error(response: Response) -> BrokerError:
    """
    Parse an answer that isn't a success; never raises.

    An answer without a code comes from a server on the way, such as a proxy, which may have
    forwarded the request: its outcome is unknown, unless it refuses the request for its form or
    size. So is a 5xx without a known code, and an unexpected success.
    """
    code, text = _code_and_text(response)
    status = f"HTTP status {response.status}"
    words = f"{code}: {text}" if text else code
    said = f"{words} ({status})" if words else status
    named = _BY_NAME.get(response.headers.get(ERROR) or "")
    if named is None and not code:
        return of_the_way(said, response)
    kind = named or _TO_BROKER.get(code) or _BY_STATUS.get(response.status)
    if kind is Busy:
        if response.headers.get("Retry-After") is None:  # Azure's, which names no time
            return Busy(said, retry_after=_FIRST_RETRY, backs_off=True)
        return Busy(said, retry_after=retry_after(response))
    if kind is not None:
        return kind(said)
    return InvalidRequest(said) if 400 <= response.status < 500 else OutcomeUnknown(said)


def _code_and_text(response: Response) -> tuple[str, str]:
    header = response.headers.get(CODE_HEADER) or ""
    try:
        root = parse_xml(response.body)
    except XmlError:
        return header, ""
    text = text_of(root, "Message").partition("\nRequestId:")[0]
    return text_of(root, "Code") or header, text[:_MAX_TEXT]


def _escaped(text: str) -> str:
    return escape(without_illegal(text))
