"""
The moves as this process knows them: read from the folder that the processes of the pair share.

The folder is no part of a send's way: while it can't be read, the stages that are known hold.
"""

from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import Doubtful
from gateway.extensions.move.stages import OLD, Move, Moves
from gateway.listening.intents import update
from gateway.listening.stores.values import Store, Values
from gateway.ports import Observer, WallClock

READ: Final = 0.5  # seconds between two readings: a small file, and `SWITCH` is four of them
KEY: Final = "moves"


@attrs.define(eq=False, kw_only=True)
class MoveBook:
    """A service. Each operation on an entity asks it where the entity is now."""

    store: Store
    clock: WallClock
    observer: Observer
    changes: Changes = attrs.field(factory=Changes, init=False)  # of a stage
    _values: Values[Moves] = attrs.field(init=False)
    _moves: dict[str, Move] = attrs.field(factory=dict, init=False)  # by the entity's key
    _problem: str = attrs.field(default="", init=False)  # of the last reading

    def __attrs_post_init__(self) -> None:
        self._values = Values(self.store, Moves, Moves())

    @property
    def moves(self) -> Sequence[Move]:
        return tuple(self._moves.values())

    def find(self, entity: EntityPath) -> Move | None:
        """The move of that queue or topic, of its subscription or sub-queue."""
        found = self._moves.get(entity.parent_key)
        if found is None and self._moves and entity.is_subscription:
            found = self._moves.get(entity.topic.key)
        return found

    def sends_to(self, entity: EntityPath) -> int:
        """The place that sends go to now."""
        move = self.find(entity) if self._moves else None
        return OLD if move is None else move.sends_at(self.clock())

    def receives_from(self, entity: EntityPath) -> Sequence[int]:
        """The places that are received from now."""
        move = self.find(entity) if self._moves else None
        if move is None:
            return (OLD,)
        return move.receives_at(self.clock(), dead_letters=entity.is_dead_letter)

    async def load(self) -> None:
        """
        Read the moves.

        Raises:
            BrokerError: the folder can't be read.
            ValueError: what it has isn't a state of moves.
        """
        self._apply((await self._values.read(KEY))[0])

    async def edit(self, change: Callable[[Moves], Moves]) -> None:
        """
        Change the moves; from now on this process knows them. A cancelled change may be done.

        Raises:
            BrokerError: the folder can't be written; nothing was changed.
        """
        self._apply(await update(self._values, KEY, change))

    def _apply(self, moves: Moves) -> None:
        found = {each.path.key: each for each in moves.moves}
        if found != self._moves:
            self._moves = found
            self.changes.notify()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, read again and again, and tell each change of a stage."""
        task_status.started()
        stages = self._stages()
        while True:
            await trio.sleep(READ)
            try:
                await self.load()
            except (BrokerError, ValueError) as error:
                self._report(f"move: the stages can't be read, and stay as they are: {error}")
            else:
                self._problem = ""
            before, stages = stages, self._stages()
            if stages != before:  # a stage begins at its date, not when it is read
                self.changes.notify()

    def _stages(self) -> Sequence[object]:
        now = self.clock()
        return [each.stage_at(now) for each in self.moves]

    def _report(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self.observer.report(Doubtful(text=text))
