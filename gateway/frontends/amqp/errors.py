"""Maps the errors of a broker to AMQP error conditions."""

from gateway.domain.errors import BrokerError, MessageError
from gateway.wire.amqp.conditions import condition_of, description_of
from gateway.wire.amqp.events import AmqpError
from gateway.wire.amqp.frames import DECODE_ERROR


def amqp_error(error: BrokerError) -> AmqpError:
    return AmqpError(condition=condition_of(error), description=description_of(error))


def unreadable(error: MessageError) -> AmqpError:
    """The error for a message that can't be read."""
    return AmqpError(condition=DECODE_ERROR, description=str(error))
