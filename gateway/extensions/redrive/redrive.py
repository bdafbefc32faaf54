"""
The dead letters of the backlog queues, which are moved back into these queues, and those of any
queue of a namespace.

The syphon moves those of the backlog from there: it decides again what can be moved, waits for the
primary, and applies its own rules.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from gateway.app.runtime import Runtime
from gateway.capabilities import Topology
from gateway.domain import backlog
from gateway.domain.dead_letters import reason_of
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import EntityNotFound, NotAuthorized, NotSupported
from gateway.domain.message import Delivery, Message, derive_message
from gateway.domain.topics.topology import as_queue
from gateway.extensions.redrive.events import DeadLettersRedriven
from gateway.extensions.redrive.moving import PAGE, LetterMover, in_time
from gateway.extensions.redrive.order import (
    Letter,
    QueueLetter,
    Redriven,
    RedriveOrder,
    as_it_was,
    open_letter,
)
from gateway.offering import offered
from gateway.ports import Broker

MOST_QUEUES: Final = 1000  # more than a pair has backlog queues


@attrs.frozen(kw_only=True)
class Redrive(LetterMover):
    """
    The dead letters of all backlog queues of one label on `source`.

    Where `source` can't list its queues, the first `queues` of them are inspected.
    """

    label: str
    queues: int
    envelope: Envelope
    deducts: bool  # time to live keeps running on the backlog

    async def infos(self) -> Sequence[EntityInfo]:
        """As `LetterMover.infos`: the backlog queues."""
        found: list[EntityInfo] = []
        seen = 0
        try:
            while seen < MOST_QUEUES:
                prefix = backlog.listing_prefix(self.label)
                with in_time(EntityPath(prefix)):
                    page = await self.source.list_queues(prefix, skip=seen, top=PAGE)
                found += [info for info in page if backlog.is_backlog(info.path)]
                seen += len(page)
                if len(page) < PAGE:
                    break
        except (NotAuthorized, NotSupported):
            found = await self._first_queues()
        if not found:
            prefix = backlog.queue_prefix(self.label)
            raise EntityNotFound(f"the namespace has no backlog queues ({prefix}0 and so on)")
        return found

    async def _first_queues(self) -> list[EntityInfo]:
        """The queues that exist, or may exist, where this client has no right to list queues."""
        found = []
        for index in range(self.queues):
            queue = backlog.queue_name(self.label, index)
            try:
                with in_time(queue):
                    found.append(await self.source.inspect(queue))
            except EntityNotFound:
                continue
            except (NotAuthorized, NotSupported):
                found.append(EntityInfo(path=queue))
        return found

    def read(self, delivery: Delivery) -> Letter:
        """As `LetterMover.read`: the envelope is opened."""
        return open_letter(delivery, self.envelope, self.clock(), deducts=self.deducts)

    def revive(self, letter: Letter) -> Message:
        """As `LetterMover.revive`: in its envelope."""
        return letter.revived(self.envelope, attempt=self.new_id(), now=self.clock())


@attrs.frozen(kw_only=True)
class QueueRedrive(LetterMover):
    """The dead letters of one queue or subscription, which are moved back, or to another entity."""

    queue: EntityPath
    target: EntityPath
    letters: EntityPath  # the queue that has the dead letters
    changes: Mapping[str, str | None] = attrs.field(factory=dict)  # of properties; None: removed
    body: bytes | None = None  # a new one

    @classmethod
    def of(cls, order: RedriveOrder, source: Broker, runtime: Runtime) -> "QueueRedrive":
        """The redrive that an order with a queue asks for."""
        queue = EntityPath.parse(order.queue)
        changes: dict[str, str | None] = dict.fromkeys(order.without)
        for each in order.properties:
            name, _, text = each.partition("=")
            changes[name] = text
        return cls(
            source=source,
            clock=runtime.now,
            new_id=runtime.new_id,
            observer=runtime.observer,
            queue=queue,
            target=EntityPath.parse(order.target) if order.target else queue,
            letters=EntityPath.parse(order.source) if order.source else queue.dead_letter,
            changes=changes,
            body=None if order.body is None else order.body.encode(),
        )

    async def infos(self) -> Sequence[EntityInfo]:
        """As `LetterMover.infos`: the target, with the number of dead letters that there are."""
        with in_time(self.queue):
            info = await self.source.inspect(self.queue)
            known = info.dead_lettered
            if self.letters != self.queue.dead_letter:
                known = (await self.source.inspect(self.letters)).active
            if self.target != self.queue:
                info = await self._describe_target()
        return [attrs.evolve(info, path=self.target, dead_lettered=known)]

    async def _describe_target(self) -> EntityInfo:
        try:
            return await self.source.inspect(self.target)
        except EntityNotFound:
            topics = offered(self.source, Topology)
            if topics is None:
                raise
        found = await topics.inspect_topic(self.target)
        return EntityInfo(path=found.path, properties=as_queue(found.properties))

    def dead_letters_of(self, info: EntityInfo) -> EntityPath:
        """As `LetterMover.dead_letters_of`."""
        return self.letters

    def read(self, delivery: Delivery) -> Letter:
        """As `LetterMover.read`: any message can be moved."""
        life = delivery.message.time_to_live
        return QueueLetter(
            reason=reason_of(delivery.message),
            entity=self.queue.name,
            enqueued=delivery.enqueued,
            message=attrs.evolve(as_it_was(delivery.message), time_to_live=life),
            unwrapped=None,
            problem="",
            number=delivery.sequence_number,
        )

    def revive(self, letter: Letter) -> Message:
        """As `LetterMover.revive`: with the changes that were asked for."""
        properties = {**letter.message.properties, **self.changes}
        kept = {name: value for name, value in properties.items() if value is not None}
        body = letter.message.body if self.body is None else self.body
        # An absolute date to expire at, or to appear at, has come before.
        return derive_message(
            letter.message, properties=kept, body=body, absolute_expiry=None, scheduled=None
        )

    def report(self, done: Redriven, reason: str) -> None:
        """As `LetterMover.report`, with the queue."""
        self.observer.report(
            DeadLettersRedriven(
                messages=done.moved, left=done.left, reason=reason, queue=self.queue.name
            )
        )
