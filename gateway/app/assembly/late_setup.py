"""
Setup that couldn't be done at the start, because a namespace didn't answer, is done as soon as the
namespace answers: missing queues and topics are created, and the settings of backlog queues are
checked.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import trio

from gateway.app.entities import make_entities
from gateway.app.namespaces import ASK_SECONDS
from gateway.capabilities import Verifies
from gateway.config.options import Namespace, Pairing
from gateway.domain import backlog
from gateway.domain.backlog import BacklogQueue
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.events.gateway import Doubtful, EntitiesMade
from gateway.offering import offered
from gateway.pairing.provision import backlog_queues, doubts, further_queues, provision
from gateway.ports import Broker, Observer

# Short enough that an operator who watches the repair sees its effect, and no load on what fails.
_AGAIN: Final = Backoff(first=1.0, cap=10.0)


@attrs.define(eq=False, kw_only=True)
class Setup(ABC):
    """A service that ends when its setup is done. It is attempted again and again until then."""

    rng: random.Random

    @abstractmethod
    async def attempt(self) -> bool:
        """Do the setup; return False if that isn't possible now."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return when the setup is done."""
        task_status.started()
        failures = 0
        while not await self.attempt():
            failures += 1
            await trio.sleep(_AGAIN.delay(failures, self.rng))


@attrs.define(eq=False, kw_only=True)
class LateSetup(Setup):
    """Creates the entities of one namespace, and reports those that can't be created."""

    broker: Broker
    namespace: Namespace
    observer: Observer

    async def attempt(self) -> bool:
        """Create the missing entities; True: the namespace has answered."""
        plan, name = self.namespace.plan, self.namespace.name
        with trio.move_on_after(ASK_SECONDS), suppress(BrokerError):
            wanted = [queue.path for queue in plan.queues] + [topic.path for topic in plan.topics]
            make = partial(make_entities, self.broker, plan)
            await make_told(name, self.broker, wanted, make, self.observer)
            return True
        return False


@attrs.define(eq=False, kw_only=True)
class BacklogSetup:
    """Creates the backlog queues that a secondary lacks, and reports doubts about all of them."""

    secondary: Broker
    pairing: Pairing
    observer: Observer
    note: Callable[[], Awaitable[None]]  # stores the pair's identity with the queues

    async def run(self) -> None:
        """
        Return when the setup is done, or has failed, which is reported.

        Raises:
            BrokerError: the secondary doesn't answer.
        """
        options = self.pairing.options
        properties = backlog.properties(legacy=self.pairing.accept_legacy_backlog)
        queues = backlog_queues(options, properties)
        make = partial(
            provision,
            self.secondary,
            options.label,
            options.backlog_queues,
            properties,
            further=further_queues(options),
        )
        paths = [queue.path for queue in queues]
        await make_told(self.pairing.secondary, self.secondary, paths, make, self.observer)
        await self.note()
        for queue in queues:
            for doubt in await self._doubts(queue):
                self.observer.report(Doubtful(text=f"backlog queue {queue.path}: {doubt}"))

    async def _doubts(self, queue: BacklogQueue) -> Sequence[str]:
        found: list[str] = []
        try:
            found += doubts(await self.secondary.inspect(queue.path), queue)
            if (verifies := offered(self.secondary, Verifies)) is not None:
                found += await verifies.verify(queue.path, is_backlog=True)
        except BrokerError as error:
            if error.counts_as_outage:
                raise
        return found  # a queue that can't be used is reported elsewhere


async def make_told(
    name: str,
    broker: Broker,
    wanted: Sequence[EntityPath],
    make: Callable[[], Awaitable[Sequence[EntityPath]]],
    observer: Observer,
) -> None:
    """
    Create the entities that the namespace lacks, and report the created ones, or the reason why
    they can't be created.

    Raises:
        BrokerError: the namespace doesn't answer.
    """
    try:
        paths = await make()
    except BrokerError as error:
        if error.counts_as_outage:
            raise
        # Without the right to create queues, the namespace may not even say that all of them exist.
        if missing := await _missing(broker, wanted):
            text = f"namespace {name}: {missing} is missing and can't be created: {error}"
            observer.report(Doubtful(text=text))
    else:
        if paths:
            names = ", ".join(path.name for path in paths)
            observer.report(EntitiesMade(namespace=name, entities=names))


async def _missing(broker: Broker, wanted: Sequence[EntityPath]) -> EntityPath | None:
    """The first missing entity, according to probes."""
    for path in wanted:
        try:
            await broker.probe(path)
        except EntityNotFound:
            return path
        except BrokerError as error:
            if error.counts_as_outage:
                raise
    return None
