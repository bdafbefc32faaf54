"""A recorded and judged run as one value, for the page and for machines."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs

from benchmarks.chaos import checker
from benchmarks.chaos.figures import (
    Recovery,
    Service,
    as_json,
    healthy,
    lives_off,
    median_in_faults,
    most_failovers,
    per_second,
    recovery,
    service,
    waited_in_faults,
)
from benchmarks.chaos.recording import Recording
from gateway.checker.history import EntityStateMoved, FaultBegan, FaultEnded, Healed, Run
from gateway.checker.invariants import Judgement
from gateway.checker.operations import Uncertain
from gateway.checker.verdict import Rules, Violation, judge
from gateway.domain.message import AcceptedBy

FILE: Final = "run.json"
AVAILABLE: Final = {"0s": 0.9999}  # by failover interval
AVAILABLE_OTHERWISE: Final = 0.999
AMPLIFICATION: Final = 1.0
BASELINE_HISTORY: Final = "baseline/producer and auditor"  # in a folder of its own


@attrs.frozen(kw_only=True)
class Target:
    """A target, and the result beside it."""

    name: str
    wanted: str
    found: str
    met: bool


@attrs.frozen(kw_only=True)
class Shade:
    """A fault on the time line, in seconds since the load began."""

    kind: str
    target: str
    begin: float
    end: float


@attrs.frozen(kw_only=True)
class Move:
    at: float
    process: str
    entity: str
    state: str


@attrs.frozen(kw_only=True)
class Timeline:
    """Seconds since the load began. The pairs are (second, number)."""

    primary: Sequence[tuple[float, float]]
    backlog: Sequence[tuple[float, float]]
    baseline: Sequence[tuple[float, float]]
    depth: Sequence[tuple[float, float]]
    moves: Sequence[Move]
    faults: Sequence[Shade]
    healed: float | None


@attrs.frozen(kw_only=True)
class Result:
    """Everything that the report shows of one run."""

    name: str
    scenario: str
    title: str
    topology: str
    interval: str
    rate: float
    seed: int
    proxied: bool
    exit: int  # the checker's
    undecided: Sequence[str]
    problems: Sequence[str]
    messages: Mapping[str, float]
    gateway: Service
    baseline: Service
    healthy: Service  # before the first fault
    baseline_healthy: Service
    baseline_lost: int | None  # None: its queue couldn't be read
    recovery: Recovery
    baseline_recovery: Recovery
    memory: int
    files: int
    deepest: int
    targets: Sequence[Target]
    timeline: Timeline
    histories: Sequence[str]  # the names of their files
    facts: Mapping[str, str]  # of the machine, when the run began

    @property
    def passed(self) -> bool:
        return self.exit == checker.PASSED

    @property
    def verdict(self) -> str:
        return {checker.PASSED: "holds", checker.VIOLATED: "broken"}.get(self.exit, "undecided")


def result_of(recording: Recording, judgement: Judgement, facts: Mapping[str, str]) -> Result:
    scenario = recording.scenario
    sends, direct = [loop.sends for loop in recording.loops], recording.baseline.sends
    served = service(sends, recording.rate, recording.scenario.deadline)
    seen = checker.as_json(judgement)
    timeline, targets = _timeline(recording), targets_of(recording, judgement, served)
    code = exit_of(judgement, targets)
    late = [judgement.late] if judgement.late and code == checker.UNDECIDED else []
    return Result(
        name=recording.name,
        scenario=scenario.name,
        title=scenario.title,
        topology=recording.topology.value,
        interval=recording.interval,
        rate=recording.rate,
        seed=scenario.seed,
        proxied=scenario.proxied,
        exit=code,
        undecided=[*judgement.undecided, *late],
        problems=[
            f"{one.invariant.name}: {text}" for one in judgement.decisions for text in one.problems
        ],
        messages=seen["messages"],
        gateway=served,
        baseline=service([direct], recording.rate / 2),
        healthy=service(healthy(recording.all(), sends), recording.rate),
        baseline_healthy=service(healthy(recording.all(), [direct]), recording.rate / 2),
        baseline_lost=_baseline_lost(recording),
        recovery=recovery(recording.all(), sends),
        baseline_recovery=recovery(recording.all(), [direct], is_baseline=True),
        memory=recording.memory,
        files=recording.files,
        deepest=max((int(number) for _, number in timeline.depth), default=0),
        targets=targets,
        timeline=timeline,
        histories=[f"{name}.jsonl" for name in (*recording.histories, BASELINE_HISTORY)],
        facts=facts,
    )


def exit_of(judgement: Judgement, targets: Sequence[Target]) -> int:
    """The checker's code; a target that a late harness missed can't be decided."""
    code = checker.exit_code(judgement)
    doubtful = judgement.late and not all(target.met for target in targets)
    return checker.UNDECIDED if doubtful and code == checker.PASSED else code


def targets_of(recording: Recording, judgement: Judgement, served: Service) -> list[Target]:
    """Availability and stall only where one namespace at a time is harmed, and none is busy."""
    lost = [one for one in judgement.verdict.findings if one.violation is Violation.LOST]
    found = [
        Target(
            name="lost",
            wanted="0",
            found="undecided" if judgement.undecided else str(len(lost)),
            met=not lost and not judgement.undecided,
        ),
        Target(
            name="amplification",
            wanted=f"at most {AMPLIFICATION:g}",
            found=f"{judgement.amplification:.3f}",
            met=judgement.amplification <= AMPLIFICATION,
        ),
    ]
    wanted_stall = recording.scenario.wanted.stall
    if recording.scenario.promised:
        wanted = AVAILABLE.get(recording.interval, AVAILABLE_OTHERWISE)
        longest = wanted_stall or recording.bounds.attempt_timeout + 1.0
        found += [
            Target(
                name="availability",
                wanted=f"at least {100 * wanted:g} %",
                found=f"{100 * served.availability:.3f} %",
                met=served.availability >= wanted,
            ),
            Target(
                name="longest stall",
                wanted=f"at most {longest:g} s",
                found=f"{served.stall:.2f} s",
                met=served.stall <= longest,
            ),
        ]
    return [*found, *_own_targets(recording)]


def _own_targets(recording: Recording) -> list[Target]:
    """The targets that the scenario asks for by itself, the stall excepted."""
    wanted, records = recording.scenario.wanted, recording.all()
    sends = [send for loop in recording.loops for send in loop.sends]
    bounds, found = recording.bounds, []
    if wanted.median is not None:
        median = median_in_faults(records, sends, bounds.failover_interval)
        found.append(_at_most("median after the interval", wanted.median, median, " s"))
    if wanted.waited is not None:
        waited = waited_in_faults(records, sends) - bounds.attempt_timeout
        each = max(0.0, waited) / recording.scenario.entities
        found.append(_at_most("waited for each entity", wanted.waited, each, " s"))
    if wanted.failovers is not None:
        most = float(most_failovers(records))
        found.append(_at_most("failovers of an entity", wanted.failovers, most, ""))
    shorter, longer = lives_off(records, recording.ends)
    if wanted.shorter is not None:
        found.append(_at_most("life shorter by", wanted.shorter, shorter, " s"))
    if wanted.longer is not None:
        found.append(_at_most("life longer by", wanted.longer, longer, " s"))
    missed = sum(send.answered == math.inf for send in sends)
    found += [
        _at_most(name, most, float(number), "")
        for name, most, number in (
            ("sends without an answer", wanted.unanswered, missed),
            ("copies by the syphon", wanted.twice_by_syphon, recording.twice_by_syphon),
        )
        if most is not None
    ]
    if wanted.redriven is not None:
        found.append(
            Target(
                name="redriven",
                wanted=f"at least {wanted.redriven}",
                found=str(recording.redriven),
                met=recording.redriven >= wanted.redriven,
            )
        )
    return found


def _at_most(name: str, wanted: float, found: float, unit: str) -> Target:
    return Target(
        name=name,
        wanted=f"at most {wanted:g}{unit}",
        found=f"{found:.3g}{unit}",
        met=found <= wanted,
    )


def _baseline_lost(recording: Recording) -> int | None:
    verdict = judge(
        [
            *recording.of_baseline,
            *(
                Uncertain(at=0.0, message_id=send.message_id)
                for send in recording.baseline.sends
                if not math.isfinite(send.answered)
            ),
        ],
        Rules(),
    )
    if verdict.undecided:
        return None
    return sum(one.violation is Violation.LOST for one in verdict.findings)


def _timeline(recording: Recording) -> Timeline:
    began, records = recording.began, recording.all()
    last = max((send.due for loop in recording.loops for send in loop.sends), default=began)
    run = Run.of(records)
    healed = run.first(Healed)
    ended = {one.fault: one.at for one in run.all(FaultEnded)}
    return Timeline(
        primary=per_second(records, began, last, AcceptedBy.PRIMARY),
        backlog=per_second(records, began, last, AcceptedBy.BACKLOG),
        baseline=per_second(recording.baseline.records, began, last, None),
        depth=[
            (one.at - began, one.messages) for one in recording.depths if one.messages is not None
        ],
        moves=[
            Move(at=one.at - began, process=one.process, entity=one.entity, state=one.after.value)
            for one in run.all(EntityStateMoved)
        ],
        faults=[
            Shade(
                kind=one.kind,
                target=one.target.value,
                begin=one.at - began,
                end=ended[one.fault] - began,
            )
            for one in run.all(FaultBegan)
        ],
        healed=None if healed is None else healed.at - began,
    )


def save(result: Result, folder: Path) -> Path:
    path = folder / FILE
    path.write_text(json.dumps(as_json(cattrs.unstructure(result)), indent=1) + "\n")
    return path


def load(folder: Path) -> list[Result]:
    """
    All runs whose folders are in that one, by scenario, topology and interval.

    Those that another version has written, with other figures, are left out.
    """
    found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{FILE}"))]
    figures = {field.name for field in attrs.fields(Result)}
    return [_CONVERTER.structure(run, Result) for run in found if set(run) == figures]


def _number(value: Any, _: type[float]) -> float:
    return math.nan if value is None else float(value)


_CONVERTER: Final = cattrs.Converter()
_CONVERTER.register_structure_hook(float, _number)
