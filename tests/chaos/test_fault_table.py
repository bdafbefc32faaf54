"""The table of faults is whole and honest: `tests/faults.toml`."""

import tomllib
from importlib import import_module
from inspect import isfunction
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "faults.toml"
TABLE = tomllib.loads(FILE.read_text())
LEVELS = {"D": "simulation", "C": "component", "R": "processes"}
WHY_NOT = ("missing", "impossible")

# The catalogue, with the levels that it asks for: deterministic, component, real processes.
REQUIRED = {
    **{"P1": "DR", "P2": "DR", "P3": "DR", "P4": "R", "P5": "DR", "P6": "R", "P7": "DR"},
    **{"P8": "R", "P9": "DR", "P10": "C", "P11": "C", "P12": "R", "P13": "CR"},
    **{"N1": "DCR", "N2": "DCR", "N3": "R", "N4": "CR", "N5": "DC", "N6": "C", "N7": "C"},
    **{"N8": "CR", "N9": "R", "N10": "DR", "N11": "CR", "N12": "R", "N13": "R", "N14": "DCR"},
    **{"N15": "R", "N16": "CR", "N17": "CR"},
    **{"T1": "R", "T2": "R", "T3": "CR", "T4": "R", "T5": "C", "T6": "CR", "T7": "R", "T8": "R"},
    **{"B1": "DC", "B2": "DC", "B3": "DR", "B4": "R", "B5": "R", "B6": "R", "B7": "R", "B8": "DC"},
    **{"B9": "C", "B10": "C", "B11": "D", "B12": "DR", "B13": "R", "B14": "DC", "B15": "DC"},
    **{"B16": "CR", "B17": "DR", "B18": "D", "B19": "C", "B20": "CR", "B21": "C", "B22": "DR"},
    **{"B23": "DR", "B24": "C", "B25": "CR", "B26": "CR", "B27": "CR"},
    **{"F1": "DR", "F2": "D", "F3": "R", "F4": "R", "F5": "R", "F6": "R", "F7": "D", "F8": "R"},
    **{"F9": "R", "F10": "R", "F11": "R", "F12": "R"},
    **{"C1": "DR", "C2": "R", "C3": "R", "C4": "R"},
    **{"R1": "CR", "R2": "R", "R3": "R", "R4": "R", "R5": "C", "R6": "R", "R7": "C", "R8": "R"},
    **{
        "Y1": "DR",
        "Y2": "DR",
        "Y3": "R",
        "Y4": "C",
        "Y5": "D",
        "Y6": "DR",
        "Y7": "DCR",
        "Y8": "DCR",
    },
}
MISSING_AT_MOST = 0
IMPOSSIBLE = {("N15", "processes"), ("F11", "processes"), ("C2", "processes"), ("C4", "processes")}


def named_in(row):
    return [one for level in LEVELS.values() for one in row.get(level, ())]


def reasons_of(row):
    return {level: why for kind in WHY_NOT for level, why in row.get(kind, {}).items()}


def cell(row, level):
    """Return the cell of a fault and a level as the documentation writes it."""
    if level in row:
        return "yes" if len(row[level]) == 1 else f"yes ({len(row[level])})"
    return next((kind for kind in WHY_NOT if level in row.get(kind, {})), "")


def line_of(fault):
    row = TABLE[fault]
    return f"| {fault} | {row['fault']} | " + " | ".join(cell(row, one) for one in LEVELS.values())


def test_the_documentation_shows_the_table():
    shown = (ROOT / "docs" / "reference" / "faults.md").read_text()

    assert [line_of(fault) for fault in TABLE if f"{line_of(fault)} |\n" not in shown] == []


def test_the_documentation_counts_the_table():
    cells = sum(level in row for row in TABLE.values() for level in LEVELS.values())
    shown = (ROOT / "docs" / "reference" / "faults.md").read_text()

    assert f"{cells} cells have tests, {len(IMPOSSIBLE)} can't be hosted by one machine" in shown
    assert f"\n{len(TABLE)} faults " in shown


def test_every_fault_of_the_catalogue_is_there():
    assert set(TABLE) == set(REQUIRED)
    assert len(TABLE) == 97


@pytest.mark.parametrize("fault", TABLE)
def test_every_level_that_is_asked_for_has_a_test_or_says_why_not(fault):
    row = TABLE[fault]
    asked = {LEVELS[letter] for letter in REQUIRED[fault]}

    assert asked <= {level for level in LEVELS.values() if row.get(level)} | set(reasons_of(row))


@pytest.mark.parametrize("fault", TABLE)
def test_a_row_has_nothing_but_its_columns(fault):
    row = TABLE[fault]

    assert set(row) <= {"fault", *LEVELS.values(), *WHY_NOT}
    assert row["fault"]
    assert all(row[level] for level in LEVELS.values() if level in row)
    assert set(reasons_of(row)) <= set(LEVELS.values())
    assert not {level for level in reasons_of(row) if level in row}
    assert all(len(why) > len("no") for why in reasons_of(row).values())


def test_no_more_is_missing_than_was():
    missing = [(fault, level) for fault, row in TABLE.items() for level in row.get("missing", ())]

    assert len(missing) <= MISSING_AT_MOST, missing


@pytest.mark.parametrize("fault", TABLE)
def test_every_fault_has_a_test_at_one_level_at_least(fault):
    assert named_in(TABLE[fault])


def test_no_more_is_impossible_than_was():
    told = {(fault, level) for fault, row in TABLE.items() for level in row.get("impossible", ())}

    assert told == IMPOSSIBLE


def is_test(one):
    """True if pytest runs a function by that name; a run of all tests has imported its file."""
    file, _, name = one.partition("::")
    module = import_module(file.removesuffix(".py").replace("/", "."))
    return (
        Path(file).match("test_*.py")
        and name.startswith("test_")
        and isfunction(getattr(module, name, None))
    )


def test_every_test_exists():
    named = {one for row in TABLE.values() for one in named_in(row)}

    assert [one for one in sorted(named) if not is_test(one)] == []


def test_a_test_that_does_not_exist_is_found():
    file = "tests/chaos/test_fault_table.py"

    assert is_test(f"{file}::test_a_test_that_does_not_exist_is_found")
    assert not is_test(f"{file}::test_of_nothing")
    assert not is_test(f"{file}::is_test")
    assert not is_test(f"{file}::TABLE")
