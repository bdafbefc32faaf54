"""The faults in force, as a section of the status."""

from collections.abc import Iterator
from typing import Final

from gateway.domain.health.problems import Problem
from gateway.domain.status.sections import Section
from gateway.extensions.faults.order import Fault


def _problems(faults: tuple[Fault, ...]) -> Iterator[Problem]:
    for fault in faults:
        yield Problem(
            kind="fault",
            entity=fault.id,
            text="clients meet a fault on purpose",
            detail=fault.text,
            since=fault.since,
            remedy=f"`pairgate fault clear {fault.id}`",
        )


FAULTS: Final = Section[tuple[Fault, ...]](
    path="faults",
    kind=tuple[Fault, ...],
    missing=(),
    problems=_problems,
    fact=lambda faults: f"faults: {len(faults)}" if faults else "",
)
