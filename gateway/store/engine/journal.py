"""
Undoes a step that failed halfway, so that all that the step changed in memory is as before.

The storage undoes changes on disk by its own means (a transaction, for example).
"""

import heapq
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import attrs

_READERS: Final[dict[type, Callable[[Any], Any]]] = {}


class Journal:
    """
    The undo log of one namespace. Every change is preceded by a note of how to undo it; the last
    change is undone first. The log grows until `forget`, which is called by the code that runs the
    steps.

    State that only wakes waiting tasks (notifiers, news) may stay as a failed step left it: a
    superfluous wake-up does no harm.
    """

    __slots__ = ("_kept", "_undo")

    def __init__(self) -> None:
        self._undo: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._kept: set[int] = set()

    def record(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Note how to undo the change that follows: by calling `undo` with these arguments."""
        self._undo.append((undo, arguments))

    def keep(self, thing: Any) -> None:
        """
        Note the attributes of an attrs instance, to restore them on `rewind`. Changes inside of an
        attribute (a dict, a list) must be noted one by one.
        """
        key = id(thing)  # the journal keeps a reference, so the id isn't reused
        if key not in self._kept:
            self._kept.add(key)
            kind = thing.__class__
            read = _READERS.get(kind) or _reader(kind)
            self._undo.append((_put_back, (thing, read(thing))))

    def mark(self) -> int:
        """Return the current position, for `rewind`."""
        self._kept.clear()
        return len(self._undo)

    def rewind(self, mark: int = 0) -> None:
        """Undo all changes since `mark`; 0 means since `forget`."""
        undo = self._undo[mark:]
        for function, arguments in reversed(undo):
            function(*arguments)
        del self._undo[mark:]  # drops the notes that the undoing itself made, too
        self._kept.clear()

    def forget(self) -> None:
        """Drop all notes: the changes can't be undone any more."""
        self._undo.clear()
        self._kept.clear()


def remove_from_heap(heap: list[Any], item: Any) -> None:
    """Undo `heappush`."""
    heap.remove(item)
    heapq.heapify(heap)


def put_entry(entries: dict[Any, Any], key: Any, old: Any) -> None:
    """Undo the change of a dict's entry; `old` None means that there was no entry."""
    if old is None:
        entries.pop(key, None)
    else:
        entries[key] = old


def _put_back(thing: Any, values: tuple[Any, ...]) -> None:
    for name, value in zip(_names(type(thing)), values[1:], strict=True):
        setattr(thing, name, value)


def _names(kind: type) -> list[str]:
    return [field.name for field in attrs.fields(kind)]


def _reader(kind: type) -> Callable[[Any], Any]:
    # The first name is given twice, because attrgetter returns no tuple for a single name.
    names = _names(kind)
    reader = _READERS[kind] = attrgetter(names[0], *names)
    return reader
