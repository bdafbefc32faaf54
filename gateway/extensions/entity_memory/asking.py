"""Questions to a primary whose earlier answers are remembered."""

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, TypeVar

import trio

from gateway.capabilities.remembering import record_from_memory
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityExists, Unavailable
from gateway.extensions.entity_memory.memory import EntityMemory

T = TypeVar("T")

# Seconds that the primary has for an answer which is remembered as well: a frozen one gives none.
PATIENCE: Final = 5.0


async def in_time(ask: Callable[[], Awaitable[T]], *, knows: bool) -> T:
    """
    The answer of the primary. It has a time limit if another answer is known.

    Raises:
        BrokerError: as `ask`; `Unavailable` without an answer in time.
    """
    with trio.move_on_after(PATIENCE if knows else inf):
        return await ask()
    raise Unavailable(f"the primary didn't answer within {PATIENCE:g} s")


async def listed(
    known: Sequence[T],
    ask: Callable[[], Awaitable[Sequence[T]]],
    record: Callable[[T], None],
    *,
    skip: int,
    top: int,
) -> Sequence[T]:
    """
    The page that `ask` returns, each entity of it recorded; in an outage that page of the `known`
    ones.

    Raises:
        BrokerError: as `ask`, unless it is an outage and some are known.
    """
    try:
        page = await in_time(ask, knows=bool(known))
    except BrokerError as error:
        if not known or not error.counts_as_outage:
            raise
        record_from_memory()
        return known[skip : skip + top]
    for info in page:
        record(info)
    return page


async def created(
    memory: EntityMemory, entity: EntityPath, create: Callable[[], Awaitable[T]]
) -> T:
    """
    The result of `create`.

    Raises:
        BrokerError: as `create`; `EntityExists` if the primary can't be reached and had the entity.
    """
    try:
        return await in_time(create, knows=memory.knows(entity))
    except BrokerError as error:
        if not error.counts_as_outage or not memory.knows(entity):
            raise
        record_from_memory()
        raise EntityExists(f"{entity} existed when the primary could be reached") from error
