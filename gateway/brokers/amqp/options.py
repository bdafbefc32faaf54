"""Options of namespaces over AMQP 1.0. Importing this module doesn't import the AMQP library."""

from typing import Final

import attrs
from attrs import validators

from gateway.brokers.entra.options import CredentialOptions, refuse_key
from gateway.domain.errors import InvalidRequest
from gateway.domain.option_fields import SECRET
from gateway.net.tls import ClientTlsOptions
from gateway.wire.servicebus.connection_string import ConnectionString, parse_connection_string

DIALECTS: Final = ("auto", "generic", "rabbitmq-3", "rabbitmq-4")


@attrs.frozen(kw_only=True)
class LinkOptions:
    """The options that both kinds have. Times are seconds."""

    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)
    # From the connect until a link is attached. Shorter than the timeout of one attempt, so that a
    # hanging connect is known as "not sent".
    connect_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # The silence after which the peer counts as lost. The peer gets half of it as the idle timeout,
    # and sends heartbeats.
    idle_timeout: float = attrs.field(default=10.0, validator=validators.ge(2.0))
    max_links: int = attrs.field(default=100, validator=validators.ge(2))  # per connection
    # Links that stay attached while idle.
    max_senders: int = attrs.field(default=100, validator=validators.ge(1))
    # Messages in flight per link.
    window: int = attrs.field(default=1000, validator=validators.ge(1))


@attrs.frozen(kw_only=True)
class AmqpNamespaceOptions(LinkOptions):
    """Options of `amqp(s)://[user@]host:port`."""

    password: str = attrs.field(default="", repr=False, metadata=SECRET)
    dialect: str = attrs.field(default="auto", validator=validators.in_(DIALECTS))


@attrs.frozen(kw_only=True)
class ServiceBusOptions(LinkOptions):
    """
    Options of `servicebus:`. The connection string is in the URL without its key, or is a secret as
    a whole.
    """

    key: str = attrs.field(default="", repr=False, metadata=SECRET)
    connection_string: str = attrs.field(default="", repr=False, metadata=SECRET)
    credential: CredentialOptions | None = None  # instead of a key
    # The port of the Atom API. The default is the AMQP port if the connection string has one,
    # otherwise 443 (80 if plain).
    management_port: int | None = attrs.field(
        default=None,
        validator=validators.optional([validators.ge(1), validators.le(65535)]),
    )
    token_lifetime: float = attrs.field(default=3600.0, validator=validators.ge(1.0))

    def target(self, rest: str) -> ConnectionString:
        """
        The parsed connection string; `rest` is the part of the URL after the scheme.

        Raises:
            InvalidRequest: a part is missing or given twice, or there is a key and a credential;
                the text says which.
        """
        if self.connection_string:
            if rest or self.key:
                raise InvalidRequest(
                    "connection_string: leave out both the rest of the url after 'servicebus:'"
                    " and key"
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
        refuse_key(self.credential, has_key=bool(key or found.key_name))
        if self.credential is not None:
            return found
        if not found.key_name:
            raise InvalidRequest("connection string: SharedAccessKeyName is missing")
        if not key:
            raise InvalidRequest('key: is missing; write key = { env = "NAME" }')
        return attrs.evolve(found, key=key)
