"""A dictionary that forgets its oldest entries, and results of calls, for bounded memories."""

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Final, TypeVar, TypeVarTuple

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Characters of a key, as many as a session id may have. Clients choose them: a memory of longer
# ones, each time another, would have no bound in bytes.
LONGEST_REMEMBERED: Final = 128


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
        OrderedDict.__setitem__(self, key, value)  # `super()` takes half as long again
        if self._renews:
            self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)

    def __reduce__(self) -> Any:
        raise TypeError("a bounded dictionary is never copied")


def remembered(most: int) -> Callable[[Callable[[str, *Ts], T]], Callable[[str, *Ts], T]]:
    """
    Remember the `most` results of a function that were used last, by its arguments, except for keys
    (the first argument) of more than 128 characters.
    """

    def decorate(make: Callable[[str, *Ts], T]) -> Callable[[str, *Ts], T]:
        kept: Callable[..., T] = lru_cache(maxsize=most)(make)

        @wraps(make)
        def call(key: str, /, *others: *Ts) -> T:
            return (make if len(key) > LONGEST_REMEMBERED else kept)(key, *others)

        return call

    return decorate
