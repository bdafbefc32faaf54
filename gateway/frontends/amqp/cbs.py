"""Tokens that clients put on `$cbs` (claims-based security, as in Service Bus)."""

from gateway.domain.errors import GatewayError, InvalidRequest
from gateway.frontends.amqp.tokens import Tokens
from gateway.wire.amqp.conditions import condition_of, status_of
from gateway.wire.amqp.exchange import Reply, Request
from gateway.wire.amqp.servicebus.cbs import ACCEPTED, put_token_of


async def answer_token(tokens: Tokens, request: Request) -> Reply:
    """
    Accept the token or refuse it, in a reply. The token's rights are checked later, when a link is
    attached.
    """
    try:
        put = put_token_of(request)
        if put is None:
            raise InvalidRequest(f"operation: put-token expected, got {request.operation!r:.60}")
        await tokens.add(put.token, put.audience)
    except GatewayError as error:
        return Reply(
            id=request.id,
            status=status_of(error),
            description=str(error),
            condition=condition_of(error),
        )
    return Reply(id=request.id, status=ACCEPTED, description="Accepted")
