"""Maps the errors of a broker to AMQP error conditions."""

from gateway.domain.errors import BrokerError
from gateway.wire.amqp.conditions import condition_of, description_of
from gateway.wire.amqp.events import AmqpError


def amqp_error(error: BrokerError) -> AmqpError:
    return AmqpError(condition=condition_of(error), description=description_of(error))
