"""Many seeds, one after the other or in several processes, and what they come to."""

from collections import Counter
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import blake2b
from typing import Final

import attrs

from gateway.checker.history import EntityStateMoved, FaultBegan
from gateway.checker.operations import Invoked
from gateway.domain.failover import State
from tests.simulation.coverage import unseen
from tests.simulation.scenario import CHAOS
from tests.simulation.world import run_world

AT_ONCE: Final = 16  # seeds that a process is given
WORTH_COVERING: Final = 500  # runs; fewer may miss what is rare


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of one seed."""

    seed: int
    seconds: float  # simulated
    sends: int  # messages that clients sent, each try counted
    faults: int  # windows, crashes, clocks and broken connections
    failovers: int
    seen: Counter[str]
    digest: str
    problem: str  # "": none


def figures_of(seed: int, load: int = 1) -> Figures:
    """Run that seed, with so many times the sends; one that breaks off is a problem of its own."""
    try:
        outcomes = run_world(seed, load)
    except Exception as error:
        return Figures(
            seed=seed,
            seconds=CHAOS,  # about, so that a long run of such ends
            sends=0,
            faults=0,
            failovers=0,
            seen=Counter(),
            digest="",
            problem=f"seed {seed}: it broke off: {error!r}",
        )
    records, seen = outcomes.records, Counter(outcomes.seen)
    seen.update(outcomes.verdict.counts)
    seen[outcomes.scenario.parts.mode.value] += 1
    for one in outcomes.judgement.decisions:
        seen[f"{one.invariant.name} {one.validity.value}"] += 1
    return Figures(
        seed=seed,
        seconds=outcomes.seconds,
        sends=sum(isinstance(record, Invoked) for record in records),
        faults=sum(isinstance(record, FaultBegan) for record in records)
        + seen["fault: connection of a client"]
        + seen["fault: clock"],
        failovers=sum(
            isinstance(record, EntityStateMoved)
            and record.after is State.SECONDARY
            and record.before is not State.HALF_OPEN
            for record in records
        ),
        seen=seen,
        digest=outcomes.digest,
        problem="" if outcomes.passed else outcomes.describe(),
    )


@attrs.define(kw_only=True)
class Totals:
    """The sum of many seeds."""

    runs: int = 0
    seconds: float = 0.0
    sends: int = 0
    faults: int = 0
    failovers: int = 0
    seen: Counter[str] = attrs.field(factory=Counter)
    problems: dict[int, str] = attrs.field(factory=dict)  # by seed
    _digest: "blake2b" = attrs.field(factory=lambda: blake2b(digest_size=16))

    def add(self, figures: Figures) -> None:
        self.runs += 1
        self.seconds += figures.seconds
        self.sends += figures.sends
        self.faults += figures.faults
        self.failovers += figures.failovers
        self.seen.update(figures.seen)
        self._digest.update(figures.digest.encode())
        if figures.problem:
            self.problems[figures.seed] = figures.problem

    @property
    def hours(self) -> float:
        return self.seconds / 3600.0

    @property
    def digest(self) -> str:
        """The digest of all histories, in the order of their seeds."""
        return self._digest.hexdigest()

    @property
    def unseen(self) -> dict[str, tuple[int, int]]:
        """The events that were seen too seldom; empty after only a few runs."""
        return unseen(self.seen, self.runs) if self.runs >= WORTH_COVERING else {}

    @property
    def passed(self) -> bool:
        return not self.problems and not self.unseen

    def as_dict(self) -> dict[str, object]:
        return {
            "runs": self.runs,
            "simulated_hours": round(self.hours, 2),
            "sends": self.sends,
            "faults": self.faults,
            "failovers": self.failovers,
            "violations": len(self.problems),
            "problems": {str(seed): text for seed, text in self.problems.items()},
            "unseen": {name: [found, least] for name, (found, least) in self.unseen.items()},
            "seen": dict(sorted(self.seen.items())),
            "digest": self.digest,
        }

    def describe(self) -> str:
        return (
            f"{self.hours:.1f} simulated hours, {self.runs} runs: {self.sends} sends,"
            f" {self.faults} faults, {self.failovers} failovers, {len(self.problems)} violations"
        )


def run_seeds(first: int, jobs: int = 1, load: int = 1) -> Generator[Figures, None, None]:
    """Seed by seed in their order, without an end. Closing it ends its processes."""
    if jobs == 1:
        seed = first
        while True:
            yield figures_of(seed, load)
            seed += 1
    with ProcessPoolExecutor(jobs) as pool:
        step = jobs * AT_ONCE
        while True:
            seeds = range(first, first + step)
            yield from pool.map(partial(figures_of, load=load), seeds)
            first += step


def run_hours(
    hours: float, first: int, jobs: int = 1, load: int = 1
) -> Generator[Totals, None, None]:
    """The same totals after each seed, until that many hours were simulated."""
    totals = Totals()
    for figures in run_seeds(first, jobs, load):
        totals.add(figures)
        yield totals
        if totals.hours >= hours:
            return
