"""Tokens that clients put on `$cbs` (claims-based security, as Service Bus has it)."""

from typing import Final

from gateway.domain.errors import BrokerError, Busy, InvalidRequest
from gateway.domain.message import Kind, Message, Typed, ValueBody
from gateway.frontends.amqp.tokens import Tokens
from gateway.wire.amqp.message import encode_message

_ACCEPTED: Final = 202


def answer_token(tokens: Tokens, request: Message) -> bytes:
    """
    Take the token and say so, or say why not. What it is good for is asked when a link is attached.

    SDKs call a shared access signature a "jwt": only the token's own text says what it is.
    """
    try:
        tokens.add(_token(request))
    except BrokerError as error:
        return _reply(request, _status(error), str(error))
    return _reply(request, _ACCEPTED, "Accepted")


def _token(request: Message) -> str:
    operation = request.properties.get("operation")
    if operation != "put-token":
        raise InvalidRequest(f"operation: put-token expected, got {operation!r:.60}")
    match request.body:
        case ValueBody(str(token)):
            return token
    raise InvalidRequest("body: the token as a string expected")


def _status(error: BrokerError) -> int:
    match error:
        case InvalidRequest():
            return 400
        case Busy():
            return 429
    return 401


def _reply(request: Message, status: int, description: str) -> bytes:
    return encode_message(
        Message(
            to=request.reply_to,
            correlation_id=request.message_id,
            properties={
                "status-code": Typed(Kind.INT, status),
                "status-description": description,
            },
            body=ValueBody(None),
        )
    )
