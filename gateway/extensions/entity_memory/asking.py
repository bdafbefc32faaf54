"""Questions to a primary whose earlier answers are remembered."""

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, TypeVar

import trio

from gateway.capabilities.remembering import record_from_memory
from gateway.domain.errors import BrokerError, EntityExists, Unavailable

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


async def read(known: T | None, ask: Callable[[], Awaitable[T]], record: Callable[[T], None]) -> T:
    """
    The answer of `ask`, recorded; in an outage what is `known`.

    Raises:
        BrokerError: as `ask`, unless it is an outage and the answer is known.
    """
    try:
        found = await in_time(ask, knows=known is not None)
    except BrokerError as error:
        if known is None or not error.counts_as_outage:
            raise
        record_from_memory()
        return known
    record(found)
    return found


async def created(knows: bool, name: object, create: Callable[[], Awaitable[T]]) -> T:
    """
    The result of `create`. `knows`: the primary had it already.

    Raises:
        BrokerError: as `create`; `EntityExists` if the primary can't be reached and had it.
    """
    try:
        return await in_time(create, knows=knows)
    except BrokerError as error:
        if not error.counts_as_outage or not knows:
            raise
        record_from_memory()
        raise EntityExists(f"{name} existed when the primary could be reached") from error
