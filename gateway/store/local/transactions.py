"""Commits a transaction on a namespace that Pairgate keeps itself."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.brokers.meter import Meter
from gateway.capabilities import TransactedSend, TransactedSettlement, TransactedWork
from gateway.domain.billing import Operation
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NotSupported
from gateway.domain.message import Message
from gateway.domain.values import value
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Incoming
from gateway.store.local.receiver import LocalReceiver
from gateway.store.local.sending import Packed, Places, check_target, cost_of
from gateway.store.local.step import STEP_COST


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
    for settled in settlements:
        settled.receiver.forget(settled.asked.delivery)
    for sent, size, each in zip(sends, sizes, places, strict=True):
        broker.meter.carried(Operation.SEND, len(sent.incoming), size)
        broker.record_places(sent.asked.entity, sent.asked.messages, each)


def _prepared(broker: TransactionRunner, work: TransactedWork) -> _PendingSend | _Settlement:
    if isinstance(work, TransactedSettlement):
        if not isinstance(work.receiver, LocalReceiver):
            raise NotSupported("a transaction settles deliveries of its own namespace only")
        return _Settlement(work, work.receiver)
    check_target(work.entity)
    packed = broker.packed(work.messages)
    if isinstance(packed, BrokerError):
        raise packed
    return _PendingSend(work, packed)


def _run(
    namespace: Namespace, prepared: Sequence[_PendingSend | _Settlement], now: Now
) -> Sequence[Places]:
    places: list[Places] = []
    for each in prepared:
        if isinstance(each, _Settlement):
            each.receiver.settle_in(namespace, each.asked, now)
            continue
        namespace.check_room()
        entity = each.asked.entity
        namespace.concern(entity)
        places.append(namespace.find_or_create(entity, now).send(each.incoming, now))
    return places
