"""
Resources that many tests share: in a thread with its own Trio, they outlive the Trio of a test.
"""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Final, Generic, TypeVar

import attrs
import trio

from tests.harness.servers import START_LIMIT, STOP_LIMIT, ServerFailed

T = TypeVar("T")

_LIFE_LIMIT: Final = START_LIMIT + STOP_LIMIT  # seconds to start, or to end


@attrs.define(eq=False)
class Lasting(Generic[T]):
    """
    Enters the context manager that `make` returns when it is first needed, and leaves it at `end`.
    """

    name: str
    _make: Callable[[], AbstractAsyncContextManager[T]]
    _value: T | None = attrs.field(default=None, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _ready: threading.Event = attrs.field(factory=threading.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _token: trio.lowlevel.TrioToken | None = attrs.field(default=None, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)

    @property
    def value(self) -> T:
        """
        The value of the entered context; blocks until it's ready.

        Raises:
            ServerFailed: it didn't start.
        """
        self.begin()
        if not self._ready.wait(_LIFE_LIMIT) or self._value is None:
            raise ServerFailed(f"{self.name} didn't start: {self._error}") from self._error
        return self._value

    def begin(self) -> None:
        """Start it, if it wasn't, and don't wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name)
            self._thread.start()

    async def there(self, act: Callable[[], Awaitable[None]]) -> None:
        """Return when `act` has run in the Trio that its processes and sockets belong to."""
        await trio.to_thread.run_sync(partial(trio.from_thread.run, act, trio_token=self._token))

    def end(self) -> None:
        """Block until it is gone."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        if self._thread is not None:
            self._thread.join(_LIFE_LIMIT)

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: ASYNC103 it is raised in the tests' thread
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with self._make() as self._value:
                self._ready.set()
                await trio.sleep_forever()
