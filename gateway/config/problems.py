"""Every error of a configuration on one line, with the path of its key."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final

import attrs
from cattrs import ClassValidationError, IterableValidationError

from gateway.config.values import not_one_of
from gateway.domain.option_fields import is_flat

_IN_ARGUMENTS: Final = 4  # of the error that attrs' `in_` raises: text, field, choices, value
_NOT_YET: Final = frozenset({"claim_check_above"})


class UnknownKeysError(Exception):
    """A table has unknown keys."""

    def __init__(self, keys: Iterable[str], known: Iterable[str]) -> None:
        self.keys = sorted(keys)
        self.known = sorted(known)
        super().__init__(", ".join(self.keys))


def no_namespace(name: str, known: Iterable[str]) -> str:
    """The text of the error that no configured namespace has the name."""
    return f"there is no namespace {name!r}; configured are {', '.join(sorted(known))}"


def is_installed(module: str) -> bool:
    """True if the optional library with that module is installed."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def twice(names: Sequence[str]) -> list[str]:
    """The names that are given more than once."""
    return sorted({name for name in names if names.count(name) > 1})


def problems_in(error: BaseException, path: str = "") -> Iterator[str]:
    """Return a line for each innermost error that cattrs raises."""
    if isinstance(error, ClassValidationError | IterableValidationError):
        yield from _problems_of_children(error, path)
    elif isinstance(error, UnknownKeysError):
        yield from (f"{_join(path, key)}: {_unknown(key, error.known)}" for key in error.keys)
    elif isinstance(error, KeyError):
        yield f"{path}: is missing"
    else:
        yield f"{path}: {_text(error, path)}"


def _problems_of_children(
    error: ClassValidationError | IterableValidationError, path: str
) -> Iterator[str]:
    steps: list[tuple[Exception, str | int | None]]
    if isinstance(error, ClassValidationError):
        noted, others = error.group_exceptions()
        steps = [(inner, _step_into(error.cl, note.name)) for inner, note in noted]
    else:
        indexed, others = error.group_exceptions()
        steps = [(inner, note.index) for inner, note in indexed]
    for inner, step in steps:
        yield from problems_in(inner, _join(path, step))
    for other in others:
        yield from problems_in(other, path)


def _step_into(kind: type[Any], name: str) -> str | None:
    return None if is_flat(attrs.fields_dict(kind)[name]) else name


def _join(path: str, step: str | int | None) -> str:
    if step is None:
        return path
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def _unknown(key: str, known: list[str]) -> str:
    if key in _NOT_YET:
        return "not available in this version"
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"unknown key; {hint}"


def _text(error: BaseException, path: str) -> str:
    """
    The text of an error; texts of attrs begin with the field's name, which the path has already.
    """
    if len(error.args) == _IN_ARGUMENTS:
        return str(not_one_of(error.args[2], error.args[3]))
    text = str(error.args[0]) if error.args else str(error)
    return text.removeprefix(f"{path.rpartition('.')[2]!r} ")
