"""
The node $cbs, to which a client sends a token for each entity that it wants to use (AMQP
Claims-based Security 1.0, working draft 05, 3).
"""

from datetime import datetime
from typing import Final

import attrs

from gateway.domain.errors import MessageError
from gateway.domain.message import Value
from gateway.wire.amqp.exchange import NodeRequest, text_of

NODE: Final = "$cbs"
SAS: Final = "servicebus.windows.net:sastoken"  # types of tokens
JWT: Final = "jwt"
ACCEPTED: Final = 202  # the status of a reply to an accepted token

_PUT: Final = "put-token"
_LONGEST: Final = 4096  # characters of an audience: it is kept as long as the token


@attrs.frozen(kw_only=True)
class PutToken:
    """
    Asks to grant the connection the rights of the token on the entity whose URI is `audience`.

    The kind of the token follows from its text alone: the `type` that clients state is not always
    right (azure-servicebus 7.15 calls all of them jwt). `expires` is the client's statement.
    """

    audience: str
    token: str = attrs.field(repr=False)
    type: str = SAS
    expires: datetime | None = None


def put_token_of(request: NodeRequest) -> PutToken | None:
    """
    The token that a request to $cbs puts; None for any other operation, which $cbs doesn't have.

    Raises:
        MessageError: the audience or the token is missing, or the audience is too long.
    """
    if request.operation != _PUT:
        return None
    audience = text_of(request.properties.get("name"))
    if not audience or len(audience) > _LONGEST:
        raise MessageError(f"name: the URI of an entity expected, of at most {_LONGEST} characters")
    if not isinstance(request.body, str):
        raise MessageError("body: a token expected, as a string in an amqp-value")
    expires = request.properties.get("expiration")
    return PutToken(
        audience=audience,
        token=request.body,
        type=text_of(request.properties.get("type")) or "",
        expires=expires if isinstance(expires, datetime) else None,
    )


def request_of(put: PutToken, *, request_id: Value, reply_to: str) -> NodeRequest:
    properties: dict[str, Value] = {"name": put.audience, "type": put.type}
    if put.expires is not None:
        properties["expiration"] = put.expires
    return NodeRequest(
        operation=_PUT, id=request_id, reply_to=reply_to, properties=properties, body=put.token
    )
