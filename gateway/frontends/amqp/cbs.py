"""Tokens that clients put on `$cbs` (claims-based security, as Service Bus has it)."""

from gateway.domain.errors import GatewayError, InvalidRequest
from gateway.frontends.amqp.tokens import Tokens
from gateway.wire.amqp.cbs import ACCEPTED, put_token_of
from gateway.wire.amqp.conditions import condition_of, status_of
from gateway.wire.amqp.exchange import Reply, Request


def answer_token(tokens: Tokens, request: Request) -> Reply:
    """
    Take the token and say so, or say why not. What it is good for is asked when a link is attached.
    """
    try:
        put = put_token_of(request)
        if put is None:
            raise InvalidRequest(f"operation: put-token expected, got {request.operation!r:.60}")
        tokens.add(put.token)
    except GatewayError as error:
        return Reply(
            id=request.id,
            status=status_of(error),
            description=str(error),
            condition=condition_of(error),
        )
    return Reply(id=request.id, status=ACCEPTED, description="Accepted")
