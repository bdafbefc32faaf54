"""The clients that were run, for docs/reference/compatibility.md."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.references.tables import table

INTEROP: Final = Path(__file__).parents[1] / "interop"
HEAD: Final = ("client", "language", "version", "what was run", "passed", "known differences")


def parts() -> Mapping[str, str]:
    """A table of what `make interop` has run, and one of what others have run."""
    ours: Mapping[str, Mapping[str, Any]] = json.loads((INTEROP / "results.json").read_text())
    expected = tomllib.loads((INTEROP / "expected.toml").read_text())
    others = tomllib.loads((INTEROP / "others.toml").read_text())["runs"]
    return {
        "ours": table(HEAD, *(_row(row, expected.get(name, {})) for name, row in ours.items())),
        "others": table(HEAD, *(tuple(row[name] for name in COLUMNS) for row in others)),
    }


COLUMNS: Final = ("client", "language", "version", "what", "passed", "differences")


def _row(row: Mapping[str, Any], expected: Mapping[str, str]) -> tuple[str, ...]:
    run = row["passed"] + row["failed"]
    skipped = f", {row['skipped']} skipped" if row["skipped"] else ""
    differences = list(dict.fromkeys(expected.values()))
    if (either := row["failed"] - len(expected)) > 0:
        differences.append(f"on a busy machine {either} more end too late")
    return (
        f"`{row['client']}`",
        row["language"],
        row["version"],
        row["what"],
        f"{row['passed']} of {run}{skipped} ({row['date']})",
        "; ".join(differences) or "none",
    )
