"""A step is an operation on a namespace that Pairgate keeps itself, together with its result."""

from collections.abc import Callable
from traceback import clear_frames
from typing import Any, Final, Generic, TypeVar

import attrs
import trio

from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InternalError
from gateway.store.engine.deliveries import StepReport
from gateway.store.engine.namespace import PAUSE, Namespace

T = TypeVar("T")

STEP_COST: Final = 256  # bytes that a step without a body counts as


@attrs.define(eq=False)
class Step(Generic[T]):
    """
    An operation: its work, and afterwards its result. Wakes the receivers that wait at `path`.

    `task` waits for the step; None if no task waits (any more). `undo` is called with a result that
    no task takes.
    """

    path: EntityPath
    now: Now
    work: Callable[[Namespace, Now], T]
    cost: int = STEP_COST  # bytes
    undo: Callable[[T], None] | None = None
    # The step reads much and changes nothing that is stored, so that it may run after later ones.
    is_large_read: bool = False
    task: trio.lowlevel.Task | None = None
    value: T | None = None
    error: BrokerError | None = None

    def run(self, namespace: Namespace) -> None:
        """
        Run the work; the step may be run again. A broker's error is a result. After any other
        exception the caller must undo the changes, and may then call `fault`.
        """
        self.value = self.error = None
        try:
            self.value = self.work(namespace, self.now)
        except BrokerError as error:
            self.error = error
        namespace.concern(self.path)

    def fault(self, error: Exception) -> None:
        """Note that a bug ended the step, whose changes were undone."""
        self.value = None
        self.error = InternalError(f"a bug ended the operation ({type(error).__name__})")
        self.error.__cause__ = error

    def leave(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        """Note that the waiting task was cancelled; the step runs nevertheless."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def result(self) -> T:
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                # The traceback leads back to this frame: the cycle would keep the messages' bodies
                # in memory until the garbage collector runs.
                del error
        return self.value  # type: ignore[return-value]  # the type that `work` returned


Fault = tuple[EntityPath, Exception]
"""The entity of a step, and the bug that ended it."""

NAMESPACE: Final = EntityPath("")


def attempt(
    work: Callable[[], object], passes: Callable[[Exception], bool] = lambda _: False
) -> Exception | None:
    """
    Run `work`; return the bug that ended it, whose changes the caller must undo.

    An error for which `passes` returns True is raised as it is.
    """
    try:
        work()
    except Exception as error:
        if passes(error):
            raise
        # A reading that it broke off would keep its statement open for as long as it is kept, and
        # the log of the store couldn't be emptied.
        clear_frames(error.__traceback__)
        return error
    return None


def report_of(
    namespace: Namespace, now: Now, faults: list[Fault], is_watched: Callable[[str], bool]
) -> StepReport:
    """
    The report on finished steps; `is_watched` is as in `Namespace.report`. A fault postpones due
    work, which may have caused it.
    """
    try:
        report = namespace.report(now, is_watched)
    except Exception as error:
        faults.append((NAMESPACE, error))
        report = namespace.report_all(now)
    if not faults:
        return report
    return attrs.evolve(report, next_due_work=now.monotonic + PAUSE, faults=faults)
