"""One operation on a namespace that we keep ourselves, and its result."""

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.namespace import Namespace
from gateway.domain.stored import Now

T = TypeVar("T")

STEP_COST: Final = 256  # bytes that a step without a body counts for


@attrs.define(eq=False)
class Step(Generic[T]):
    """
    One operation: what to do, and afterwards its result. Those who wait at `path` are told.

    `task` waits for it, None where nobody does (any more); `undo` is for a result that nobody is
    there to take.
    """

    path: EntityPath
    now: Now
    work: Callable[[Namespace, Now], T]
    cost: int = STEP_COST  # bytes
    undo: Callable[[T], None] | None = None
    task: trio.lowlevel.Task | None = None
    value: T | None = None
    error: BrokerError | None = None

    def run(self, namespace: Namespace) -> None:
        """Do it. Errors of the broker are results; any other means that the storage failed."""
        try:
            self.value = self.work(namespace, self.now)
        except BrokerError as error:
            self.error = error
        namespace.concern(self.path)

    def leave(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        """Who waits is cancelled: it will be done all the same."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # what `work` returned
