"""The backlog queues that entities have of their own, and the messages that are diverted there."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

import attrs
import trio

from gateway.domain.backlog import QUEUE_PROPERTIES, BacklogQueue, listing_prefix, own_queue
from gateway.domain.backoff import Backoff
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
)
from gateway.domain.events.gateway import Doubtful
from gateway.domain.message import Message
from gateway.extensions.receive_in_outage.options import RECEIVE_IN_OUTAGE
from gateway.pairing.additions import Addition, PairCore
from gateway.pairing.backlog import ChoosesQueue
from gateway.pairing.entity_cache import MAX_KNOWN, EntityCache, list_known
from gateway.pairing.options import PairOptions
from gateway.pairing.sending import Batch, Sending

# As of a new queue: consumers have these locks, and many of them renew none.
LOCK: Final = timedelta(minutes=1)
OWN_PROPERTIES: Final = attrs.evolve(QUEUE_PROPERTIES, lock_duration=LOCK)

# Seconds between two attempts, while a namespace doesn't answer.
_AGAIN: Final = Backoff(first=1.0, cap=30.0)


def queues_of(options: PairOptions, listed: Sequence[EntityInfo]) -> Iterator[BacklogQueue]:
    """The queues that a pair with these options needs, those of `listed` that match among them."""
    wanted, label = options.of(RECEIVE_IN_OUTAGE), options.label
    for entity in wanted.queues:
        yield BacklogQueue(path=own_queue(label, entity), properties=OWN_PROPERTIES)
    for info in listed if wanted.patterns else ():
        queue = None if info.path in wanted.queues else wanted.queue_of(label, info.path)
        if queue is not None and not info.requires_session:
            yield BacklogQueue(path=queue, properties=OWN_PROPERTIES)


def depend_on_primary(options: PairOptions) -> bool:
    """True if a pattern stands for queues that only the primary knows."""
    return bool(options.of(RECEIVE_IN_OUTAGE).patterns)


def add(core: PairCore) -> Addition | None:
    """The queues as a part of the backlog whose depth is counted; those of patterns are made."""
    options = core.options.of(RECEIVE_IN_OUTAGE)
    if not options.receive_in_outage:
        return None
    queues = [queue.path for queue in queues_of(core.options, ())]
    return Addition(queues=queues, services=[OwnQueues(core=core)] if options.patterns else [])


@attrs.define(eq=False, kw_only=True)
class OwnQueues:
    """
    Makes the backlog queues of entities that match a pattern: of those on the primary when the pair
    starts, and of each that it accepts a message for. A queue must be there before the outage.
    """

    core: PairCore
    _is_listed: bool = attrs.field(default=False, init=False)  # the primary
    _asked: Bounded[str, None] = attrs.field(factory=lambda: Bounded(MAX_KNOWN), init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled, or until the secondary refuses; that is told."""
        task_status.started()
        changes, failures = self.core.entity_cache.changes, 0
        while True:
            seen = changes.version
            try:
                await self._make_all()
            except BrokerError as error:
                if not error.counts_as_outage:
                    return self._report(error)
                failures += 1
                await trio.sleep(_AGAIN.delay(failures, self.core.dependencies.rng))
            else:
                failures = 0
                await changes.wait(seen)

    async def _make_all(self) -> None:
        """Raises `BrokerError`: a namespace doesn't answer, or the secondary refuses."""
        cache, options = self.core.entity_cache, self.core.options
        wanted = options.of(RECEIVE_IN_OUTAGE)
        if not self._is_listed:
            # A syphon finds the queues of a pattern in the list alone.
            await self.core.secondary.list_queues(listing_prefix(options.label), top=1)
            await self._make(await list_known(cache.primary))
            self._is_listed = True
        for known in cache.all():
            entity = known.entity
            if entity.key not in self._asked and wanted.queue_of(options.label, entity):
                await self._make(await self._described(entity))
                self._asked[entity.key] = None

    async def _described(self, entity: EntityPath) -> Sequence[EntityInfo]:
        """The queue; nothing, if it is a topic."""
        try:
            return [await self.core.entity_cache.primary.inspect(entity)]
        except EntityNotFound:
            return ()
        except (NotAuthorized, NotSupported):
            return [EntityInfo(path=entity)]

    async def _make(self, found: Sequence[EntityInfo]) -> None:
        for queue in queues_of(self.core.options, found):
            with suppress(EntityExists):
                await self.core.secondary.create_queue(queue.path, queue.properties)

    def _report(self, error: BrokerError) -> None:
        patterns = ", ".join(self.core.options.of(RECEIVE_IN_OUTAGE).patterns)
        text = f"receive_in_outage: the backlog queues of {patterns} can't be made: {error}"
        self.core.dependencies.observer.report(Doubtful(text=text))


def choose(options: PairOptions, cache: EntityCache) -> ChoosesQueue:
    """The choice of an entity's own queue."""
    return partial(_own_queue, options, cache)


def _own_queue(
    options: PairOptions, cache: EntityCache, sending: Sending, batch: Batch
) -> EntityPath | None:
    """
    None: a syphon alone may move these messages. A scheduled one isn't due yet, one of a session
    has its order, and the primary may have accepted the other copy of a second one.
    """
    queue = options.of(RECEIVE_IN_OUTAGE).queue_of(options.label, sending.entity)
    if queue is None or sending.copy_of is not None:
        return None
    known = cache.of(sending.entity)
    needs_session = True if known is None else known.requires_session is not False
    waits = any(_waits(message, needs_session=needs_session) for message in batch.messages)
    return None if waits else queue


def _waits(message: Message, *, needs_session: bool) -> bool:
    return message.scheduled is not None or (message.session_id is not None and needs_session)
