"""
Exchanges of RabbitMQ as entities: `$exchange/NAME`.

An entity's name has fewer characters than an exchange's may have. Each other byte is written as `~`
and two hexadecimal digits: `$exchange/Shop~3AOrderPlaced` is `Shop:OrderPlaced`. No queue of
RabbitMQ is found under such a name, since `$` is in none: a syphon that doesn't know exchanges
dead-letters their messages.

A publish to the default exchange is for the queue that its routing key names, and that queue is its
entity. A queue whose name no entity can have belongs to the default exchange: then its publish has
the exact name.
"""

from typing import Final
from urllib.parse import quote, unquote

from pamqp import commands

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest

_PREFIX: Final = "$exchange/"
_OF_MANAGEMENT: Final = "amq.default"  # the default exchange, whose own name is empty
_DEFAULT: Final = EntityPath(f"{_PREFIX}{_OF_MANAGEMENT}")


class DeclareExchange(commands.Exchange.Declare):
    """`exchange.declare`, with any name: pamqp allows those that AMQP 0-9-1 lists."""

    def validate(self) -> None:
        """Accept any name."""


def entity_of_exchange(exchange: str) -> EntityPath | None:
    """The entity of an exchange; None: its name is too long for one, or "." or ".."."""
    written = quote(exchange, safe="").replace("~", "%7E").replace("%", "~")
    try:
        return EntityPath.parse(f"{_PREFIX}{written}")
    except InvalidRequest:
        return None


def entity_of_queue(queue: str) -> EntityPath:
    """The entity of a publish to the default exchange with that routing key."""
    try:
        entity = EntityPath.parse(queue)
    except InvalidRequest:
        return _DEFAULT
    return _DEFAULT if "$" in queue or entity.is_subscription else entity


def exchange_in(name: str) -> str | None:
    """The exchange that an entity's name stands for; None: it stands for none."""
    if not name.startswith(_PREFIX):
        return None
    exchange = unquote(name.removeprefix(_PREFIX).replace("~", "%"))
    return "" if exchange == _OF_MANAGEMENT else exchange


def asked_for(exchange: str) -> DeclareExchange:
    """
    The declaration that asks whether there is such an exchange. The default exchange can't be
    asked for; each vhost has it, as it has `amq.direct`.
    """
    return DeclareExchange(exchange=exchange or "amq.direct", passive=True)
