"""
AMQP 1.0 for clients, as Service Bus speaks it: links become calls of a `Broker`.

    bytes -> AmqpConnection -> events -> Client -> links -> Broker, Leases
                  engine's methods  <-  outcomes, deliveries  <-
"""

from collections.abc import Callable
from uuid import UUID, uuid4

import attrs
import trio

from gateway.domain.errors import NotAuthorized
from gateway.frontends.amqp.client import Client
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.options import AmqpOptions
from gateway.frontends.amqp.pending import HeldBackStream, Pending
from gateway.frontends.amqp.tokens import Tokens
from gateway.frontends.amqp.watch import Watch
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.net.amqp_connection import AmqpConnection
from gateway.ports import Broker, WallClock
from gateway.wire.amqp.sasl import Credentials, SaslServer


@attrs.frozen(kw_only=True, eq=False)
class AmqpFrontend:
    """
    Serves any number of connections.

    Whoever builds it also runs `leases`, with the same broker.
    """

    broker: Broker
    leases: Leases
    authorizer: Authorizer
    wall_clock: WallClock
    new_id: Callable[[], UUID] = uuid4  # unique for ever: duplicate detection believes in it
    # Once set, nothing new is begun, and each connection is closed when what it is owed is sent.
    drain: trio.Event = attrs.field(factory=trio.Event)
    options: AmqpOptions = attrs.field(factory=AmqpOptions)

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """
        Return when the connection has ended, in whichever way, and with it what it has begun:
        sends that came in are sent, each within its time. `stream` is closed then.

        A cancellation ends all of that at once; what was under way is unknown.

        Raises:
            ExceptionGroup: with what a bug raised.
        """
        pending = Pending(self.options.max_pending, self.options.max_pending_bytes)
        async with trio.open_nursery() as nursery:
            tokens = Tokens(self.authorizer, self.options.max_tokens)
            connection = AmqpConnection(
                HeldBackStream(stream, pending),
                engine=attrs.evolve(self.options.engine, container_id=self.options.namespace),
                sasl=SaslServer(lambda credentials: self._accepts(credentials, tokens)),
            )
            context = Context(
                broker=self.broker,
                leases=self.leases,
                wall_clock=self.wall_clock,
                new_id=self.new_id,
                options=self.options,
                connection=connection,
                tokens=tokens,
                pending=pending,
                nursery=nursery,
            )
            watch = Watch(context, self.authorizer, self.drain)
            tokens.on_added = watch.note_tokens
            nursery.start_soon(watch.run)
            await connection.run(Client(context, watch.note_links).handle)
            watch.end()

    def _accepts(self, credentials: Credentials, tokens: Tokens) -> bool:
        """
        Let in who brings a token later, who has a certificate that TLS has checked, and who knows
        a policy's key. A certificate alone allows nothing: a token follows as well.
        """
        if credentials.mechanism != "PLAIN":
            return True
        try:
            tokens.add_claim(self.authorizer.claim_by_key(credentials.user, credentials.password))
        except NotAuthorized:
            return False
        return True
