"""How to reach a RabbitMQ over AMQP 0-9-1."""

import attrs
from attrs import validators

from gateway.net.tls import ClientTlsOptions


@attrs.frozen(kw_only=True)
class RabbitmqOptions:
    """How to reach a RabbitMQ. Times are seconds, sizes bytes."""

    password: str = attrs.field(default="", repr=False)  # instead of one in the URL
    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)  # of rabbitmqs, and of https
    # http(s)://host:port of the management plugin: to list queues, and to see policies. "": none.
    management: str = ""
    # Shorter than what one attempt gets: a connect that hangs is then known as "not sent".
    connect_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # Two of them without a byte, and the broker is taken for dead.
    heartbeat: float = attrs.field(
        default=5.0, validator=[validators.ge(1.0), validators.le(3600.0)]
    )
    # Below the broker's consumer_timeout, which is 30 minutes: it ends the whole channel.
    lock_duration: float = attrs.field(
        default=300.0, validator=[validators.ge(1.0), validators.le(1500.0)]
    )
    # With renewals; below the broker's consumer_timeout too.
    longest_lock: float = attrs.field(
        default=1500.0, validator=[validators.ge(1.0), validators.le(86400.0)]
    )
    # Of messages that one receiver has and that aren't settled. With more it gets no further ones.
    max_held_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=validators.ge(1024))
    # Not above the broker's max_message_size: 128 MiB up to 3.13, 16 MiB from 4.0 on.
    max_message_size: int = attrs.field(default=16 * 1024 * 1024, validator=validators.ge(1024))
