"""
Requests to an entity's $management node and its replies, both directions (Service Bus: AMQP
request-response operations). The operations are in `operations`, their fields in `table`.
"""

from typing import Final

from gateway.domain.errors import BrokerError, GatewayError, NotSupported
from gateway.domain.message import Kind, Typed, Value
from gateway.wire.amqp.conditions import (
    condition_of,
    error_from_condition,
    status_of,
)
from gateway.wire.amqp.exchange import NodeRequest, Reply, number_of, text_of
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.fields import fields_of
from gateway.wire.amqp.management.table import (
    DELETES,
    EXCHANGES,
    HANDS_OUT,
    LISTS_RULES,
    SESSIONS,
    Shape,
)
from gateway.wire.servicebus.sentences import sentence_of

NODE: Final = "$management"

_PREFIX: Final = "com.microsoft:"
_TYPE: Final = "entity-mgmt"
_TIMEOUT: Final = "com.microsoft:server-timeout"
_BARE_TIMEOUT: Final = "server-timeout"  # Go's client has both names, by operation
_LINK: Final = "associated-link-name"

# Statuses of HTTP, as in the replies of Service Bus.
_OK: Final = 200
_NO_CONTENT: Final = 204
_ACCEPTED: Final = 202
_BY_NAME: Final = {_PREFIX + each.name: each for each in EXCHANGES}
_BY_TYPE: Final = {each.asked: each for each in EXCHANGES}
_LOOKING: Final = frozenset(
    _PREFIX + _BY_TYPE[each].name
    for each in (ops.Peek, ops.GetSessionState, ops.ListSessions, ops.ListRules)
)
_SHOWING: Final = _LOOKING | {_PREFIX + _BY_TYPE[ops.ReceiveDeferred].name}


# The server's side: read the request, write the answer.


def operation_of(request: NodeRequest) -> ops.Operation:
    """
    The operation that the request asks for.

    Raises:
        NotSupported: the operation is unknown.
        MessageError: the text names the field that is missing or wrong, and what is expected.
    """
    exchange = _BY_NAME.get(request.operation)
    if exchange is None:
        raise NotSupported(f"operation: {request.operation!r:.80} is not known")
    operation: ops.Operation = exchange.request.read(fields_of(request.body))
    return operation


def may_answer_much(request: NodeRequest) -> bool:
    """True if the reply may be much larger than the request."""
    return request.operation in _SHOWING


def looks_only(request: NodeRequest) -> bool:
    """True if the operation changes nothing, so that it may be cancelled."""
    return request.operation in _LOOKING


def link_of(request: NodeRequest) -> str | None:
    """The name of the client's link that the request is for, if given."""
    return text_of(request.properties.get(_LINK))


def timeout_of(request: NodeRequest) -> float | None:
    """
    The seconds that the client waits for the reply, if given. Go's client says 0 where it has less
    than a second left, and ends its wait itself.
    """
    said = request.properties
    milliseconds = number_of(said.get(_TIMEOUT, said.get(_BARE_TIMEOUT)))
    return None if milliseconds is None or milliseconds <= 0 else milliseconds / 1000


def reply_of(request: NodeRequest, operation: ops.Operation, answer: ops.Answer) -> Reply:
    """
    The reply with the answer.

    Raises:
        MessageError: AMQP can't express a value.
    """
    if _is_empty(answer):
        return Reply(id=request.id, status=_NO_CONTENT, description="No Content")
    body = _BY_TYPE[type(operation)].answer.write(answer)
    return Reply(id=request.id, status=_OK, description="OK", body=dict(body) or None)


def refusal_of(request: NodeRequest, error: GatewayError) -> Reply:
    """The reply for an error; `MessageError` is the client's fault."""
    return Reply(
        id=request.id,
        status=status_of(error),
        description=sentence_of(error),
        condition=condition_of(error),
    )


# The client's side: write the request, read the answer.


def request_of(
    operation: ops.Operation,
    *,
    request_id: Value,
    reply_to: str,
    timeout: float | None = None,
    link: str | None = None,
) -> NodeRequest:
    """
    The request for an operation.

    Raises:
        MessageError: AMQP can't express a value.
    """
    exchange = _BY_TYPE[type(operation)]
    properties: dict[str, Value] = {"type": _TYPE}
    if timeout is not None:
        properties[_TIMEOUT] = Typed(Kind.UINT, min(int(timeout * 1000), 2**32 - 1))
    if link is not None:
        properties[_LINK] = link
    return NodeRequest(
        operation=_PREFIX + exchange.name,
        id=request_id,
        reply_to=reply_to,
        properties=properties,
        body=dict(exchange.request.write(operation)),
    )


def answer_of(operation: ops.Operation, reply: Reply) -> ops.Answer:
    """
    The answer in the reply.

    Raises:
        BrokerError: the reply is an error.
        MessageError: the text names the field that is missing or wrong.
    """
    shape = _BY_TYPE[type(operation)].answer
    if reply.status == _OK:
        answer: ops.Answer = shape.read(fields_of(reply.body))
        return answer
    if reply.status in (_ACCEPTED, _NO_CONTENT):
        return _empty(shape)
    raise error_of(reply)


def error_of(reply: Reply) -> BrokerError:
    """The error in a reply. Without a condition it is an unknown outcome."""
    description = reply.description or f"status {reply.status}"
    return error_from_condition(reply.condition or "", description)


def _is_empty(answer: ops.Answer) -> bool:
    match answer:
        case ops.Messages(messages=()) | ops.SessionNames(names=()) | ops.Deleted(count=0):
            return True
        case ops.Rules(rules=()):  # Java's retired SDK can't read an empty list
            return True
    return False


def _empty(shape: Shape) -> ops.Answer:
    if shape is HANDS_OUT:
        return ops.Messages(messages=())
    if shape is SESSIONS:
        return ops.SessionNames(names=())
    if shape is LISTS_RULES:
        return ops.Rules(rules=())
    if shape is DELETES:
        return ops.Deleted(count=0)
    return ops.Done()
