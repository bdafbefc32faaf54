"""
AMQP 1.0 for clients, as Service Bus speaks it: links become calls of a `Broker`.

    bytes -> AmqpConnection -> events -> Client -> links -> Broker, Leases
                  engine's methods  <-  outcomes, deliveries  <-
"""

from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID, uuid4

import attrs
import trio

from gateway.domain.errors import Busy, NotAuthorized
from gateway.frontends.amqp.client import Client
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.pending import HeldBackStream, Pending
from gateway.frontends.amqp.tokens import ConnectionTokens
from gateway.frontends.amqp.watch import ConnectionWatch, FrontendDrain
from gateway.frontends.auth import Authorizer
from gateway.frontends.issuers import EVERYTHING
from gateway.frontends.leasing import Leasing
from gateway.frontends.options import WAIT, AmqpOptions
from gateway.frontends.outages import Outages
from gateway.net.amqp.connection import AmqpConnection, AmqpConnectionOptions
from gateway.net.visits import current_visit, record_authorized
from gateway.ports import Broker, WallClock
from gateway.wire.amqp.sasl import (
    ANONYMOUS,
    EXTERNAL,
    MECHANISMS,
    NO_SASL,
    OK,
    PLAIN,
    REFUSED,
    TRY_LATER,
    XOAUTH2,
    Credentials,
    SaslServer,
)
from gateway.wire.openid.jwt import looks_like_jwt

# Bytes of unfinished messages that a client may have before it authenticates: tokens are smaller.
MAX_PARTIAL_UNKNOWN: Final = 64 * 1024


@attrs.frozen(kw_only=True, eq=False)
class AmqpFrontend:
    """
    Serves any number of AMQP connections.

    The caller also has to run `leases`, over the same broker.
    """

    broker: Broker
    leases: Leasing
    authorizer: Authorizer
    wall_clock: WallClock
    new_id: Callable[[], UUID] = uuid4  # globally unique, because duplicate detection relies on it
    drain: FrontendDrain = attrs.field(factory=FrontendDrain)
    options: AmqpOptions = attrs.field(factory=AmqpOptions)
    max_partial_unknown: int = MAX_PARTIAL_UNKNOWN  # bytes
    _outages: Outages | None = attrs.field(init=False)

    @_outages.default
    def _outages_that_links_outlive(self) -> Outages | None:
        return Outages(self.broker) if self.options.receivers_in_outage == WAIT else None

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """
        Return when the connection and its pending work have ended, for any reason: sends that were
        received are completed, each within its timeout. `stream` is closed then.

        A cancellation ends all of that at once; the outcome of pending sends is unknown.

        Raises:
            ExceptionGroup: a bug raised in one of its tasks.
        """
        visit = current_visit()
        pending = Pending(
            self.options.max_pending, self.options.max_pending_bytes, load_now=visit.load
        )
        try:
            await self._serve(stream, pending)
        finally:
            pending.forget()

    async def _serve(self, stream: trio.abc.Stream, pending: Pending) -> None:
        limits = self.options.engine
        small = min(self.max_partial_unknown, limits.max_partial)
        async with trio.open_nursery() as nursery:
            tokens = ConnectionTokens(self.authorizer, self.options.max_tokens)
            held_back = HeldBackStream(
                stream, pending, unfinished=lambda: connection.engine.unfinished
            )
            connection = AmqpConnection(
                held_back,
                engine=attrs.evolve(limits, container_id=self.options.namespace, max_partial=small),
                sasl=SaslServer(partial(self._accepts, tokens), self._mechanisms),
                options=AmqpConnectionOptions(
                    write_timeout=self.options.write_timeout, half_closes=True
                ),
                judge=partial(_judge_token, tokens),
                processed=held_back.record_processed,
            )
            context = Context(
                broker=self.broker,
                leases=self.leases,
                outages=self._outages,
                wall_clock=self.wall_clock,
                new_id=self.new_id,
                options=self.options,
                connection=connection,
                tokens=tokens,
                pending=pending,
                nursery=nursery,
            )
            watch = ConnectionWatch(context, self.authorizer, self.drain)
            watch.begin()
            try:
                await connection.run(Client(context, watch.record_change).handle)
            finally:
                watch.stop()

    @property
    def _mechanisms(self) -> tuple[str, ...]:
        return (*MECHANISMS, XOAUTH2) if self.authorizer.takes_bearer_tokens else MECHANISMS

    def _accepts(self, tokens: ConnectionTokens, credentials: Credentials) -> int | None:
        """
        The outcome for these credentials; None: `judge` decides, because the keys of a bearer
        token's issuer may have to be read first. ANONYMOUS connects, and so does a client without
        SASL: a token may follow on `$cbs`. EXTERNAL connects with the rights of the certificate. If
        it has none it is as ANONYMOUS, because Proton's C++ client prefers EXTERNAL also without
        TLS. PLAIN needs the name and key of a policy.
        """
        try:
            return self._knows(tokens, credentials)
        except NotAuthorized:
            return REFUSED
        except Busy:
            return TRY_LATER

    def _knows(self, tokens: ConnectionTokens, credentials: Credentials) -> int | None:
        if credentials.mechanism == XOAUTH2:
            return None
        if credentials.mechanism in {ANONYMOUS, EXTERNAL, NO_SASL}:
            self._know_without_key(tokens, credentials)
            return OK
        if credentials.mechanism != PLAIN:
            return OK
        if self.authorizer.takes_bearer_tokens and looks_like_jwt(credentials.password):
            return None
        tokens.add_claim(self.authorizer.claim_by_key(credentials.user, credentials.password))
        return OK

    def _know_without_key(self, tokens: ConnectionTokens, credentials: Credentials) -> None:
        claim = None
        if credentials.mechanism == EXTERNAL:
            claim = self.authorizer.claim_of_certificate()
        if claim is not None:
            record_authorized(claim.key_name)
        claim = claim or self.authorizer.claim_of_anonymous()
        if claim is not None:
            tokens.add_claim(claim)


async def _judge_token(tokens: ConnectionTokens, credentials: Credentials) -> int:
    """Accept a bearer token for the whole connection, or refuse it; the outcome's code."""
    try:
        await tokens.add(credentials.password, EVERYTHING)
    except NotAuthorized:
        return REFUSED
    except Busy:
        return TRY_LATER
    return OK
