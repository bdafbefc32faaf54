"""
A simulated installation that shares its secondary, its label and its key with another pair.

Only what that pair has diverted is there, from the start. No other installation of the simulation
has messages that must stay on the backlog, so this one is judged without a drain, and by itself.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.checker.judgements import Invariant, Validity
from gateway.checker.operations import CopyPlace, Found, Record
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.identity import fingerprint
from gateway.domain.message import Message
from tests.harness.determinism import run_seeded
from tests.simulation.outcomes import Outcomes
from tests.simulation.scenario import ENTITIES, Mode, Scenario
from tests.simulation.seeds import draw
from tests.simulation.world import World

FOREIGN: Final = 20  # messages
OTHER_PRIMARY: Final = "sim://another-primary"
_PREFIX: Final = "foreign-"


def draw_neighbours(seed: int) -> Scenario:
    """The scenario of that seed, without healing and drain."""
    scenario = draw(seed)
    parts = attrs.evolve(scenario.parts, mode=Mode.SAFETY, on_disk=False)
    return attrs.evolve(scenario, parts=parts, disk_faults=())


@attrs.define(eq=False, kw_only=True)
class Neighbours(World):
    """`stayed` is how many messages of the other pair are still on the backlog in the end."""

    stayed: int = attrs.field(default=0, init=False)

    async def _start(self, nursery: trio.Nursery) -> None:
        await super()._start(nursery)
        envelope = self.gateway.installation.envelope("another gateway")
        for number in range(FOREIGN):
            wrapped = envelope.wrap(
                Message(message_id=f"{_PREFIX}{number}", body=b"foreign"),
                ENTITIES[number % len(ENTITIES)],
                attempt=f"{_PREFIX}{number}",
                now=self.clocks.of("secondary")(),
                primary=fingerprint(OTHER_PRIMARY),
            )
            await self.stores["secondary"].send(self._queue(number), [wrapped])

    async def _live(self) -> None:
        await super()._live()
        records = self.journal.records
        stayed = [record for record in records if _is_foreign_backlog(record)]
        self.stayed = len(stayed)
        records[:] = [record for record in records if not _is_foreign_backlog(record)]

    def _queue(self, number: int) -> EntityPath:
        pair = self.scenario.pair
        return backlog.queue_name(pair.label, number % pair.backlog_queues)


def run_neighbours(seed: int, folder: Path) -> tuple[Neighbours, Outcomes]:
    """The world of that seed as it is in the end, and its judged history."""
    world = Neighbours(scenario=draw_neighbours(seed), folder=folder)
    return world, run_seeded(world.run, seed=seed)


def first_given_away(seeds: Iterable[int], folder: Path) -> int | None:
    """The first seed of which the judge says that a message came to the wrong pair."""
    for seed in seeds:
        _, outcomes = run_neighbours(seed, folder)
        if Invariant.S2 in outcomes.judgement.with_validity(Validity.BROKEN):
            return seed
    return None


def _is_foreign_backlog(record: Record) -> bool:
    """True if the audit found a message of the other pair in the backlog, where it belongs."""
    if not isinstance(record, Found) or record.place is not CopyPlace.BACKLOG:
        return False
    return record.message_id.startswith(_PREFIX)
