"""Private fields of the pair's parts are no arguments of their constructors."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from inspect import getmembers, isclass
from pathlib import Path

import attrs
import pytest

from gateway import pairing

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "gateway"
# Tests use public names, and arguments of constructors. Lower this when you mend a test.
MOST_USES = 48
PRIVATE = re.compile(r"\.\s*(_\w+)")  # after a dot, as in each use


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


def private_names(source: ast.Module) -> set[str]:
    """The private fields, methods and properties of the classes of a module."""
    names = set()
    for owner in ast.walk(source):
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
    """Each place where a test uses a private field of an object of the gateway."""
    sources = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    names = set().union(*map(private_names, sources))
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        if names.isdisjoint(PRIVATE.findall(text)):
            continue  # most files: to parse them all takes three seconds
        source = ast.parse(text)
        foreign = names - private_names(source)
        for node in ast.walk(source):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(attr=name) if name in foreign:
                    yield f"{path.relative_to(TESTS)}:{node.lineno}: {name}"


def test_few_tests_know_what_is_private() -> None:
    found = list(uses_by_tests())

    assert len(found) <= MOST_USES, "\n".join(found)
