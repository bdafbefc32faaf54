"""Names of queues in RabbitMQ as entities: any text of 255 bytes, where case matters."""

from typing import Final
from urllib.parse import quote

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, not_implemented

_ALSO: Final = "/"  # as in names of Service Bus


def entity_of(queue: str) -> EntityPath:
    """
    The entity of a queue: its name, in which each byte that no entity has is written as `~` and two
    hexadecimal digits, as in names of exchanges.

    Raises:
        ClientRefused: the name is too long then.
    """
    for safe in (_ALSO, ""):
        written = quote(queue, safe=safe).replace("~", "%7E").replace("%", "~")
        if set(written) <= {"."}:
            written = written.replace(".", "~2E")
        try:
            entity = EntityPath.parse(written)
        except InvalidRequest:
            continue
        if not (entity.is_subscription or entity.is_dead_letter):
            return entity
    raise not_implemented(f"a queue with the name {queue!r:.300}")


def subscription_in(queue: str) -> EntityPath | None:
    """The subscription of a topic with that name; None: no subscription has such a name."""
    try:
        entity = EntityPath.parse(queue)
    except InvalidRequest:
        return None
    return entity if entity.is_subscription and not entity.is_dead_letter else None


def entity_or_none(queue: str) -> EntityPath | None:
    """As `entity_of`; None: no entity has such a name."""
    try:
        return entity_of(queue)
    except ClientRefused:
        return None
