"""Pauses of the syphon by operators: for everything, for entities, or for backlog queues."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.backlog import is_backlog
from gateway.domain.entity import EntityPath
from gateway.domain.operators.control import Overrides


@attrs.define(eq=False)
class Pauses:
    """
    Shared by all syphons of a process. `apply` must follow each change of `overrides`.

    A target that matches a backlog queue stops receives from it; one that matches an entity
    suspends the entity's messages. What was handed to the primary before is settled as usual.
    """

    overrides: Overrides = attrs.field(factory=Overrides)
    # Entities that operators have pinned to the backlog, where the process has no failover states.
    pins: Overrides = attrs.field(factory=Overrides)
    # The orders of the pair's other processes aren't known yet, so that nothing may be moved.
    blind: bool = False
    changes: Changes = attrs.field(factory=Changes, init=False)
    _scopes: dict[trio.CancelScope, EntityPath] = attrs.field(factory=dict, init=False)

    def is_paused(self, name: EntityPath) -> bool:
        """True if the entity is paused or pinned, or the backlog queue is paused."""
        if self.pins and self.pins.covering(name.key) is not None and not is_backlog(name):
            return True
        paused = bool(self.overrides) and self.overrides.covering(name.key) is not None
        return self.blind or paused

    @property
    def holds_back(self) -> bool:
        """True if anything may be paused or pinned."""
        return bool(self.blind or self.overrides or self.pins)

    def apply(self) -> None:
        """Put changed overrides into effect."""
        for scope, queue in self._scopes.items():
            if self.is_paused(queue):
                scope.cancel()
        self.changes.notify()

    async def wait_resumed(self, queue: EntityPath) -> None:
        """Return when the backlog queue isn't paused; a checkpoint only if it is."""
        while self.is_paused(queue):
            await self.changes.wait_next()

    @contextmanager
    def until_paused(self, queue: EntityPath) -> Iterator[trio.CancelScope]:
        """A scope that is cancelled as soon as the backlog queue is paused."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = queue
            if self.is_paused(queue):
                scope.cancel()
            try:
                yield scope
            finally:
                del self._scopes[scope]
