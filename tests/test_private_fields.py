"""What a part of the pair keeps for itself is nobody else's to give."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from inspect import getmembers, isclass
from pathlib import Path

import attrs

from gateway import pairing

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "gateway"
# The ways of a test are public, and arguments of constructors. Lower this where you mend a test.
MOST_USES = 0


def classes() -> Iterator[type]:
    for module in pkgutil.iter_modules(pairing.__path__, f"{pairing.__name__}."):
        for _, found in getmembers(importlib.import_module(module.name), isclass):
            if found.__module__ == module.name and attrs.has(found):
                yield found


def test_a_private_field_is_no_argument_of_the_constructor() -> None:
    private = {
        f"{owner.__name__}.{field.name}": field.init
        for owner in classes()
        for field in attrs.fields(owner)
        if field.name.startswith("_")
    }

    assert "Rotation._cooling_down" in private
    assert [name for name, init in private.items() if init] == []


def private_names() -> set[str]:
    """Of fields, methods and properties of all classes."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for owner in ast.walk(ast.parse(path.read_text())):
            if not isinstance(owner, ast.ClassDef):
                continue
            for node in ast.walk(owner):
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        names.add(name)
                    case ast.AnnAssign(target=ast.Name(id=name)):
                        names.add(name)
                    case ast.Attribute(value=ast.Name(id="self"), attr=name):
                        names.add(name)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def uses_by_tests() -> Iterator[str]:
    """Each place where a test uses what is private to another object."""
    names = private_names()
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                    continue
                case ast.Attribute(attr=name) if name in names:
                    yield f"{path.relative_to(TESTS)}:{node.lineno}: {name}"


def test_few_tests_know_what_is_private() -> None:
    found = list(uses_by_tests())

    assert len(found) <= MOST_USES, "\n".join(found)
