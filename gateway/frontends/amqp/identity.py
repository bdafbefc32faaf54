"""Requests to the namespace's own `$management`: its identity. All other management is on HTTP."""

import trio

from gateway.capabilities import Identifies
from gateway.deadlines import answered_within
from gateway.domain.errors import BrokerError, NotSupported, Unavailable
from gateway.frontends.amqp.context import Context
from gateway.offering import required
from gateway.wire.amqp.exchange import Reply, Request
from gateway.wire.amqp.management import identity as wire
from gateway.wire.amqp.management.requests import refusal_of


async def answer_identity(context: Context, request: Request, since: float) -> Reply:
    """
    Answer the request; every error has become a reply. Any right suffices, because no entity is
    concerned.
    """
    await trio.lowlevel.checkpoint()
    try:
        if request.operation != wire.OPERATION:
            raise NotSupported("the namespace isn't managed over AMQP: use HTTP")
        context.tokens.check_any()
        identifies = required(context.broker, Identifies)
        with answered_within(context.options.answer_timeout, since=since, error=Unavailable):
            return wire.reply_of(request, await identifies.identity())
    except BrokerError as error:
        return refusal_of(request, error)
