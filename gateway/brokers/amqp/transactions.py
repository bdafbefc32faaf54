"""
Commits transactions in a namespace of Service Bus's kind (AMQP 1.0, part 4).

All links of a transaction are on one connection: the coordinator's, those to send on, those on
which the settled deliveries arrived, and those to $management, for states of sessions and deferred
messages. The links to send on are in one session, that of the first delivery, as Service Bus wants
it for transactions across entities.

    declare ──▶ the work, in transfers, ─────▶ discharge ──▶ accepted   all of it is done
                dispositions and requests           ├──────▶ rejected   nothing is done
                         └─ any failure: discharge with fail  └──────▶ no answer  unknown

Nothing is discharged before all of the work was accepted: until then a failure, of whatever kind,
means that nothing is done.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import trio

from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import NamespaceConnection
from gateway.brokers.amqp.receiver import check_confirmed
from gateway.brokers.amqp.senders import Sender, attach_sender, drop_idle, within
from gateway.brokers.amqp.sending import encoded, transfers_of, verdict
from gateway.brokers.amqp.servicebus_receivers import ServiceBusReceiver, ServiceBusSession
from gateway.brokers.meter import Meter
from gateway.capabilities import (
    TransactedCancellation,
    TransactedSend,
    TransactedSettlement,
    TransactedState,
    TransactedWork,
)
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    LockLost,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    TransactionRolledBack,
)
from gateway.net.amqp.links import InFlight, LinkVoid, ReceivingLink, SendingLink
from gateway.wire.amqp.conditions import error_from_condition
from gateway.wire.amqp.events import (
    Accepted,
    Declared,
    DeliveryId,
    DeliveryState,
    NewLink,
    Rejected,
    SessionId,
    Terminus,
    TransactionalState,
)
from gateway.wire.amqp.events import Outcome as AmqpOutcome
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.servicebus.settlements import outcome_of
from gateway.wire.amqp.transactions import LOCAL, Control, Declare, Discharge, build_control

_NAMESPACE: Final = ""  # the address that the token for the coordinator is for
_MOST_SENDERS: Final = 100  # links of one connection that are kept for later transactions
_UNDO: Final = 2.0  # seconds to discharge with fail; later the namespace rolls back by itself


@attrs.define(eq=False)
class TransactionLinks:
    """The links of one connection that only transactions use."""

    peer: NamespaceConnection
    _options: LinkOptions
    _coordinator: SendingLink | None = attrs.field(default=None, init=False)
    _session: SessionId | None = attrs.field(default=None, init=False)
    # By session and entity; the last used is last.
    _senders: dict[tuple[SessionId, str], Sender] = attrs.field(factory=dict, init=False)
    _attaching: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def coordinator(self) -> SendingLink:
        """
        Return the link to the coordinator.

        Raises:
            NotSupported: the namespace has no transactions.
            BrokerError: the link can't be attached.
        """
        async with self._attaching:
            if self._coordinator is None or self._coordinator.why is not None:
                attach = partial(self.peer.attach, _NAMESPACE, self._attach_coordinator)
                seconds = self._options.connect_timeout
                self._coordinator = await within(seconds, "the coordinator", attach)
        return self._coordinator

    async def sender(self, entity: EntityPath, session: SessionId | None) -> Sender:
        """
        Return a link to send to the entity, in that session or else in one for all.

        Raises:
            BrokerError: the link can't be attached, or there is no token instead of one that
                expires. Nothing was sent.
        """
        async with self._attaching:
            if session is None:
                client = self.peer.client
                if self._session is None or not client.engine.is_begun(self._session):
                    self._session = client.acquire_session()
                session = self._session
            key = session, entity.key
            sender = self._senders.pop(key, None)
            if sender is None or sender.link.why is not None:
                attach = partial(attach_sender, self._own_peer, entity, self._options, session)
                sender = await within(self._options.connect_timeout, str(entity), attach)
            self._senders[key] = sender
            drop_idle(self._senders, _MOST_SENDERS)
            if not sender.is_authorized:
                await within(self._options.connect_timeout, str(entity), sender.authorize)
        return sender

    async def _own_peer(self) -> NamespaceConnection:
        return self.peer

    async def _attach_coordinator(self) -> SendingLink:
        name = self.peer.new_name("coordinator")
        new = NewLink(
            name=name,
            we_send=True,
            source=Terminus(address=name),
            target=Terminus(coordinator=True, capabilities=(LOCAL,)),
        )
        return await SendingLink(self.peer.client, new).once_attached()


@attrs.frozen
class _EnlistedSend:
    asked: TransactedSend
    sender: Sender
    transfers: Sequence[tuple[bytes, int]]
    size: int  # bytes


@attrs.frozen
class Settling:
    """A settlement, and where its delivery is held."""

    asked: TransactedSettlement
    receiver: ServiceBusReceiver
    peer: NamespaceConnection
    link: ReceivingLink
    id: DeliveryId
    outcome: AmqpOutcome


@attrs.frozen
class Asking:
    """A request to $management: a settlement without a link, or the state of a session."""

    asked: TransactedSettlement | TransactedState
    receiver: ServiceBusReceiver
    operation: ops.Operation

    @property
    def peer(self) -> NamespaceConnection:
        return self.receiver.peer


Held = Settling | Asking
"""Work that needs a lock."""


def held_in(work: Sequence[TransactedWork]) -> list[Held]:
    """
    The settlements and the states of sessions among the work.

    Raises:
        LockLost: a delivery isn't locked any more.
        NotSupported: a delivery, or a session, is of another namespace.
    """
    return [_held(each) for each in work if not isinstance(each, TransactedSend)]


def _held(work: TransactedSettlement | TransactedState | TransactedCancellation) -> Held:
    if isinstance(work, TransactedCancellation):
        raise NotSupported("a transaction cancels no scheduled messages here")
    receiver = work.receiver
    if isinstance(work, TransactedState):
        if not isinstance(receiver, ServiceBusSession):
            raise NotSupported("a transaction sets states of its own namespace's sessions only")
        return Asking(work, receiver, receiver.request_for_state(work.state))
    if not isinstance(receiver, ServiceBusReceiver):
        raise NotSupported("a transaction settles deliveries of its own namespace only")
    operation = receiver.request_for(work.delivery, work.settlement)
    if operation is not None:
        return Asking(work, receiver, operation)
    place = receiver.place_of(work.delivery)
    return Settling(work, receiver, *place, outcome_of(work.settlement))


def peer_of(held: Sequence[Held]) -> NamespaceConnection | None:
    """
    The connection with the locks; None: the work needs none.

    Raises:
        NotSupported: they are on several connections.
    """
    peers = {each.peer for each in held}
    if len(peers) > 1:
        raise NotSupported("a transaction can't settle deliveries of several connections")
    return next(iter(peers), None)


async def commit(
    links: TransactionLinks,
    work: Sequence[TransactedWork],
    held: Sequence[Held],
    user: str,
    meter: Meter,
) -> None:
    """As `Transacts.commit`, on the connection of these links. `held`: of `work`."""
    sessions = [each.link.session for each in held if isinstance(each, Settling)]
    session = sessions[0] if sessions else None
    coordinator = await links.coordinator()
    sends = [
        await _prepared(links, each, session, user)
        for each in work
        if isinstance(each, TransactedSend)
    ]
    txn_id = await _declare(coordinator)
    accepted = False
    try:
        await _do(sends, held, txn_id)
        accepted = True
    except BrokerError as error:
        if error.outcome is Outcome.UNKNOWN:
            raise TransactionRolledBack(str(error)) from error
        raise
    finally:
        if not accepted:
            await _roll_back(coordinator, txn_id)  # noqa: ASYNC102 it is shielded, with a limit
    await _discharge(coordinator, txn_id)
    _forget(held, meter)
    for sent in sends:
        meter.carried(Operation.SEND, len(sent.asked.messages), sent.size)


def _forget(held: Sequence[Held], meter: Meter) -> None:
    """Note that deliveries were settled; their links have no use for them any more."""
    for each in held:
        if isinstance(each, Settling):
            each.link.drop(each.id, each.outcome)
            meter.settled(1)
        if isinstance(each.asked, TransactedSettlement):
            each.receiver.forget(each.asked.delivery)


async def _prepared(
    links: TransactionLinks, work: TransactedSend, session: SessionId | None, user: str
) -> _EnlistedSend:
    payloads = encoded(work.messages, links.peer.dialect, user)
    sender = await links.sender(work.entity, session)
    return _EnlistedSend(work, sender, transfers_of(payloads, sender), sum(map(len, payloads)))


async def _do(sends: Sequence[_EnlistedSend], held: Sequence[Held], txn_id: bytes) -> None:
    """
    Write all of the work, then wait until all of it is accepted provisionally.

    Raises:
        BrokerError: a part of it wasn't.
    """
    state = TransactionalState(txn_id=txn_id)
    told: list[tuple[Settling, InFlight]] = []
    try:
        for each in (each for each in held if isinstance(each, Settling)):
            settling = attrs.evolve(state, outcome=each.outcome)
            told.append((each, each.link.enlist(each.id, settling)))
        await _send(sends, state)
        for asking in (each for each in held if isinstance(each, Asking)):
            await asking.receiver.ask_in(txn_id, asking.operation)
        for each, in_flight in told:
            check_confirmed(each.outcome, _final(await in_flight.outcome()))
    except LinkVoid as void:
        if void.link.why is None:
            raise LockLost("a delivery was settled meanwhile") from void
        raise void.link.refusal() from void
    finally:
        for each, in_flight in told:
            each.link.withdraw(each.id, in_flight)


async def _send(sends: Sequence[_EnlistedSend], state: TransactionalState) -> None:
    """
    Write all messages, then wait until all of them are accepted provisionally.

    Raises:
        LinkVoid: a link has ended.
        BrokerError: one of them wasn't accepted.
    """
    posted: list[tuple[_EnlistedSend, InFlight]] = []
    for send in sends:
        for payload, message_format in send.transfers:
            in_flight = await send.sender.link.post(payload, message_format, state)
            posted.append((send, in_flight))
    for send, in_flight in posted:
        error = verdict(_final(await in_flight.outcome()), send.sender.peer.dialect)
        if error is not None:
            raise error


def _final(state: DeliveryState | None) -> DeliveryState | None:
    return state.outcome if isinstance(state, TransactionalState) else state


async def _declare(coordinator: SendingLink) -> bytes:
    """Begin a transaction; return its id. If cancelled, none is left open."""
    try:
        state = await _begun(coordinator)
    except LinkVoid as void:
        raise void.link.refusal() from void
    except OutcomeUnknown as error:
        raise TransactionRolledBack(f"no transaction was begun: {error}") from error
    if isinstance(state, Declared):
        return state.txn_id
    told = _reason(state)
    if told is not None and told.outcome is not Outcome.UNKNOWN:
        raise told
    raise TransactionRolledBack(f"no transaction was begun: {state}")


async def _discharge(coordinator: SendingLink, txn_id: bytes) -> None:
    try:
        state = await _ask(coordinator, Discharge(txn_id=txn_id))
    except LinkVoid as void:  # the discharge wasn't written: the namespace rolls back
        raise TransactionRolledBack(str(void.link.refusal())) from void
    if isinstance(state, Accepted):
        return
    told = _reason(state)
    if told is None:
        raise OutcomeUnknown(f"the namespace answered a discharge with {state}")
    if isinstance(told, TransactionRolledBack) or told.outcome is Outcome.UNKNOWN:
        raise told
    raise TransactionRolledBack(str(told))


async def _begun(coordinator: SendingLink) -> DeliveryState | None:
    """The answer to a declare."""
    in_flight = await coordinator.post(build_control(Declare()))
    try:
        return await in_flight.outcome()
    except trio.Cancelled:
        with trio.move_on_after(_UNDO, shield=True), suppress(BrokerError, LinkVoid):
            state = await in_flight.outcome()
            if isinstance(state, Declared):
                await _roll_back(coordinator, state.txn_id)
        raise


def _reason(state: DeliveryState | None) -> BrokerError | None:
    """The reason why the coordinator rejected a message; None: it didn't, or gave no reason."""
    if not isinstance(state, Rejected) or state.error is None:
        return None
    return error_from_condition(state.error.condition, state.error.description)


async def _roll_back(coordinator: SendingLink, txn_id: bytes) -> None:
    """Roll back, if the namespace answers in time."""
    with trio.move_on_after(_UNDO, shield=True), suppress(BrokerError, LinkVoid):
        await _ask(coordinator, Discharge(txn_id=txn_id, fail=True))


async def _ask(coordinator: SendingLink, control: Control) -> DeliveryState | None:
    return await coordinator.send(build_control(control))
