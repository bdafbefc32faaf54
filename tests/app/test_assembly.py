"""The parts of a process are finished when they are made: nothing is assigned to them later."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "gateway"
# The modules that put parts together.
ASSEMBLY: Final = (
    *sorted((PACKAGE / "app" / "assembly").glob("*.py")),
    PACKAGE / "app" / "endpoints.py",
    PACKAGE / "app" / "namespaces.py",
    PACKAGE / "app" / "syphoning.py",
    PACKAGE / "extensions" / "cluster" / "making.py",
    PACKAGE / "extensions" / "workers" / "stores.py",
    PACKAGE / "config" / "kinds.py",
    *sorted((PACKAGE / "extensions").glob("*/assembly.py")),
    PACKAGE / "pairing" / "pair.py",
)


def late_assignments(source: str) -> Iterator[str]:
    """The assignments to fields of other objects: `a.b = c`, `a.b += c`, `setattr(a, "b", c)`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="setattr")):
                yield ast.unparse(node)
            case ast.Attribute(ctx=ast.Store(), value=value):
                if not (isinstance(value, ast.Name) and value.id == "self"):
                    yield ast.unparse(node)


@pytest.mark.parametrize("module", ASSEMBLY, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_an_assembly_assigns_nothing_to_a_finished_part(module: Path) -> None:
    assert list(late_assignments(module.read_text())) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("pair.states.tell = advice.tell", ["pair.states.tell"]),
        ("one.count += 1", ["one.count"]),
        ("one.a, two = 1, 2", ["one.a"]),
        ("setattr(one, 'a', 1)", ["setattr(one, 'a', 1)"]),
        ("self.ready = True\nready = one.ready", []),
    ],
)
def test_a_late_assignment_is_found(source: str, found: list[str]) -> None:
    assert list(late_assignments(source)) == found
