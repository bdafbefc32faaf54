"""Counts the dead letters of backlog queues, by reason, as their namespace reports them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import trio

from gateway.capabilities import Peeks
from gateway.domain.dead_letters import DeadLetters, summary
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.message import Delivery
from gateway.offering import offered
from gateway.ports import Broker

SHOWN: Final = 100  # dead letters that are peeked per queue, to count their reasons


async def count_dead_letters(
    broker: Broker, infos: Sequence[EntityInfo], now: datetime
) -> DeadLetters:
    """Count the dead letters of these queues, whichever syphon or process wrote them."""
    await trio.lowlevel.checkpoint()
    total: int | None = 0 if infos else None
    peeked: list[Delivery] = []
    for info in infos:
        count = info.dead_lettered
        if count is None:
            count = await _count(broker, info.path.dead_letter)
        if count != 0:
            found = await _peek(broker, info.path.dead_letter)
            peeked += found or ()
            if count is None and found is not None and len(found) < SHOWN:
                count = len(found)
        total = None if total is None or count is None else total + count
    return summary(total, peeked, now)


async def _count(broker: Broker, queue: EntityPath) -> int | None:
    """The number of dead letters, where the namespace reports it on the sub-queue only."""
    try:
        return (await broker.inspect(queue)).active
    except EntityNotFound:
        return 0
    except BrokerError:
        return None


async def _peek(broker: Broker, queue: EntityPath) -> Sequence[Delivery] | None:
    await trio.lowlevel.checkpoint()
    peeks = offered(broker, Peeks)
    if peeks is None:
        return None
    try:
        return await peeks.peek(queue, limit=SHOWN)
    except EntityNotFound:
        return ()
    except BrokerError:
        return None
