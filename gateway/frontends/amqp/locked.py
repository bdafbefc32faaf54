"""Requests that need a lock: of a session, through the link that holds it, or of a message."""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final

import attrs
import trio

from gateway.capabilities import (
    Enlists,
    EnlistsState,
    PeeksState,
    ReceivesDeferred,
    SessionReceiver,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    NotSupported,
    QuotaExceeded,
    SessionLockLost,
)
from gateway.domain.message import Abandon, Delivery, Message, ReceiveMode
from gateway.frontends.amqp.browsing import BrowsingLink
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.disposition_handler import returns
from gateway.frontends.amqp.outgoing import OutgoingLink
from gateway.frontends.amqp.receivers import LeasedReceiver, complete_all
from gateway.frontends.amqp.transactions import Enlisted, Transaction
from gateway.offering import required
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.message import encoded_size
from gateway.wire.amqp.servicebus.deliveries import encode_delivery

_MOST: Final = 1000  # lock tokens or sequence numbers of one request
_MOST_BYTES: Final = 16 * 1024 * 1024  # total size of the deferred messages of one reply

_OfSession = ops.RenewSession | ops.GetSessionState | ops.SetSessionState


async def answer_locked(
    context: Context, entity: EntityPath, operation: ops.Operation, asking: trio.CancelScope
) -> ops.Answer:
    """
    Return the answer once the operation is done.

    `asking` is the scope that ends when the client stops waiting. Its deadline is extended once a
    message was received and deleted, because then only the answer has the message.

    Raises:
        BrokerError: as the methods of `Receiver` and `SessionReceiver`.
    """
    match operation:
        case ops.GetSessionState(session_id=session_id) if _is_browsed(context, entity, session_id):
            peeks = required(context.broker, PeeksState)
            return ops.SessionState(state=await peeks.peek_state(entity, session_id))
        case ops.RenewSession() | ops.GetSessionState() | ops.SetSessionState():
            _, session = _session(context, entity, operation.session_id)
            return await _answer_session(session, operation)
        case ops.RenewLocks(tokens=tokens):
            _check_count("lock-tokens", len(tokens))
            receiver = LeasedReceiver(context.leases, entity)
            until = [await receiver.renew(_locked(token)) for token in tokens]
            return ops.LocksRenewed(until=tuple(until))
        case ops.ReceiveDeferred():
            return await _receive_deferred(context, entity, operation, asking)
        case ops.UpdateDisposition():
            await _settle(context, entity, operation)
            return ops.Done()
    raise NotSupported(f"{type(operation).__name__} isn't supported")


def _session(
    context: Context, entity: EntityPath, session_id: str
) -> tuple[OutgoingLink, SessionReceiver]:
    """
    The link of this connection that holds the session.

    Raises:
        SessionLockLost: no link of this connection holds the session.
    """
    for link in _links(context, entity):
        receiver = link.receiver
        if receiver is None or isinstance(receiver, LeasedReceiver):
            continue
        if receiver.session_id == session_id:
            return link, receiver
    raise SessionLockLost(f"{entity}: no link of this connection holds session {session_id!r}")


def _is_browsed(context: Context, entity: EntityPath, session_id: str) -> bool:
    """True if a link of this connection looks at the session without its lock."""
    return any(
        isinstance(link, BrowsingLink) and link.entity == entity and link.session_id == session_id
        for link in context.links.values()
    )


def holder(
    context: Context, entity: EntityPath, session_id: str | None
) -> tuple[OutgoingLink | None, LeasedReceiver | SessionReceiver]:
    """
    The receiver with the locks of a session, or of a queue without one, and the session's link.

    Raises:
        SessionLockLost: no link of this connection holds the session.
    """
    if session_id is None:
        return None, LeasedReceiver(context.leases, entity)
    return _session(context, entity, session_id)


def _links(context: Context, entity: EntityPath) -> Iterator[OutgoingLink]:
    for link in context.links.values():
        if isinstance(link, OutgoingLink) and link.entity == entity:
            yield link


async def _answer_session(session: SessionReceiver, operation: _OfSession) -> ops.Answer:
    match operation:
        case ops.RenewSession():
            return ops.SessionRenewed(until=await session.renew_session())
        case ops.GetSessionState():
            return ops.SessionState(state=await session.get_state())
        case ops.SetSessionState(state=state):
            await session.set_state(state)
    return ops.Done()


