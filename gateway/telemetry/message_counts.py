"""Messages counted by entity since the start of the process."""

import heapq
from collections import Counter
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.health.process_records import CountByName

MOST: Final = 10_000  # entities that are counted by name


@attrs.define(eq=False)
class MessageCounts:
    """The total is exact, whatever the number of entities."""

    total: int = attrs.field(default=0, init=False)
    _by_entity: Counter[EntityPath] = attrs.field(factory=Counter, init=False)

    def record(self, entity: EntityPath, messages: int) -> None:
        self.total += messages
        if entity in self._by_entity or len(self._by_entity) < MOST:
            self._by_entity[entity] += messages

    def read(self, most: int) -> CountByName:
        """The counts of the entities with the most messages, `most` at the utmost."""
        found = heapq.nlargest(most, self._by_entity.items(), key=lambda each: each[1])
        named = {entity.name: messages for entity, messages in found}
        return CountByName(total=self.total, most=named, is_whole=sum(named.values()) == self.total)
