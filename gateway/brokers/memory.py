"""
A namespace in memory: the same rules as the embedded one, and nothing stays.

Supports queues with their dead-letter sub-queues, both receive modes, scheduled messages, peek.
"""

import random
from collections.abc import Iterable
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

import attrs
import trio

from gateway.brokers.local import LocalBroker, LocalOptions
from gateway.brokers.memory_rows import MemoryRows, MemorySeenIds, MemorySessions
from gateway.brokers.moments import Moments
from gateway.brokers.step import Step
from gateway.brokers.tokens import lock_tokens
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.domain.namespace import Namespace
from gateway.domain.packing import Packing
from gateway.domain.rules import Rule
from gateway.domain.shelf import StoredEntity
from gateway.domain.stored import Storage
from gateway.ports import WallClock
from gateway.wire.amqp.message import encoded_size
from gateway.wire.sql_filter import compile_filter

T = TypeVar("T")


@attrs.define(eq=False)
class MemoryShelf:
    """`Shelf` for a namespace that begins empty and ends with the process."""

    _sequences: "count[int]" = attrs.field(factory=lambda: count(1))

    def load(self) -> Iterable[tuple[StoredEntity, Storage]]:
        return ()

    def add(self, entity: StoredEntity) -> Storage:
        return Storage(MemoryRows(), MemorySessions(), MemorySeenIds())

    def update(self, entity: StoredEntity) -> None:
        """The entity itself knows."""

    def put_rule(self, subscription: EntityPath, rule: Rule) -> None:
        """The subscription itself knows."""

    def remove_rule(self, subscription: EntityPath, name: str) -> None:
        """The subscription itself knows."""

    def remove(self, path: EntityPath) -> None:
        """The rows go with the queue that holds them."""

    def check_room(self) -> None:
        """Each queue's quota is the only limit."""

    def next_sequence(self) -> int:
        return next(self._sequences)


class MemoryBroker(LocalBroker):
    """`ports.Broker` and `capabilities.Peeks`. All of it happens at once, on any clock."""

    def __init__(
        self, clock: WallClock, rng: random.Random, options: LocalOptions | None = None
    ) -> None:
        options = options or LocalOptions()
        super().__init__(Moments(clock))
        self._namespace = Namespace(
            max_message_size=options.max_message_size,
            max_queues=options.max_queues,
            create_missing=options.create_missing,
            shelf=MemoryShelf(),
            new_token=lock_tokens(rng),
            packing=Packing(self._pack, self.unpack),
            compile_sql=lambda sql: compile_filter(sql.expression, sql.parameters),
        )

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._alarm.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _run(self, step: Step[T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._post(step)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return step.result()

    def _post(self, step: Step[Any]) -> None:
        step.run(self._namespace)
        self._tell(self._namespace.report(step.now))

    def _pack(self, message: Message) -> tuple[Message, int]:
        return message, encoded_size(message)

    def unpack(self, content: Any) -> Message:
        message: Message = content
        return message
