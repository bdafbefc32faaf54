"""The queues and subscriptions of a namespace that have dead letters."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from gateway.capabilities import Topology, dead_letters_in
from gateway.deadlines import answered_within
from gateway.domain import backlog
from gateway.domain.errors import NotSupported, Unavailable
from gateway.extensions.redrive.order import DeadLetterCount, DeadLetterList
from gateway.offering import offered
from gateway.ports import Broker

T = TypeVar("T")

PAGE: Final = 100  # names of one request, as many as Service Bus lists at most
MOST_LISTED: Final = 1000  # more than anybody reads on a page
LONGEST: Final = 60.0  # seconds; an operator can name the queue instead


async def list_dead_letters(source: Broker) -> DeadLetterList:
    """
    Return the queues and subscriptions that have dead letters, or may have some, those with the
    most first, without backlog queues.

    Raises:
        NotSupported: the namespace can't list its queues.
        BrokerError: as `Broker.list_queues`, or no answer within a minute.
    """
    with answered_within(LONGEST, error=Unavailable):
        found = [*await _of_queues(source), *await _of_subscriptions(source)]
    some = sorted(
        (e for e in found if e.messages != 0), key=lambda e: (-(e.messages or 0), e.entity)
    )
    return DeadLetterList(entities=tuple(some[:MOST_LISTED]), total=len(some))


async def _of_queues(source: Broker) -> Iterable[DeadLetterCount]:
    infos = await _pages(source.list_queues)
    return [
        DeadLetterCount(entity=each.path.name, messages=await dead_letters_in(source, each))
        for each in infos
        if not backlog.is_backlog(each.path)
    ]


async def _of_subscriptions(source: Broker) -> Iterable[DeadLetterCount]:
    topology = offered(source, Topology)
    found: list[DeadLetterCount] = []
    if topology is not None:
        with suppress(NotSupported):  # a gateway before a namespace without topics
            for topic in await _pages(topology.list_topics):
                infos = await _pages(partial(topology.list_subscriptions, topic.path))
                found += [
                    DeadLetterCount(entity=each.path.name, messages=each.dead_lettered)
                    for each in infos
                ]
    return found


async def _pages(page: Callable[..., Awaitable[Sequence[T]]]) -> Sequence[T]:
    found: list[T] = []
    while True:
        more = await page(skip=len(found), top=PAGE)
        found += more
        if len(more) < PAGE:
            return found
