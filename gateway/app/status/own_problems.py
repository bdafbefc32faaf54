"""The problems of this process, as its record tells them to the pair's other processes."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import attrs
import trio

from gateway.app.runtime import Runtime
from gateway.changes import Changes
from gateway.domain.failover import State
from gateway.domain.health.problems import Problem
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.syphon import Syphon
from gateway.wire.pairgate.advice import (
    alarm_problems,
    entity_problems,
    namespace_problems,
    waiting_problem,
)

EVERY: Final = 1.0  # seconds between two looks at the own problems, which ask nobody
# In an outage all gateways of a fleet have a new problem at once: together they leave so many
# records a second, half of the requests that the secondary is promised to get at most.
RECORDS_A_SECOND: Final = 5.0
MANY: Final = 600  # processes, where a process may not read how many there are
# Each process that reads the depth finds out for itself whether messages are left.
_SEEN_BY_ALL: Final = frozenset({"backlog_orphaned"})


def problems_here(
    runtime: Runtime, syphon: Syphon | None, states: EntityStates | None
) -> tuple[Problem, ...]:
    """The problems of this process. Nobody is asked."""
    at, watches = runtime.now(), runtime.abilities
    alarms = [each for each in runtime.observer.alarms() if each.event not in _SEEN_BY_ALL]
    troubled = () if states is None else states.troubled()
    # The orders of operators are in the record anyway.
    counts: Counter[State] = Counter(
        each.state for each in troubled if each.state is not State.PINNED
    )
    if states is not None:
        counts -= states.answering()
    return (
        *(
            problem
            for name in runtime.meters
            if name in watches
            for problem in namespace_problems(name, watches[name].status())
        ),
        *alarm_problems(alarms),
        *entity_problems({state.value: count for state, count in counts.items()}),
        *(waiting_problem(each, at) for each in (() if syphon is None else syphon.waiting())),
    )


@attrs.define(eq=False, kw_only=True)
class ProblemWatch:
    """
    Lets the record of this process be written as soon as its problems are others, the primary is
    back, or it has diverted more messages while no entity is in trouble: others then know all of an
    outage.
    """

    problems: Callable[[], Sequence[Problem]]
    diverted: Callable[[], int]
    back: Callable[[], datetime | None]  # since when the primary answers that was lost
    states: EntityStates | None  # None: this process diverts nothing
    reader: RecordReader
    urgent: Changes
    rng: random.Random

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled."""
        task_status.started()
        told = self._news()
        while True:
            await trio.sleep(EVERY)
            if self._news() == told:
                continue
            await self._wait_for_turn()
            told = self._news()
            self.urgent.notify()

    async def _wait_for_turn(self) -> None:
        """Return after a random share of the time that all processes need together, as known now"""
        began, share = trio.current_time(), self.rng.random()
        while True:
            seen = self.reader.changes.version
            due = began + share * self._processes() / RECORDS_A_SECOND
            with trio.move_on_at(due):
                await self.reader.changes.wait(seen)
                continue
            return

    def _news(self) -> tuple[frozenset[tuple[str, str]], datetime | None, int | None]:
        """
        The problems without their figures, which change more often; the return; the messages, if
        told.
        """
        keys = frozenset(each.key for each in self.problems())
        is_settled = self.states is None or not self.states.is_any_troubled
        return keys, self.back(), self.diverted() if is_settled else None

    def _processes(self) -> int:
        """
        A reading that fails, as in an outage, leaves the number as it was known. Where there are no
        records yet, this process leaves the first one.
        """
        known = self.reader.known
        if not self.reader.exists:
            return 1
        is_unknown = known.since is None or self.reader.may_read is False
        return MANY if is_unknown else len(known.alive)
