"""The front end of RabbitMQ's own clients, for a pair whose primary is in RabbitMQ."""

import trio

from gateway.app.assembly.parts import Parts
from gateway.app.runtime import Runtime
from gateway.brokers.rabbitmq.address import read_address
from gateway.config.options import Config
from gateway.frontends.auth import Authorizer
from gateway.frontends.rabbitmq.frontend import RabbitmqFrontend
from gateway.frontends.rabbitmq.login_policies import LoginPolicies
from gateway.frontends.rabbitmq.relayed_connection import RelayedConnection
from gateway.frontends.rabbitmq.session import RelayTarget
from gateway.net.dialing import dial_within
from gateway.net.hosts import Hosts


def make_wire(
    config: Config, parts: Parts, runtime: Runtime, authorizer: Authorizer
) -> RabbitmqFrontend[RelayTarget]:
    """Make the front end of a pair, as the configuration has been checked."""
    assert config.pairing is not None, "the configuration has been checked"
    assert parts.pair is not None, "the process has the pair"
    assert parts.topology is not None, "the process leads"
    namespace = config.namespaces[config.pairing.primary]
    scheme, _, rest = namespace.url.partition(":")
    places, login = read_address(scheme, rest, namespace.options)
    hosts = Hosts(places=places, rng=runtime.rng("rabbitmq endpoint"))

    async def dial_primary() -> trio.abc.Stream:
        return await hosts.first(dial_within, namespace.options.connect_timeout)

    slow = config.pairing.options.slow_call_duration or config.pairing.options.attempt_timeout
    target = RelayTarget(
        dial=dial_primary,
        broker=parts.broker,
        states=parts.pair.states,
        sends=parts.pair.broker.sends,
        slow=slow,
        login_timeout=config.limits.listener.first_timeout,
        vhost=login.vhost,
        known=parts.topology.known,
        policies=LoginPolicies(authorizer),
    )
    return RabbitmqFrontend(target, RelayedConnection)
