"""Counts the entries that an object holds: work that is over must leave none behind."""

from collections import deque
from collections.abc import Iterable, Iterator


def entries(owner: object) -> int:
    """
    The number of entries in all lists, sets, deques and dictionaries that the object holds, and
    those in objects of the gateway that it holds. It asks for no field by its name.
    """
    found, seen, todo = 0, {id(owner)}, [owner]
    while todo:
        each = todo.pop()
        if isinstance(each, list | set | deque | dict):
            found += len(each)
        for part in _parts(each):
            if id(part) not in seen:
                seen.add(id(part))
                todo.append(part)
    return found


def _parts(each: object) -> Iterable[object]:
    if isinstance(each, dict):
        return (*each.keys(), *each.values())
    if isinstance(each, list | set | deque | tuple | frozenset):
        return each
    return _fields(each) if type(each).__module__.startswith("gateway.") else ()


def _fields(each: object) -> Iterator[object]:
    yield from getattr(each, "__dict__", {}).values()
    for owner in type(each).__mro__:
        for name in getattr(owner, "__slots__", ()):
            if not name.startswith("__") and hasattr(each, name):
                yield getattr(each, name)
