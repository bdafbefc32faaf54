"""The outcomes of one run, and its problems."""

from collections import Counter
from hashlib import blake2b

import attrs

from gateway.checker.history import FaultBegan
from gateway.checker.invariants import Judgement
from gateway.checker.judgements import Validity
from gateway.checker.operations import AuditBegan, Record
from gateway.checker.verdict import Verdict
from tests.simulation.scenario import Mode, Scenario


@attrs.frozen(kw_only=True)
class Outcomes:
    """The outcomes of one seed."""

    scenario: Scenario
    judgement: Judgement
    broken_laws: tuple[str, ...]
    seen: Counter[str]  # interesting things that happened
    records: tuple[Record, ...]
    trace: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """
        The broken rules and those that couldn't be decided; in safety mode, those of safety only.
        """
        problems = [*self.judgement.undecided, *self.broken_laws]
        for one in self.judgement.decisions:
            asked = self.scenario.parts.mode is Mode.LIVENESS or one.invariant.name[0] == "S"
            if asked and one.validity in {Validity.BROKEN, Validity.UNDECIDED}:
                problems += [
                    f"{one.invariant.name} {one.validity.value}: {p}" for p in one.problems
                ]
        return tuple(problems)

    @property
    def seconds(self) -> float:
        """The length of the run, in its own time."""
        return max(record.at for record in self.records)

    @property
    def digest(self) -> str:
        """The same for the same history."""
        digest = blake2b(digest_size=16)
        for each in (*self.trace, *map(_text, self.records)):
            digest.update(each.encode())
        return digest.hexdigest()

    def describe(self) -> str:
        problems = self.problems
        return f"seed {self.scenario.seed}: " + "; ".join(problems or ["all is well"])


def _text(record: Record) -> str:
    """The same in each process, whose sets have orders of their own."""
    if not isinstance(record, AuditBegan | FaultBegan):
        return repr(record)
    fields = attrs.asdict(record, recurse=False)
    ordered = {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in fields.items()
    }
    return f"{type(record).__name__} {ordered}"
