"""The parts of a process are finished when they are made: nothing is assigned to them later."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "gateway"
# The modules that put parts together, and run what they have put together.
ASSEMBLY: Final = (
    *sorted((PACKAGE / "app").rglob("*.py")),
    *sorted((PACKAGE / "listening" / "process").glob("*.py")),
    *sorted((PACKAGE / "extensions" / "take_over").glob("*.py")),
    *sorted((PACKAGE / "extensions" / "workers").glob("*.py")),
    PACKAGE / "config" / "kinds.py",
    *sorted((PACKAGE / "extensions").glob("*/assembly.py")),
    *sorted((PACKAGE / "extensions").glob("*/feature.py")),
    PACKAGE / "pairing" / "pair.py",
)
# By module: fields that change while a process runs, such as counts and deadlines. A part that
# another one needs is none of them.
RUNNING: Final = {
    "app/certificates.py": {"watched.doubt", "watched.loads", "watched.told"},
    "app/logs.py": {"log.labels", "self.log.level"},
    "app/operations/benching.py": {
        "figures.target",
        "self.figures.receive_seconds",
        "self.figures.received",
        "self.figures.send_seconds",
        "self.figures.sent",
    },
    "app/process_admin.py": {"connections.cancel_scope.deadline"},
    "app/serving.py": {
        "connections.cancel_scope.deadline",
        "ending.clients",
        "ending.cut",
        "ending.failure",
        "ending.finished",
        "operators.cancel_scope.deadline",
        "self.connections.deadline",
    },
    "extensions/take_over/door.py": {"self.door.waiting"},
    "extensions/workers/pool.py": {
        "worker.answered",
        "worker.failure",
        "worker.has_ended",
        "worker.is_ready",
        "worker.status",
    },
    "extensions/workers/sharing.py": {
        "reader.accepted",
        "reader.changed",
        "reader.has_pins",
    },
    "extensions/workers/worker.py": {"self.channel.collectors"},
}


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
    running = RUNNING.get(str(module.relative_to(PACKAGE)), set())

    assert set(late_assignments(module.read_text())) == running


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
