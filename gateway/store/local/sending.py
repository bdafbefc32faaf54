"""Sends several batches to a namespace that Pairgate keeps itself, in one step."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import trio

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InternalError, InvalidRequest
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import Incoming, MessageNumbers
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
