"""A dictionary that forgets its oldest entries, for memories that must not grow."""

from collections import OrderedDict
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(OrderedDict[K, V]):
    """
    A dictionary of at most `most` entries; a further entry drops the oldest one (first in, first
    out). Reading changes nothing.

    An entry that is set again keeps its age; with `renews` it becomes the newest. For "least
    recently used" the reader calls `move_to_end`.

    An `OrderedDict` below, not a `dict`: to find the oldest entry, a `dict` steps over all that
    were deleted before it, which makes each eviction from a large one slow.
    """

    def __init__(self, most: int, *, renews: bool = False) -> None:
        super().__init__()
        self.most = most
        self._renews = renews

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if self._renews:
            self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)

    def __reduce__(self) -> Any:
        raise TypeError("a bounded dictionary is never copied")
