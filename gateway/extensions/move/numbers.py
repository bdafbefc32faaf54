"""
The sequence numbers of scheduled messages that were moved: their senders have those of the side
that they have left, and may cancel with them.
"""

from typing import Final

import attrs

from gateway.brokers.joined.sequence import outward_number
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.listening.intents import update
from gateway.listening.stores.values import Store, Values

MOST: Final = 10_000  # of one entity, as the newest: a file of some 300 kB


@attrs.frozen(kw_only=True)
class Renumbered:
    """By the number as it was given out, as text: the number as it would be given out now."""

    now: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class MovedNumbers:
    """The numbers of all entities, in the folder that the processes of the pair share."""

    store: Store

    async def add(self, entity: EntityPath, source: int, before: int, number: int) -> None:
        """
        Return when the number at the other side is known to all. `source` is the place that the
        message leaves.

        Raises:
            BrokerError: the folder can't be written.
            NotSupported: the number has no room for the place of its side.
        """
        old, new = outward_number(before, source), outward_number(number, 1 - source)

        def added(numbers: Renumbered) -> Renumbered:
            kept = {**numbers.now, str(old): new}
            return Renumbered(now=dict(list(kept.items())[-MOST:]))

        await update(self._values, _key(entity), added)

    async def find(self, entity: EntityPath, number: int) -> int:
        """The number that the message has now; the same one, if it wasn't moved."""
        try:
            known = (await self._values.read(_key(entity)))[0].now
        except (BrokerError, ValueError):
            return number
        seen = set[int]()
        while (moved := known.get(str(number))) is not None and number not in seen:
            seen.add(number)  # a message that was rolled back may have come full circle
            number = moved
        return number

    @property
    def _values(self) -> Values[Renumbered]:
        return Values(self.store, Renumbered, Renumbered())


def _key(entity: EntityPath) -> str:
    return f"numbers/{entity.key}"
