"""How to reach a namespace over AMQP 1.0. Importing this doesn't import the engine."""

from typing import Final

import attrs
from attrs import validators

from gateway.domain.errors import InvalidRequest
from gateway.net.tls import ClientTlsOptions
from gateway.wire.connection_string import ConnectionString, parse_connection_string

DIALECTS: Final = ("auto", "generic", "rabbitmq-3", "rabbitmq-4")


@attrs.frozen(kw_only=True)
class LinkOptions:
    """What both kinds have. Times are seconds."""

    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)
    # Until a link is attached, from the connect on. Shorter than what one attempt gets: what hangs
    # is then known as "not sent".
    connect_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # A peer that is silent for so long is dead. It's told half of it, and sends heartbeats.
    idle_timeout: float = attrs.field(default=10.0, validator=validators.ge(1.0))
    max_links: int = attrs.field(default=100, validator=validators.ge(2))  # of one connection
    max_senders: int = attrs.field(default=100, validator=validators.ge(1))  # kept open, and idle
    window: int = attrs.field(default=1000, validator=validators.ge(1))  # sends under way on a link


@attrs.frozen(kw_only=True)
class AmqpNamespaceOptions(LinkOptions):
    """Of `amqp(s)://[user@]host:port`."""

    password: str = attrs.field(default="", repr=False)
    dialect: str = attrs.field(default="auto", validator=validators.in_(DIALECTS))


@attrs.frozen(kw_only=True)
class ServiceBusOptions(LinkOptions):
    """
    Of `servicebus:`. The connection string stands in the URL without its key, or is a secret as a
    whole.
    """

    key: str = attrs.field(default="", repr=False)
    connection_string: str = attrs.field(default="", repr=False)
    # Where Atom is served; the default is that of AMQP where one is given, else 443 (80 if plain).
    management_port: int | None = attrs.field(
        default=None,
        validator=validators.optional([validators.ge(1), validators.le(65535)]),
    )
    token_lifetime: float = attrs.field(default=3600.0, validator=validators.ge(1.0))

    def target(self, rest: str) -> ConnectionString:
        """
        What is connected to; `rest` is what follows the scheme of the URL.

        Raises:
            InvalidRequest: the text says what is missing, or there twice.
        """
        if self.connection_string:
            if rest or self.key:
                raise InvalidRequest(
                    "connection_string: nothing expected in url after 'servicebus:', and no key"
                )
            found = parse_connection_string(self.connection_string)
        else:
            found = parse_connection_string(rest)
            if found.key:
                raise InvalidRequest(
                    "URL of a namespace: no secret in a URL; leave SharedAccessKey out and write"
                    ' key = { env = "NAME" }'
                )
        key = found.key or self.key
        if not key:
            raise InvalidRequest('key: is missing; write key = { env = "NAME" }')
        return attrs.evolve(found, key=key)
