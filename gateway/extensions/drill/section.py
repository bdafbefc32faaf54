"""The drill under way, as a section of the status."""

from collections.abc import Iterator
from typing import Final

from gateway.domain.health.problems import Problem
from gateway.domain.status.sections import Section
from gateway.extensions.drill.order import Drill


def _problems(drill: Drill | None) -> Iterator[Problem]:
    if drill is not None:
        yield Problem(
            kind="drill",
            text="a drill is under way",
            detail=drill.text,
            remedy="`pairgate drill --end`",
        )


DRILL: Final = Section[Drill | None](
    path="pair.drill",
    kind=Drill | None,
    missing=None,
    problems=_problems,
    fact=lambda drill: "" if drill is None else f"drill: {drill.fault.value}",
)
