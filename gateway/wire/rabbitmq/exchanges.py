"""
Exchanges of RabbitMQ as entities: `$exchange/NAME`.

An entity's name has fewer characters than an exchange's may have. Each other byte is written as `~`
and two hexadecimal digits: `$exchange/Shop~3AOrderPlaced` is `Shop:OrderPlaced`. No queue of
RabbitMQ is found under such a name, since `$` is in none: a syphon that doesn't know exchanges
dead-letters their messages.
"""

from typing import Final
from urllib.parse import quote, unquote

from pamqp import commands

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest

_PREFIX: Final = "$exchange/"


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


def exchange_in(name: str) -> str | None:
    """The exchange that an entity's name stands for; None: it stands for none."""
    if not name.startswith(_PREFIX):
        return None
    return unquote(name.removeprefix(_PREFIX).replace("~", "%"))
