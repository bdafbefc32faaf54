"""A changed function is the same function with new code, for all who have it already."""

import sys
from importlib import import_module, invalidate_caches

import pytest

from tests.harness.changed_functions import change, changed_functions

SOURCE = """
from functools import cached_property, wraps
from typing import Final

LIMIT: Final = 3


def doubled(function):
    @wraps(function)
    def outer(*args):
        return 2 * function(*args)

    return outer


@doubled
def wrapped():
    return 1


class Thing:
    size = 4

    def method(self, more=2):
        return more

    @property
    def name(self):
        return "before"

    @staticmethod
    def alone():
        def inner():
            return 10

        return inner()

    @cached_property
    def heavy(self):
        return "light"


key = lambda: "key"
TABLE = {"method": Thing.method, "wrapped": wrapped}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of that source, which is imported."""
    (tmp_path / "changed_by_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    invalidate_caches()
    yield import_module("changed_by_a_test")
    del sys.modules["changed_by_a_test"]


@pytest.fixture
def changes(module, tmp_path):
    """Returns the changes of functions, if that text of the source is another one."""

    def read(old, new):
        assert SOURCE.count(old) == 1
        path = tmp_path / "after.py"
        path.write_text(SOURCE.replace(old, new))
        return changed_functions(tmp_path / "changed_by_a_test.py", path)

    return read


@pytest.mark.parametrize(
    ("old", "new", "call", "result"),
    [
        ("return more", "return more + 1", lambda it: it.Thing().method(), 3),
        ("return more", "return more + 1", lambda it: it.TABLE["method"](it.Thing()), 3),
        ("    return 1\n", "    return 5\n", lambda it: it.wrapped(), 10),
        ("    return 1\n", "    return 5\n", lambda it: it.TABLE["wrapped"](), 10),
        ("2 * function", "3 * function", lambda it: it.wrapped(), 3),
        ('"before"', '"after"', lambda it: it.Thing().name, "after"),
        ('"light"', '"heavy"', lambda it: it.Thing().heavy, "heavy"),
        ("return 10", "return 11", lambda it: it.Thing.alone(), 11),
        ('lambda: "key"', 'lambda: "other"', lambda it: it.key(), "other"),
        ("\n\nclass", "\n\n# More lines.\n\nclass", lambda it: it.Thing().method(), 2),
    ],
)
def test_a_changed_function_is_changed_for_all_who_have_it(module, changes, old, new, call, result):
    found = changes(old, new)
    assert found

    change(found)

    assert call(module) == result


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= 3", "= 7"),
        ("size = 4", "size = 5"),
        ("more=2", "more=3"),
        ("more=2", "more=2, further=1"),
        ("    @property\n", ""),
        ("def name", "def title"),
        ("key = ", "key = other = "),
        ("TABLE = ", "def further():\n    return 1\n\n\nTABLE = "),
    ],
)
def test_a_change_of_anything_else_is_none_of_functions(changes, old, new):
    assert changes(old, new) is None
