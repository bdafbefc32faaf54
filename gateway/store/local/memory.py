"""
A namespace in memory: the same rules as the embedded broker, but nothing is durable.

Supports all that `LocalBroker` does, with sessions, topics and transactions.
"""

import random
import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Self, TypeVar

import attrs
import trio

from gateway.brokers.lock_tokens import lock_tokens
from gateway.domain.entity import EntityPath
from gateway.domain.identity import MEMORY, Identity
from gateway.domain.message import Message
from gateway.domain.topics.filters import Rule
from gateway.moments import Moments
from gateway.ports import WallClock
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.entity_store import StoredEntity
from gateway.store.engine.journal import Journal
from gateway.store.engine.namespace import Namespace
from gateway.store.engine.records import Storage, Totals
from gateway.store.local.broker import LocalBroker, LocalOptions
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.memory_rows import (
    MemoryNumbers,
    MemoryRows,
    MemorySeenIds,
    MemorySessions,
)
from gateway.store.local.step import Fault, Step, attempt, report_of
from gateway.wire.amqp.message import encoded_size
from gateway.wire.sql.action import compile_action
from gateway.wire.sql.filter import compile_filter

T = TypeVar("T")


@attrs.define(eq=False)
class MemoryEntityStore:
    """`EntityStore` for a namespace that begins empty and ends with the process."""

    journal: Journal = attrs.field(factory=Journal)
    _sequences: "count[int]" = attrs.field(factory=lambda: count(1))

    def load(self) -> Iterable[tuple[StoredEntity, Totals]]:
        return ()

    def storage(self, path: EntityPath) -> Storage:
        raise KeyError(path)  # `load` yields nothing

    def add(self, entity: StoredEntity) -> Storage:
        journal = self.journal
        return Storage(
            MemoryNumbers(journal),
            MemoryRows(journal),
            MemorySessions(journal),
            MemorySeenIds(journal),
        )

    def update(self, entity: StoredEntity) -> None:
        """Do nothing: the entity in memory has its properties."""

    def put_rule(self, subscription: EntityPath, rule: Rule) -> None:
        """Nothing to do: the subscription in memory has its rules."""

    def remove_rule(self, subscription: EntityPath, name: str) -> None:
        """Nothing to do: the subscription in memory has its rules."""

    def remove(self, path: EntityPath) -> None:
        """Do nothing: the rows are dropped with the queue that holds them."""

    def check_room(self) -> None:
        """Do nothing: each queue's quota is the only limit."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Do nothing: the journal undoes all changes."""
        return nullcontext()

    def next_sequence(self) -> int:
        return next(self._sequences)


class MemoryBroker(LocalBroker):
    """A `LocalBroker` in memory. Each step runs at once, on any clock."""

    def __init__(
        self,
        clock: WallClock,
        rng: random.Random,
        options: LocalOptions | None = None,
        hooks: LocalHooks | None = None,
    ) -> None:
        options = options or LocalOptions()
        super().__init__(Moments(clock), hooks or LocalHooks())
        # Not derived from `rng`: two brokers with the same seed are two namespaces.
        self._id = Identity(MEMORY, secrets.token_hex(8))
        new_token = lock_tokens(rng)
        self._namespace = Namespace(
            max_message_size=options.max_message_size,
            max_queues=options.max_queues,
            create_missing=options.create_missing,
            store=MemoryEntityStore(),
            new_token=new_token,
            packing=Packing(self._pack, self.unpack),
            compile_sql=lambda sql: compile_filter(sql.expression, sql.parameters),
            compile_action=lambda sql: compile_action(sql.expression, sql.parameters, new_token),
        )

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    @property
    def _identity(self) -> Identity:
        return self._id

    async def _run(self, step: Step[T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._post(step)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return step.result()

    def _post(self, step: Step[Any]) -> None:
        faults: list[Fault] = []
        self._namespace.journal.forget()
        fault = attempt(lambda: step.run(self._namespace))
        if fault is not None:
            self._namespace.journal.rewind()
            step.fault(fault)
            faults.append((step.path, fault))
        self._publish(report_of(self._namespace, step.now, faults, self._is_watched))

    def _pack(self, message: Message) -> tuple[Message, int]:
        return message, encoded_size(message)

    def unpack(self, content: Any) -> Message:
        message: Message = content
        return message
