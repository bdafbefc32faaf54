"""
Keeps the result of each mutant on the disk: a run can be broken off, and survivors tried again.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

UNTESTED: Final = "untested"  # no test runs it
NEEDS_IMPORT: Final = "needs an import"  # not tried yet
UNNOTICED: Final = frozenset({"0", UNTESTED, NEEDS_IMPORT})

Entry = tuple[str, str, int]  # module, digest of its source, which of its mutants


@attrs.define(eq=False)
class ResultLog:
    """A line for each attempt; the last one counts. What was found of another source is void."""

    path: Path
    _ended: dict[Entry, str] = attrs.field(factory=dict)

    def read(self) -> None:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                module, digest, number, ended = json.loads(line)
                self._ended[module, digest, number] = ended

    def note(self, entry: Entry, ended: str) -> None:
        self._ended[entry] = ended
        with self.path.open("a") as file:
            file.write(json.dumps([*entry, ended]) + "\n")

    def ended(self, entry: Entry) -> str | None:
        """Return how the mutant's tests ended: pytest's exit code, or why they had to be ended."""
        return self._ended.get(entry)

    def killed(self, entry: Entry) -> bool:
        return self._ended.get(entry, "0") not in UNNOTICED

    def forget(self, modules: Iterable[str]) -> None:
        gone = set(modules)
        self._ended = {entry: one for entry, one in self._ended.items() if entry[0] not in gone}
        lines = (json.dumps([*entry, ended]) for entry, ended in self._ended.items())
        self.path.write_text("".join(f"{line}\n" for line in lines))
