"""Counts the dead letters of backlog queues, by reason, as their namespace reports them."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Final

import attrs
import trio

from gateway.capabilities import Peeks, dead_letters_in
from gateway.domain.bounded import Bounded
from gateway.domain.dead_letters import EXPIRED, DeadLetters, reason_of, summary
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.envelope_fields import entity_in
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.message import Delivery
from gateway.offering import offered
from gateway.ports import Broker

SHOWN: Final = 100  # dead letters that are peeked at a time, to count their reasons
# Of a queue, while all of them merely expired: one that somebody should look at may be behind them.
MOST_SHOWN: Final = 1000
MOST_ENTITIES: Final = 1000  # whose rule is remembered
MOST_ASKED: Final = 20  # entities for one count: each question is billed
ASK_LIMIT: Final = 1.0  # seconds for all questions of one count
ASK_AGAIN: Final = 600.0  # seconds: an operator may change a queue


@attrs.define(eq=False)
class ExpiryRules:
    """Knows which entities of the primary keep the messages that expire there, as dead letters."""

    primary: Broker
    _keeps: Bounded[str, bool] = attrs.field(factory=lambda: Bounded(MOST_ENTITIES), init=False)
    _asked: float = attrs.field(default=-inf, init=False)  # by Trio's clock

    async def expired(self, letters: Sequence[Delivery]) -> int:
        """
        The number of the letters that have merely expired, and that their own entity wouldn't have
        kept. An entity that can't be asked may keep them.
        """
        if trio.current_time() - self._asked > ASK_AGAIN:
            self._asked = trio.current_time()
            self._keeps.clear()
        properties = [
            each.message.properties for each in letters if reason_of(each.message) == EXPIRED
        ]
        counts = Counter(filter(None, map(entity_in, properties)))
        with trio.move_on_after(ASK_LIMIT):
            for entity in [each for each in counts if each not in self._keeps][:MOST_ASKED]:
                await self._ask(entity)
        return sum(count for entity, count in counts.items() if not self._keeps.get(entity, True))

    async def _ask(self, entity: str) -> None:
        try:
            info = await self.primary.inspect(EntityPath.parse(entity))
        except EntityNotFound:  # a topic, whose subscriptions have a rule each, or no entity
            self._keeps[entity] = True
        except BrokerError:
            return
        else:
            self._keeps[entity] = info.properties.dead_lettering_on_expiration


async def count_dead_letters(
    broker: Broker,
    infos: Sequence[EntityInfo],
    now: datetime,
    rules: ExpiryRules | None = None,
) -> DeadLetters:
    """
    Count the dead letters of these queues, whichever syphon or process wrote them. Without `rules`
    each may need somebody.
    """
    total: int | None = 0 if infos else None
    peeked: list[Delivery] = []
    expired = 0
    for info in infos:
        count: int | None = None
        with suppress(BrokerError):
            count = await dead_letters_in(broker, info)
        if count != 0:
            look = _FirstLetters(broker, info.path.dead_letter, rules)
            await look.over(count)
            peeked += look.letters
            expired += look.expired
            if count is None and look.is_whole:
                count = len(look.letters)
        total = None if total is None or count is None else total + count
    return summary(total, peeked, now, expired=expired)


@attrs.define
class _FirstLetters:
    """The first dead letters of a queue, and the number of those that need nobody."""

    broker: Broker
    queue: EntityPath
    rules: ExpiryRules | None
    letters: list[Delivery] = attrs.field(factory=list)
    expired: int = 0
    is_whole: bool = False  # there are no more

    async def over(self, count: int | None) -> None:
        """
        Peek a page of the `count` letters (None: not known), and further ones while they have
        merely expired.
        """
        while (page := await self._page()) is not None:
            self.letters += page
            self.is_whole = len(page) < SHOWN
            of_page = 0 if self.rules is None else await self.rules.expired(page)
            self.expired += of_page
            is_over = self.is_whole or len(self.letters) == count or of_page < len(page)
            if is_over or len(self.letters) >= MOST_SHOWN:
                return

    async def _page(self) -> Sequence[Delivery] | None:
        """None: this namespace doesn't show them now."""
        peeks = offered(self.broker, Peeks)
        if peeks is None:
            return None
        after = self.letters[-1].sequence_number + 1 if self.letters else 0
        try:
            return await peeks.peek(self.queue, from_sequence=after, limit=SHOWN)
        except EntityNotFound:
            return ()
        except BrokerError:
            return None
