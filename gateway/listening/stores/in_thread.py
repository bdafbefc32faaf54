"""The base of stores whose work blocks."""

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import attrs
import trio

from gateway.domain.errors import Unavailable, starting_thread

T = TypeVar("T")


@attrs.define(eq=False)
class InThread(abc.ABC):
    """
    Implements `Versioned` of `bytes` or None by methods that block; one of them runs at a time, in
    a thread. A cancellation waits for the work under way.
    """

    _limiter: trio.CapacityLimiter = attrs.field(
        factory=partial(trio.CapacityLimiter, 1), init=False
    )

    async def read(self, key: str) -> tuple[bytes | None, str]:
        """As `Versioned.read`."""
        return await self._do(partial(self._read, key))

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        """As `Versioned.write`."""
        return await self._do(partial(self._write, key, value, if_match))

    async def keys(self, prefix: str = "") -> Sequence[str]:
        """Return the keys that have a value and begin with `prefix`, sorted."""
        return await self._do(partial(self._keys, prefix))

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            with starting_thread():
                return await trio.to_thread.run_sync(
                    partial(self._in_words, work), limiter=self._limiter
                )
        except OSError as error:
            raise Unavailable(f"the store: {error.strerror}") from error

    @abc.abstractmethod
    def _in_words(self, work: Callable[[], T]) -> T:
        """Do the work, with errors of the gateway's own classes that name the store."""

    @abc.abstractmethod
    def _read(self, key: str) -> tuple[bytes | None, str]: ...

    @abc.abstractmethod
    def _write(self, key: str, value: bytes | None, if_match: str) -> str: ...

    @abc.abstractmethod
    def _keys(self, prefix: str) -> Sequence[str]: ...
