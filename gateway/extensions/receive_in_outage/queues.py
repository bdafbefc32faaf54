"""The backlog queues that entities have of their own, and the messages that are diverted there."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

import attrs
import trio

from gateway.capabilities import Sessions
from gateway.domain.backlog import (
    QUEUE_PROPERTIES,
    BacklogQueue,
    listing_prefix,
    own_queue,
    owner_of,
)
from gateway.domain.backoff import Backoff
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
)
from gateway.domain.events.gateway import Doubtful
from gateway.extensions.receive_in_outage.options import RECEIVE_IN_OUTAGE
from gateway.offering import offered
from gateway.pairing.additions import Addition, PairCore
from gateway.pairing.backlog import ChoosesQueue
from gateway.pairing.entity_cache import MAX_KNOWN, EntityCache, list_known
from gateway.pairing.options import PairOptions
from gateway.pairing.sending import Batch, Sending
from gateway.ports import Broker

# As of a new queue: consumers have these locks, and many of them renew none.
LOCK: Final = timedelta(minutes=1)
OWN_PROPERTIES: Final = attrs.evolve(QUEUE_PROPERTIES, lock_duration=LOCK)
SESSIONS_PROPERTIES: Final = attrs.evolve(OWN_PROPERTIES, requires_session=True)

# Seconds between two attempts, while a namespace doesn't answer.
_AGAIN: Final = Backoff(first=1.0, cap=30.0)


def queues_of(options: PairOptions, listed: Sequence[EntityInfo]) -> Iterator[BacklogQueue]:
    """
    The queues that a pair with these options needs, those of `listed` that match among them. Only
    `listed` tells whether an entity requires sessions, and so has another queue.
    """
    wanted, label = options.of(RECEIVE_IN_OUTAGE), options.label
    for entity in wanted.queues:
        yield BacklogQueue(path=own_queue(label, entity), properties=OWN_PROPERTIES)
    for info in listed:
        queue = wanted.queue_of(label, info.path, sessions=info.requires_session)
        if queue is not None and info.requires_session:
            yield BacklogQueue(path=queue, properties=SESSIONS_PROPERTIES)
        elif queue is not None and info.path not in wanted.queues:
            yield BacklogQueue(path=queue, properties=OWN_PROPERTIES)


def depend_on_primary(options: PairOptions) -> bool:
    """
    True if entities are received from in an outage: only the primary knows which match a pattern,
    and which require sessions.
    """
    return bool(options.of(RECEIVE_IN_OUTAGE).receive_in_outage)


def add(core: PairCore) -> Addition | None:
    """
    The queues as a part of the backlog whose depth is counted. Those of patterns and of entities
    that require sessions are made.
    """
    options = core.options.of(RECEIVE_IN_OUTAGE)
    if not options.receive_in_outage:
        return None
    queues = [queue.path for queue in queues_of(core.options, ())]
    has_sessions = offered(core.secondary, Sessions) is not None
    if has_sessions:
        queues += [own_queue(core.options.label, each, sessions=True) for each in options.queues]
    makes = options.patterns or has_sessions
    return Addition(queues=queues, services=[OwnQueues(core=core)] if makes else [])


@attrs.define(eq=False, kw_only=True)
class OwnQueues:
    """
    Makes the backlog queues of entities that match a pattern, or that require sessions: of those on
    the primary when the pair starts, and of each that it accepts a message for. A queue must be
    there before the outage.
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
            if wanted.patterns:
                await self._check_list()
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

    async def _check_list(self) -> None:
        """Return if the secondary lists its queues: a syphon finds these in the list alone."""
        await self.core.secondary.list_queues(listing_prefix(self.core.options.label), top=1)

    async def _make(self, found: Sequence[EntityInfo]) -> None:
        has_sessions = offered(self.core.secondary, Sessions) is not None
        named = self.core.options.of(RECEIVE_IN_OUTAGE).queues
        for queue in queues_of(self.core.options, found):
            if queue.properties.requires_session:
                if not has_sessions:
                    continue
                await self._check_list()
            elif owner_of(queue.path) in named:
                continue  # it is made with the usual ones
            with suppress(EntityExists):
                await self.core.secondary.create_queue(queue.path, queue.properties)

    def _report(self, error: BrokerError) -> None:
        wanted = ", ".join(self.core.options.of(RECEIVE_IN_OUTAGE).receive_in_outage)
        text = f"receive_in_outage: the backlog queues of {wanted} can't be made: {error}"
        self.core.dependencies.observer.report(Doubtful(text=text))


def choose(
    options: PairOptions, cache: EntityCache, secondary: Broker, envelope: Envelope
) -> ChoosesQueue:
    """The choice of an entity's own queue."""
    # The session of an encrypted message is encrypted, too.
    keeps = offered(secondary, Sessions) is not None and not envelope.encrypts
    return partial(_own_queue, options, cache, keeps)


def _own_queue(
    options: PairOptions,
    cache: EntityCache,
    keeps_sessions: bool,  # the backlog
    sending: Sending,
    batch: Batch,
) -> EntityPath | None:
    """
    None: a syphon alone may move these messages. A scheduled one isn't due yet, nobody knows
    whether the entity requires the session of one, and the primary may have accepted the other copy
    of a second one.
    """
    known = cache.of(sending.entity)
    requires = None if known is None else known.requires_session
    queue = options.of(RECEIVE_IN_OUTAGE).queue_of(
        options.label, sending.entity, sessions=requires is True
    )
    if queue is None or sending.copy_of is not None:
        return None
    if any(message.scheduled is not None for message in batch.messages):
        return None
    in_session = [message.session_id is not None for message in batch.messages]
    if requires:
        return queue if keeps_sessions and all(in_session) else None
    return None if requires is None and any(in_session) else queue
