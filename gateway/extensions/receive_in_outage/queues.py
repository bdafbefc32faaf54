"""The backlog queues that entities have of their own, and the messages that are diverted there."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Final

import attrs

from gateway.domain.backlog import QUEUE_PROPERTIES, BacklogQueue, own_queue
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.extensions.receive_in_outage.options import RECEIVE_IN_OUTAGE
from gateway.pairing.additions import Addition, PairCore
from gateway.pairing.backlog import ChoosesQueue
from gateway.pairing.entity_cache import EntityCache
from gateway.pairing.options import PairOptions
from gateway.pairing.sending import Batch, Sending

# As of a new queue: consumers have these locks, and many of them renew none.
LOCK: Final = timedelta(minutes=1)
OWN_PROPERTIES: Final = attrs.evolve(QUEUE_PROPERTIES, lock_duration=LOCK)


def queues_of(options: PairOptions) -> Iterator[BacklogQueue]:
    """The queues that a pair with these options needs."""
    for entity in options.of(RECEIVE_IN_OUTAGE).queues:
        yield BacklogQueue(path=own_queue(options.label, entity), properties=OWN_PROPERTIES)


def add(core: PairCore) -> Addition | None:
    """The queues as a part of the backlog whose depth is counted."""
    queues = [queue.path for queue in queues_of(core.options)]
    return Addition(queues=queues) if queues else None


def choose(options: PairOptions, cache: EntityCache) -> ChoosesQueue:
    """The choice of an entity's own queue."""
    own = {
        entity.key: own_queue(options.label, entity)
        for entity in options.of(RECEIVE_IN_OUTAGE).queues
    }
    return partial(_own_queue, own, cache)


def _own_queue(
    own: dict[str, EntityPath], cache: EntityCache, sending: Sending, batch: Batch
) -> EntityPath | None:
    """
    None: a syphon alone may move these messages. A scheduled one isn't due yet, one of a session
    has its order, and the primary may have accepted the other copy of a second one.
    """
    queue = own.get(sending.entity.key)
    if queue is None or sending.copy_of is not None:
        return None
    known = cache.of(sending.entity)
    needs_session = True if known is None else known.requires_session is not False
    waits = any(_waits(message, needs_session=needs_session) for message in batch.messages)
    return None if waits else queue


def _waits(message: Message, *, needs_session: bool) -> bool:
    return message.scheduled is not None or (message.session_id is not None and needs_session)