async def _receive_deferred(
    context: Context,
    entity: EntityPath,
    operation: ops.ReceiveDeferred,
    asking: trio.CancelScope,
) -> ops.Answer:
    link, receiver = holder(context, entity, operation.session_id)
    deferred = required(receiver, ReceivesDeferred)
    _check_count("sequence-numbers", len(operation.sequence_numbers))
    if link is not None:
        link.unsettled.check_room(len(operation.sequence_numbers))
    deliveries = await deferred.receive_deferred(operation.sequence_numbers)
    await _check_size(receiver, deliveries)
    if operation.mode is ReceiveMode.RECEIVE_AND_DELETE:
        asking.deadline = math.inf  # each settlement has its own deadline
        # later this scope can't be cancelled any more
        await trio.lowlevel.checkpoint_if_cancelled()
        taken = await complete_all(receiver, deliveries, context.options.answer_timeout)
        return _handed([attrs.evolve(each, lock_token=None, locked_until=None) for each in taken])
    if link is not None:
        link.unsettled.add_deferred(deliveries)
    return _handed(deliveries)


async def _check_size(
    receiver: LeasedReceiver | SessionReceiver, deliveries: Sequence[Delivery]
) -> None:
    """
    Check that the messages fit into one reply.

    Raises:
        QuotaExceeded: they don't, and were abandoned.
    """
    size = sum(encoded_size(each.message) for each in deliveries)
    if len(deliveries) > 1 and size > _MOST_BYTES:
        with suppress(BrokerError):
            for each in deliveries:
                await receiver.settle(each, Abandon(delivered=False))
        raise QuotaExceeded(f"{size} bytes don't fit into one reply: receive fewer messages")


def _check_count(field: str, count: int) -> None:
    if count > _MOST:
        raise InvalidRequest(f"{field}: at most {_MOST} expected, got {count}")


def _handed(deliveries: Sequence[Delivery]) -> ops.Messages:
    return ops.Messages(
        messages=tuple(
            ops.Handed(payload=encode_delivery(each), lock_token=each.lock_token)
            for each in deliveries
        )
    )


def enlist(
    context: Context, entity: EntityPath, operation: ops.UpdateDisposition, to: Transaction
) -> ops.Answer:
    """
    Add the settlements of deliveries, also deferred ones, to the transaction.

    Raises:
        BrokerError: as `Transactions.add_settlement` and `Enlists.enlist`.
    """
    link, receiver = holder(context, entity, operation.session_id)
    _check_count("lock-tokens", len(operation.tokens))
    settlement = operation.settlement
    is_back = returns(settlement)
    for token in operation.tokens:
        delivery = _known(link, token)
        enlisted = Enlisted(
            lock_token=token,
            work=required(receiver, Enlists).enlist(delivery, settlement),
            settled=partial(_settled, context, entity, operation, token),
            going_back=nullcontext if link is None or not is_back else link.giving_back,
        )
        context.transactions.add_settlement(to, enlisted)
    return ops.Done()


def enlist_state(
    context: Context, entity: EntityPath, operation: ops.SetSessionState, to: Transaction
) -> ops.Answer:
    """
    Add the state of a session that a link of this connection holds to the transaction.

    Raises:
        BrokerError: as `Transactions.add_state` and `EnlistsState.enlist_state`.
    """
    _, session = _session(context, entity, operation.session_id)
    work = required(session, EnlistsState).enlist_state(operation.state)
    context.transactions.add_state(to, work)
    return ops.Done()


def _settled(
    context: Context, entity: EntityPath, operation: ops.UpdateDisposition, token: str
) -> None:
    context.leases.settled(token)
    _notify_links(context, entity, operation, token)


def _notify_links(
    context: Context, entity: EntityPath, operation: ops.UpdateDisposition, token: str
) -> None:
    for each in _links(context, entity):
        each.settled_by_request(token, operation.settlement)


async def _settle(context: Context, entity: EntityPath, operation: ops.UpdateDisposition) -> None:
    _check_count("lock-tokens", len(operation.tokens))
    for token in operation.tokens:
        with context.doubts.settling(token):
            link, receiver = holder(context, entity, operation.session_id)
            of_session = link if returns(operation.settlement) else None
            with nullcontext() if of_session is None else of_session.giving_back():
                await receiver.settle(_known(link, token), operation.settlement)
        _notify_links(context, entity, operation, token)


def _known(link: OutgoingLink | None, token: str) -> Delivery:
    """The delivery with that lock token, as far as it is known."""
    return (None if link is None else link.unsettled.find(token)) or _locked(token)


def _locked(token: str) -> Delivery:
    """A delivery of which only the lock token is known."""
    return Delivery(message=Message(), sequence_number=0, lock_token=token)
