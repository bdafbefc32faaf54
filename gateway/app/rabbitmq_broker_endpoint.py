"""The front end of RabbitMQ's own clients before any namespace that isn't RabbitMQ's."""

from gateway.app.assembly.parts import Parts
from gateway.config.options import Config
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq_broker.connection import BrokerTarget
from gateway.frontends.rabbitmq_broker.frontend import RabbitmqBrokerFrontend


def make_broker(config: Config, parts: Parts, authorizer: Authorizer) -> RabbitmqBrokerFrontend:
    """Make the front end of a namespace that isn't RabbitMQ's."""
    assert parts.upkeep is not None, "the process leads"
    target = BrokerTarget(
        vhost=parts.upkeep.vhost,
        sends=parts.upkeep.sends,
        authorizer=authorizer,
        login_timeout=config.limits.listener.first_timeout,
        most_waiting=config.limits.amqp.max_pending,
        most_bytes=config.limits.amqp.max_pending_bytes,
    )
    return RabbitmqBrokerFrontend(target)
