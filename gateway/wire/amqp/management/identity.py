"""
A namespace's identity over AMQP: from its open frame, or by a request that Pairgates answer.

A Pairgate's open frame has the property `pairgate`. Its node `$management` then has the operation
`pairgate:identity`; the reply is a map with one entry, `identity`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.identity import Identity, parse_identity, rabbitmq_identity
from gateway.wire.amqp.exchange import NodeRequest, Reply, text_of
from gateway.wire.amqp.management.fields import fields_of
from gateway.wire.amqp.management.requests import error_of

OPERATION: Final = "pairgate:identity"
OPEN_PROPERTIES: Final[Mapping[str, Any]] = MappingProxyType({"pairgate": "1"})

_OK: Final = 200  # of HTTP, as in the replies of Service Bus
_IDENTITY: Final = "identity"
_VHOST: Final = "/"  # the vhost that an AMQP 1.0 connection to RabbitMQ uses


def is_pairgate(properties: Mapping[str, Any]) -> bool:
    """True if an open frame with these properties is a Pairgate's."""
    return "pairgate" in properties


def identity_in_open(properties: Mapping[str, Any]) -> Identity | None:
    """The identity in RabbitMQ's open frame; None if it has none."""
    cluster = properties.get("cluster_name")
    if properties.get("product") != "RabbitMQ" or not isinstance(cluster, str) or not cluster:
        return None
    return rabbitmq_identity(cluster, _VHOST)


def request() -> NodeRequest:
    return NodeRequest(operation=OPERATION, reply_to="")


def reply_of(asked: NodeRequest, identity: Identity) -> Reply:
    body = {_IDENTITY: str(identity)}
    return Reply(id=asked.id, status=_OK, description="OK", body=body)


def identity_of(reply: Reply) -> Identity:
    """
    The identity in the reply.

    Raises:
        BrokerError: the reply is an error.
        InvalidRequest: the reply has no identity.
    """
    if reply.status != _OK:
        raise error_of(reply)
    try:
        text = text_of(fields_of(reply.body).get(_IDENTITY))
    except MessageError as error:
        raise InvalidRequest(f"identity of a namespace: {error}") from error
    return parse_identity(text or "")
