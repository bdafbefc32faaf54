"""
Entity states and the entity cache, the same in the parent and in all workers.

Each process runs the whole failover table on its own evidence, so that it needs no other process
while its primary fails. The parent gives every change of a state a number, in the order of arrival,
and passes the change on. It drops a change that was decided before its sender knew the last change
of another process, which is on its way to the sender. So all tables end up the same.
"""

from collections.abc import Callable
from typing import Any, Final

import attrs
import cattrs.preconf.json
import trio

from gateway.app.assembly.others import PARENT
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.domain.operators.control import Override
from gateway.extensions.workers.channel import Values, WorkerChannel
from gateway.pairing.entity_cache import EntityCache, KnownEntity
from gateway.pairing.entity_record import MAX_TROUBLED, SharedState
from gateway.pairing.state_table import StateTable

# Of entities: other workers' states are known beside those of this one.
MOST_VERSIONS: Final = 2 * MAX_TROUBLED
BETWEEN_NEWS: Final = 0.2  # seconds: a burst of new entities is one message

_converter = cattrs.preconf.json.make_converter()
_converter.register_structure_hook(EntityPath, lambda text, _: EntityPath(text))
_converter.register_unstructure_hook(EntityPath, lambda entity: entity.name)


def state_value(shared: SharedState) -> Any:
    """The state as JSON."""
    return _converter.unstructure(shared)


def state_of(value: Any) -> SharedState:
    """The state from its JSON."""
    return _converter.structure(value, SharedState)


@attrs.define(eq=False)
class Readership:
    """
    The changes that a worker hasn't been told: one for each entity, however slow the worker is.
    """

    number: int  # of the worker
    wake: Callable[[], None]
    changed: dict[str, EntityPath] = attrs.field(factory=dict)  # by others
    accepted: dict[str, int] = attrs.field(factory=dict)  # its own changes: their versions
    has_pins: bool = False  # True: the worker was told the present ones


@attrs.define(eq=False)
class StateHub:
    """The parent's side: orders the changes of all processes."""

    states: StateTable
    _versions: Bounded[str, tuple[int, int]] = attrs.field(init=False)  # and the author
    _last: int = attrs.field(default=0, init=False)
    _readers: dict[int, Readership] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._versions = Bounded(MOST_VERSIONS, renews=True)
        self.states.share_with(self)

    def add(self, number: int, wake: Callable[[], None]) -> Values:
        """Begin to send changes to a worker; return the message with all states until now."""
        self._readers[number] = Readership(number, wake, has_pins=True)
        states = self.states.all_shared()
        rows = [self._row(each.entity, each) for each in states]
        return {"pins": self._pins(), "states": rows}

    def remove(self, number: int) -> None:
        """Stop sending changes to the worker, which has ended."""
        self._readers.pop(number, None)

    def apply(self, number: int, rows: list[Any]) -> None:
        """Decide on the changes of that worker."""
        for row in rows:
            shared = state_of(row["state"])
            key = shared.entity.key
            version, author = self._versions.get(key, (0, PARENT))
            if row["base"] < version and author != number:
                continue  # the other change is on its way to this worker
            if self.states.adopt(shared):
                self._record(shared.entity, number)

    def collect(self, number: int) -> Values | None:
        """The message with the changes that the worker hasn't been told."""
        reader = self._readers.get(number)
        if reader is None or not (reader.changed or reader.accepted or not reader.has_pins):
            return None
        pins = {} if reader.has_pins else {"pins": self._pins()}
        reader.has_pins = True
        changed, reader.changed = reader.changed, {}
        accepted, reader.accepted = reader.accepted, {}
        rows = [self._row(entity, self.states.shared(entity)) for entity in changed.values()]
        return {**pins, "accepted": accepted, "states": rows}

    def _pins(self) -> Any:
        return _converter.unstructure(self.states.pins.all())

    def record_state(self, entity: EntityPath) -> None:
        """As `SharesStates.record_state`, for the workers."""
        self._record(entity, PARENT)

    def record_pins(self) -> None:
        """As `SharesStates.record_pins`, for the workers."""
        for reader in self._readers.values():
            reader.has_pins = False
            reader.wake()

    def _record(self, entity: EntityPath, author: int) -> None:
        self._last += 1
        self._versions[entity.key] = (self._last, author)
        for reader in self._readers.values():
            if reader.number == author:
                reader.accepted[entity.key] = self._last
                reader.changed.pop(entity.key, None)
            else:
                reader.changed[entity.key] = entity
            reader.wake()

    def _row(self, entity: EntityPath, shared: SharedState) -> Values:
        version, _ = self._versions.get(entity.key, (0, PARENT))
        return {"version": version, "state": state_value(shared)}


@attrs.define(eq=False)
class StateReplica:
    """A worker's side: sends its own changes to the parent, and adopts those of others."""

    states: StateTable
    wake: Callable[[], None]
    _versions: Bounded[str, int] = attrs.field(init=False)
    _changed: dict[str, EntityPath] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._versions = Bounded(MOST_VERSIONS, renews=True)
        self.states.share_with(self)

    def apply(self, message: Values) -> None:
        """Adopt the changes of others; note the versions of its own."""
        self._versions.update(message.get("accepted", {}))
        for row in message.get("states", ()):
            shared = state_of(row["state"])
            key = shared.entity.key
            self._versions[key] = row["version"]
            self._changed.pop(key, None)  # decided without this change
            self.states.adopt(shared)
        if "pins" in message:
            self.states.adopt_pins(_converter.structure(message["pins"], tuple[Override, ...]))

    def collect(self) -> Values | None:
        """The message with the changes that the parent hasn't been told."""
        if not self._changed:
            return None
        changed, self._changed = self._changed, {}
        rows = [
            {
                "base": self._versions.get(entity.key, 0),
                "state": state_value(self.states.shared(entity)),
            }
            for entity in changed.values()
        ]
        return {"changes": rows}

    def record_state(self, entity: EntityPath) -> None:
        """As `SharesStates.record_state`, for the parent."""
        self._changed[entity.key] = entity
        self.wake()

    def record_pins(self) -> None:
        """Do nothing: the parent decides which entities are pinned."""


@attrs.define(eq=False)
class CacheSync:
    """Either side: tells the other about entities that became known, changed or are gone."""

    cache: EntityCache
    _told: dict[str, KnownEntity] = attrs.field(factory=dict, init=False)
    _version: int = attrs.field(default=-1, init=False)

    def apply(self, message: Values) -> None:
        """Note the entities that the other side knows."""
        for value in message.get("known", ()):
            known = _converter.structure(value, KnownEntity)
            self._told[known.entity.key] = known
            if self.cache.of(known.entity) != known:
                self.cache.store(known)
        for name in message.get("gone", ()):
            entity = EntityPath(name)
            self._told.pop(entity.key, None)
            self.cache.remove(entity)

    def collect(self) -> Values | None:
        """The message with the changes since the last message to the other side."""
        if self.cache.changes.version == self._version:
            return None
        self._version = self.cache.changes.version
        before, self._told = self._told, {each.entity.key: each for each in self.cache.all()}
        known = [each for key, each in self._told.items() if before.get(key) != each]
        gone = [each.entity.name for key, each in before.items() if key not in self._told]
        if not (known or gone):
            return None
        return {"known": _converter.unstructure(known), "gone": gone}

    async def watch(self, channel: WorkerChannel) -> None:
        """Until cancelled, send the differences soon after each change."""
        seen = self._version
        while True:
            seen = await self.cache.changes.wait(seen)
            await trio.sleep(BETWEEN_NEWS)
            channel.wake()
