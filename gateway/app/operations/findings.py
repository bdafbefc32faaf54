"""Findings of a check: each checked thing, and its grade."""

import enum
from typing import Final

import attrs

# Seconds for one answer of a namespace: longer than `namespaces.ASK_SECONDS` of a process that
# starts, as a check waits for a broker that is slow rather than calls it bad.
ASK_SECONDS: Final = 30.0


class Grade(enum.Enum):
    GOOD = "good"
    NOTE = "note"  # neither good nor bad: a fact to know
    WARNING = "warning"
    BAD = "bad"


@attrs.frozen(kw_only=True)
class CheckFinding:
    """The result of one check: its subject, its grade, and the text for the operator."""

    subject: str
    grade: Grade
    text: str


@attrs.frozen
class Findings:
    """The findings so far."""

    items: list[CheckFinding] = attrs.field(factory=list)

    def add(self, subject: str, grade: Grade, text: str) -> None:
        self.items.append(CheckFinding(subject=subject, grade=grade, text=text))
