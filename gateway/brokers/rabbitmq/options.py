"""Options of a namespace in RabbitMQ over AMQP 0-9-1."""

import attrs
from attrs import validators

from gateway.domain.option_fields import BYTES, SECRET
from gateway.net.tls import ClientTlsOptions


@attrs.frozen(kw_only=True)
class RabbitmqOptions:
    """Options of a namespace in RabbitMQ. Times are seconds, sizes bytes."""

    # Instead of a password in the URL.
    password: str = attrs.field(default="", repr=False, metadata=SECRET)
    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)  # for rabbitmqs, and for https
    # http(s)://host:port of the management plugin, to list queues and to see policies; "": none.
    management: str = ""
    # Shorter than the timeout of one attempt, so that a hanging connect is known as "not sent".
    connect_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # After two intervals without a byte, the connection counts as lost.
    heartbeat: float = attrs.field(
        default=5.0, validator=[validators.ge(1.0), validators.le(3600.0)]
    )
    # Below the broker's consumer_timeout (30 minutes), at which it closes the whole channel.
    lock_duration: float = attrs.field(
        default=300.0, validator=[validators.ge(1.0), validators.le(1500.0)]
    )
    # With renewals; also below the broker's consumer_timeout.
    longest_lock: float = attrs.field(
        default=1500.0, validator=[validators.ge(1.0), validators.le(86400.0)]
    )
    # Of one receiver's unsettled messages. At the limit, no further messages are received.
    max_unsettled_bytes: int = attrs.field(
        default=64 * 1024 * 1024, validator=validators.ge(1024), metadata=BYTES
    )
    # Not above the broker's max_message_size: 128 MiB up to 3.13, 16 MiB from 4.0 on.
    max_message_size: int = attrs.field(
        default=16 * 1024 * 1024, validator=validators.ge(1024), metadata=BYTES
    )
