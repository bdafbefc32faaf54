"""One operation on a namespace that we keep ourselves, and its result."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import attrs

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

    `undo` is for a result that nobody is there to take.
    """

    path: EntityPath
    now: Now
    work: Callable[[Namespace, Now], T]
    cost: int = STEP_COST  # bytes
    undo: Callable[[T], None] | None = None
    value: T | None = None
    error: BrokerError | None = None

    def run(self, namespace: Namespace) -> None:
        """Do it. Errors of the broker are results; any other means that the storage failed."""
        try:
            self.value = self.work(namespace, self.now)
        except BrokerError as error:
            self.error = error
        namespace.concern(self.path)

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # what `work` returned
