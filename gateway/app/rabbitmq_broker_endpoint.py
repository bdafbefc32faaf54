"""The front end of RabbitMQ's own clients before any namespace that isn't RabbitMQ's."""

from gateway.app.assembly.parts import Parts
from gateway.config.options import Config
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq_broker.connection import BrokerTarget, ServedConnection


def make_broker(
    config: Config, parts: Parts, authorizer: Authorizer
) -> RabbitmqFrontend[BrokerTarget]:
    """
    Make the front end of a namespace that isn't RabbitMQ's. The process runs `parts.upkeep`, too.
    """
    assert parts.upkeep is not None, "the process leads"
    target = BrokerTarget(
        vhost=parts.upkeep.vhost,
        sends=parts.upkeep.sends,
        authorizer=authorizer,
        login_timeout=config.limits.listener.first_timeout,
        most_waiting=config.limits.amqp.max_pending,
        most_bytes=config.limits.amqp.max_pending_bytes,
    )
    return RabbitmqFrontend(target, ServedConnection)
