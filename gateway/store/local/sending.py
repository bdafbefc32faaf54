"""
Sends several batches, or commits a transaction, on a namespace that Pairgate keeps itself: each in
one step.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import trio

from gateway.brokers.meter import Meter
from gateway.capabilities import (
    TransactedCancellation,
    TransactedSend,
    TransactedSettlement,
    TransactedState,
    TransactedWork,
)
from gateway.domain.billing import Operation
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InternalError, InvalidRequest, NotSupported
from gateway.domain.message import Message
from gateway.domain.values import value
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import Incoming, MessageNumbers
from gateway.store.local.receiver import LocalReceiver
from gateway.store.local.sessions import LocalSessionReceiver
from gateway.store.local.step import STEP_COST

Packed = Sequence[Incoming] | BrokerError
"""The messages of a batch, or the error that says why they can't be stored."""

Places = Sequence[MessageNumbers]
"""The places of the messages of an accepted batch."""


def check_target(entity: EntityPath) -> None:
    """
    Check that the path may be sent to.

    Raises:
        InvalidRequest: the path is that of a sub-queue or subscription.
    """
    if entity.is_dead_letter or entity.is_subscription:
        raise InvalidRequest(
            f"{entity}: a queue or topic expected, not a sub-queue or subscription"
        )


def cost_of(batch: Packed) -> int:
    """The memory that the batch holds, in bytes."""
    return 0 if isinstance(batch, BrokerError) else sum([message.size for message in batch])


class SendRunner(Protocol):
    """The operations of its broker that a send needs."""

    async def run_on(
        self,
        entity: EntityPath,
        work: Callable[[Namespace, Now], Sequence[Places | BrokerError]],
        *,
        cost: int,
        billed: None,
    ) -> Sequence[Places | BrokerError]: ...


async def send_packed(
    broker: SendRunner, entity: EntityPath, batches: Sequence[Packed]
) -> Sequence[Places | BrokerError]:
    """
    As `send_each`, in one step. If a bug ends the step, each batch gets a step of its own.

    Raises:
        BrokerError: as `send_each`; never InternalError.
    """
    cost = sum(map(cost_of, batches)) + STEP_COST

    def work(space: Namespace, now: Now) -> Sequence[Places | BrokerError]:
        return send_each(space, entity, batches, now)

    try:
        return await broker.run_on(entity, work, cost=cost, billed=None)
    except InternalError as error:
        await trio.lowlevel.checkpoint()
        if len(batches) == 1:
            return [error]
    verdicts: list[Places | BrokerError] = []
    for batch in batches:
        verdicts += await send_packed(broker, entity, [batch])
    return verdicts


def send_each(
    namespace: Namespace, entity: EntityPath, batches: Sequence[Packed], now: Now
) -> Sequence[Places | BrokerError]:
    """
    Accept or refuse each batch, in this order.

    Raises:
        BrokerError: no batch was accepted.
    """
    namespace.check_room()
    queue = namespace.find_or_create(entity, now)
    good = [message for batch in batches if not isinstance(batch, BrokerError) for message in batch]
    try:
        places = iter(queue.send(good, now))
    except BrokerError:  # caused by one batch; a rule that refuses has changed nothing
        return [_send(queue, batch, now) for batch in batches]
    return [
        batch if isinstance(batch, BrokerError) else list(islice(places, len(batch)))
        for batch in batches
    ]


def _send(queue: Queue, batch: Packed, now: Now) -> Places | BrokerError:
    if isinstance(batch, BrokerError):
        return batch
    try:
        return queue.send(batch, now)
    except BrokerError as error:
        return error


class TransactionRunner(Protocol):
    """The operations of its broker that a transaction needs."""

    @property
    def meter(self) -> Meter: ...

    def packed(self, messages: Sequence[Message]) -> Packed: ...

    def record_places(
        self, entity: EntityPath, messages: Sequence[Message], places: Places
    ) -> None: ...

    async def run_on(
        self,
        entity: EntityPath,
        work: Callable[[Namespace, Now], Sequence[Places]],
        *,
        cost: int,
        billed: None,
    ) -> Sequence[Places]: ...


@value
class _PendingSend:
    asked: TransactedSend
    incoming: Sequence[Incoming]


@value
class _Settlement:
    asked: TransactedSettlement
    receiver: LocalReceiver


@value
class _PendingState:
    asked: TransactedState
    receiver: LocalSessionReceiver


_Prepared = _PendingSend | TransactedCancellation | _Settlement | _PendingState


async def commit_in_one_step(broker: TransactionRunner, work: Sequence[TransactedWork]) -> None:
    """
    As `Transacts.commit`. The first work that is refused undoes all the work before it.

    Raises:
        NotSupported: a settlement is of another namespace's delivery.
    """
    prepared = [_prepared(broker, each) for each in work]
    sends = [each for each in prepared if isinstance(each, _PendingSend)]
    settlements = [each for each in prepared if isinstance(each, _Settlement)]
    sizes = [cost_of(each.incoming) for each in sends]

    def step(namespace: Namespace, now: Now) -> Sequence[Places]:
        with namespace.all_or_nothing():
            return _run(namespace, prepared, now)

    cost = sum(sizes) + STEP_COST * (1 + len(prepared))
    places = await broker.run_on(EntityPath(""), step, cost=cost, billed=None)
    if settlements:
        broker.meter.settled(len(settlements))
    for _ in range(len(prepared) - len(sends) - len(settlements)):
        broker.meter.request(Operation.MANAGE)
    for settled in settlements:
        settled.receiver.forget(settled.asked.delivery)
    for sent, size, each in zip(sends, sizes, places, strict=True):
        broker.meter.carried(Operation.SEND, len(sent.incoming), size)
        broker.record_places(sent.asked.entity, sent.asked.messages, each)


def _prepared(broker: TransactionRunner, work: TransactedWork) -> _Prepared:
    if isinstance(work, TransactedSettlement):
        if not isinstance(work.receiver, LocalReceiver):
            raise NotSupported("a transaction settles deliveries of its own namespace only")
        return _Settlement(work, work.receiver)
    if isinstance(work, TransactedState):
        if not isinstance(work.receiver, LocalSessionReceiver):
            raise NotSupported("a transaction sets states of its own namespace's sessions only")
        return _PendingState(work, work.receiver)
    if isinstance(work, TransactedCancellation):
        return work
    check_target(work.entity)
    packed = broker.packed(work.messages)
    if isinstance(packed, BrokerError):
        raise packed
    return _PendingSend(work, packed)


def _run(namespace: Namespace, prepared: Sequence[_Prepared], now: Now) -> Sequence[Places]:
    places: list[Places] = []
    for each in prepared:
        if isinstance(each, _Settlement):
            each.receiver.settle_in(namespace, each.asked, now)
            continue
        if isinstance(each, _PendingState):
            each.receiver.set_state_in(namespace, each.asked.state, now)
            continue
        if isinstance(each, TransactedCancellation):
            namespace.concern(each.entity)
            namespace.find(each.entity).cancel(each.sequence_numbers, now)
            continue
        namespace.check_room()
        entity = each.asked.entity
        namespace.concern(entity)
        reserved = None if each.asked.reservation is None else each.asked.reservation.places
        places.append(namespace.find_or_create(entity, now).send(each.incoming, now, reserved))
    return places
