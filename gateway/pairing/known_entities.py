"""Refuses an order for entities that neither the processes of the pair nor the primary know."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities import Topology
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, InvalidRequest
from gateway.domain.operators.control import EVERYTHING
from gateway.domain.operators.known_targets import refusal_of, unknown_among
from gateway.domain.topics.topology import TopicInfo
from gateway.offering import offered
from gateway.ports import Broker

ANSWER_LIMIT: Final = 4.0  # seconds for the primary: the operator's client waits for ten
PAGE: Final = 100
MOST_LISTED: Final = 1000  # queues and topics each: ten requests


@attrs.define(eq=False, kw_only=True)
class KnownEntities:
    """
    The entities that an order may name: those of the configuration, those that the processes of the
    pair have seen, and those on the primary. It is asked for what the others don't have.
    """

    primary: Broker  # without a watch around it: a question of operators is no evidence
    configured: Sequence[str] = ()  # names of entities and of backlog queues

    async def refuse_unknown(
        self, targets: Sequence[str], seen: Callable[[], Iterable[str]]
    ) -> None:
        """
        Return if each target matches an entity. `seen` gives the names that the processes know.

        Raises:
            InvalidRequest: nobody knows some of them; the text suggests similar names.
        """
        await trio.lowlevel.checkpoint()
        known = {*self.configured, *seen()}
        unknown = unknown_among(targets, known)
        if not unknown:
            return
        doubt = "it doesn't answer"
        with trio.move_on_after(ANSWER_LIMIT):
            try:
                await self._ask(unknown, known)
                doubt = ""
            except BrokerError as error:
                doubt = str(error)
        if unknown := unknown_among(unknown, known):
            raise InvalidRequest(refusal_of(unknown, known, doubt))

    async def _ask(self, targets: Sequence[str], known: set[str]) -> None:
        """Add the entities that the primary has for these targets, or similar ones, to `known`."""
        for target in targets:
            if EVERYTHING not in target and await self._exists(EntityPath(target)):
                known.add(target)
        if not unknown_among(targets, known):
            return
        await _list(self.primary.list_queues, known)
        if (topology := offered(self.primary, Topology)) is not None:
            await _list(topology.list_topics, known)

    async def _exists(self, entity: EntityPath) -> bool:
        try:
            await self.primary.inspect(entity)
        except EntityNotFound:
            topology = offered(self.primary, Topology)
            if topology is None:
                return False
        else:
            return True
        try:
            await topology.inspect_topic(entity)
        except EntityNotFound:
            return False
        return True


async def _list(
    page_of: Callable[..., Awaitable[Sequence[EntityInfo | TopicInfo]]], known: set[str]
) -> None:
    """Add the names of the first `MOST_LISTED` entities that the namespace lists."""
    for skip in range(0, MOST_LISTED, PAGE):
        page = await page_of("", skip=skip, top=PAGE)
        known.update(each.path.name for each in page)
        if len(page) < PAGE:
            return
