"""What a check found: each thing that was looked at, and how bad it is."""

import enum

import attrs


class Grade(enum.Enum):
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    grade: Grade
    text: str


@attrs.frozen
class Findings:
    """What was found so far."""

    items: list[Finding] = attrs.field(factory=list)

    def add(self, subject: str, grade: Grade, text: str) -> None:
        self.items.append(Finding(subject=subject, grade=grade, text=text))
