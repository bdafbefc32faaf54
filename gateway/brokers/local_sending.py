"""What is sent to a namespace that we keep ourselves: several batches in one step."""

from collections.abc import Sequence
from itertools import islice

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.domain.namespace import Namespace
from gateway.domain.queue import Queue
from gateway.domain.stored import Incoming, Now

Packed = Sequence[Incoming] | BrokerError
"""One batch; or why it can't be stored."""

Numbers = Sequence[int]
"""Of the messages of one batch, which were taken."""


def check_target(entity: EntityPath) -> None:
    """
    Raises:
        InvalidRequest: nobody sends there.
    """
    if entity.is_dead_letter or entity.is_subscription:
        raise InvalidRequest(f"{entity}: nobody sends to a sub-queue or a subscription")


def cost_of(batch: Packed) -> int:
    """What it holds in memory, in bytes."""
    return 0 if isinstance(batch, BrokerError) else sum(message.size for message in batch)


def send_each(
    namespace: Namespace, entity: EntityPath, batches: Sequence[Packed], now: Now
) -> Sequence[Numbers | BrokerError]:
    """
    Take each batch or refuse it, in this order.

    Raises:
        BrokerError: none was taken.
    """
    namespace.check_room()
    queue = namespace.find_or_create(entity, now)
    good = [message for batch in batches if not isinstance(batch, BrokerError) for message in batch]
    try:
        numbers = iter(queue.send(good, now))
    except BrokerError:  # one's fault: a rule that refuses has changed nothing
        return [_send(queue, batch, now) for batch in batches]
    return [
        batch if isinstance(batch, BrokerError) else list(islice(numbers, len(batch)))
        for batch in batches
    ]


def _send(queue: Queue, batch: Packed, now: Now) -> Numbers | BrokerError:
    if isinstance(batch, BrokerError):
        return batch
    try:
        return queue.send(batch, now)
    except BrokerError as error:
        return error
