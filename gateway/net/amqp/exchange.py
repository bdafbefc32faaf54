"""Requests to a node and their replies, on a pair of links of one session."""

from itertools import count
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError, MessageError, OutcomeUnknown, Unavailable
from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.links import ReceivingLink, SendingLink
from gateway.wire.amqp.conditions import error_from_condition
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    Event,
    Modified,
    NewLink,
    Rejected,
    Released,
    SessionId,
    Terminus,
    TransactionalState,
    TransferReceived,
)
from gateway.wire.amqp.exchange import NodeRequest, Reply, build_request, parse_reply

_CREDIT: Final = 100  # replies that may arrive; each arrival makes room for another


@attrs.define(eq=False, slots=True)
class _PendingRequest:
    """A pending request."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    reply: Reply | None = None
    error: MessageError | None = None


class Exchange:
    """A client of one node, for any number of concurrent requests."""

    def __init__(self, client: AmqpClient, node: str, name: str) -> None:
        """
        Attach the links. `name` is the address for the replies, and their names begin with it.
        Each has a name of its own: peers that find a link by its name alone, as rhea does, would
        take the second for the first.

        Raises:
            Unavailable: the connection has ended.
        """
        self._client = client
        self._asked: dict[str, _PendingRequest] = {}
        self._ids = count(1)
        self._name = name
        self._node = node
        self._ended = False
        self._session = client.acquire_session()
        here, there = Terminus(address=name), Terminus(address=node)
        self._replies = _Replies(
            self,
            client,
            NewLink(name=f"{name}-replies", we_send=False, source=there, target=here),
            self._session,
        )
        self._requests = _NodeRequests(
            self,
            client,
            NewLink(name=f"{name}-requests", we_send=True, source=here, target=there),
            self._session,
        )

    @property
    def void(self) -> bool:
        return self._requests.why is not None or self._replies.why is not None

    @property
    def idle(self) -> bool:
        return not self._asked

    async def wait_attached(self) -> None:
        """
        Return when requests can be sent.

        Raises:
            BrokerError: a link was refused, or the connection ended. Nothing was sent.
        """
        await self._requests.wait_attached()
        await self._replies.wait_attached()
        self._replies.set_credit(_CREDIT)

    async def ask(self, request: NodeRequest) -> Reply:
        """
        Return the reply. Sets `id` and `reply_to` of the request; with a `txn_id` it is part of
        that transaction.

        Raises:
            LinkVoid: the links had ended; nothing was sent.
            BrokerError: the node didn't accept the request.
            OutcomeUnknown: there is no reply, or it can't be read.
            MessageError: AMQP can't encode a value of the request.
        """
        id_ = str(next(self._ids))
        payload = build_request(attrs.evolve(request, id=id_, reply_to=self._name))
        mine = self._asked[id_] = _PendingRequest()
        try:
            within = None if request.txn_id is None else TransactionalState(txn_id=request.txn_id)
            state = await self._requests.send(payload, state=within)
            if isinstance(state, TransactionalState):
                state = state.outcome
            if isinstance(state, Rejected):
                raise _refused(state)
            if isinstance(state, Released | Modified):
                raise Unavailable(f"{self._node} didn't accept the request")
            await mine.answered.wait()
        finally:
            del self._asked[id_]
        if mine.error is not None:
            raise OutcomeUnknown(f"the reply can't be read: {mine.error}") from mine.error
        if mine.reply is None:
            raise OutcomeUnknown("the link ended before the reply")
        return mine.reply

    def close(self) -> None:
        """Detach both links, and wake the callers that wait for a reply."""
        self._requests.close()
        self._replies.close()

    def handle_reply(self, event: TransferReceived) -> None:
        """Handle a reply."""
        try:
            reply = parse_reply(event.payload)
        except MessageError as error:
            for each in self._asked.values():  # the request that the answer belongs to is unknown
                each.error = error
                each.answered.set()
            return
        mine = self._asked.get(str(reply.id))
        if mine is not None:
            mine.reply = reply
            mine.answered.set()

    def fail(self) -> None:
        """Note that one of the links has ended, which makes the other useless."""
        if self._ended:
            return
        self._ended = True
        self.close()
        self._client.release_session(self._session)
        for each in self._asked.values():
            each.answered.set()


class _NodeRequests(SendingLink):
    def __init__(
        self, exchange: Exchange, client: AmqpClient, new: NewLink, session: SessionId
    ) -> None:
        self._exchange = exchange
        super().__init__(client, new, session)

    def over(self, why: AmqpError) -> None:
        super().over(why)
        self._exchange.fail()


class _Replies(ReceivingLink):
    def __init__(
        self, exchange: Exchange, client: AmqpClient, new: NewLink, session: SessionId
    ) -> None:
        self._exchange = exchange
        super().__init__(client, new, session)

    def handle(self, event: Event) -> None:
        super().handle(event)
        while self.arrived:
            arrived = self.arrived.popleft()
            self.drop(arrived.delivery, ACCEPTED)
            self.set_credit(_CREDIT)
            self._exchange.handle_reply(arrived)

    def over(self, why: AmqpError) -> None:
        super().over(why)
        self._exchange.fail()


def _refused(state: Rejected) -> BrokerError:
    error = state.error or AmqpError(condition="amqp:internal-error")
    return error_from_condition(error.condition, error.description)
