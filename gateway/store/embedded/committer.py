"""
Runs batches of steps on a store, each batch in one transaction, and sets the result of each step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import apsw
import attrs

from gateway.domain.errors import BrokerError, OutcomeUnknown, StorageFull, Unavailable
from gateway.store.embedded.store import Store
from gateway.store.engine.deliveries import StepReport
from gateway.store.engine.namespace import Namespace, always_watched
from gateway.store.local.step import NAMESPACE, Fault, Step, attempt, report_of

# Errors before anything is written: SQLite undoes the batch, and the store stays usable.
_DEFINITE: Final[dict[type[apsw.Error], type[BrokerError]]] = {
    apsw.FullError: StorageFull,
    apsw.BusyError: StorageFull,
    apsw.NoMemError: Unavailable,
}
_REFUSED: Final = tuple(_DEFINITE)
# Errors about values or statements, which say nothing about the disk.
_OF_VALUES: Final = (
    apsw.BindingsError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.SQLError,
    apsw.TooBigError,
)


@attrs.define(eq=False)
class Committer:
    """
    Plain blocking code for the writer's thread.

    An error that isn't about the disk fails only its own step. After an error of the disk, `failed`
    is set and nothing more is done: SQLite would go on, and acknowledge messages that are lost.
    Only opening the store again shows what is really on the disk.
    """

    _store: Store
    _namespace: Namespace
    _is_watched: Callable[[str], bool] = always_watched  # as in `Namespace.report`
    failed: str = ""  # the reason
    _untidy: bool = True

    def run(self, steps: Sequence[Step[Any]]) -> StepReport:
        """
        Run all steps and set their results: committed, or an error with the known outcome.

        Return the report on the receivers to wake.
        """
        now = steps[-1].now
        faults: list[Fault] = []
        begun = False
        try:
            if not self.failed:
                self._begin(steps)
                begun = True
                if self._run_steps(steps, faults):
                    self._commit(steps)
        except _REFUSED as error:
            self._undo()
            _refuse(steps, error)
            return self._namespace.report_all(now)
        except (apsw.Error, OSError) as error:
            if begun:
                self.fail(steps, str(error))
            else:
                self.failed = f"the store can't begin: {error}"
        if not begun:
            for step in steps:
                step.error = Unavailable(self.failed)
            return StepReport()
        return report_of(self._namespace, now, faults, self._is_watched)

    def fail(self, steps: Sequence[Step[Any]], why: str) -> None:
        """Stop for good. The steps' changes may or may not be on the disk."""
        self.failed = f"the store has failed: {why}"
        for step in steps:
            if step.error is None:
                step.error = OutcomeUnknown(self.failed)

    @property
    def untidy(self) -> bool:
        """True if background work is left."""
        return self._untidy and not self.failed

    def tidy(self) -> StepReport | None:
        """
        Do a slice of the background work: delete messages of deleted queues, move the log into the
        store. Return a report if a bug ended it.
        """
        fault = None
        try:
            fault = attempt(self._tidy, _is_of_disk)
        except _REFUSED:
            self._untidy = False  # no space: it can wait
        except (apsw.Error, OSError) as error:
            self.fail((), str(error))
        if fault is None:
            return None
        self._untidy = False
        self._store.roll_back()
        return StepReport(
            next_due_work=self._namespace.next_due_work(), faults=[(NAMESPACE, fault)]
        )

    def _tidy(self) -> None:
        more = self._store.tidy()
        self._untidy = not self._store.checkpoint() or more

    def shorten_log(self) -> None:
        """Move the log into the store if the log has become long."""
        if self._store.wants_checkpoint and not self.failed:
            try:
                self._store.checkpoint()
            except apsw.Error as error:
                self.fail((), str(error))

    def close(self) -> None:
        """Close the store, in order unless it has failed."""
        if self.failed:
            self._store.forsake()
            return
        try:
            self._store.close()
        except (apsw.Error, OSError) as error:
            self.fail((), str(error))

    def _begin(self, steps: Sequence[Step[Any]]) -> None:
        self._namespace.journal.forget()
        self._store.begin(steps[-1].now)

    def _undo(self) -> None:
        """Restore the state at the beginning, on disk and in memory, locks included."""
        self._store.roll_back()
        self._namespace.journal.rewind()

    def _run_steps(self, steps: Sequence[Step[Any]], faults: list[Fault]) -> bool:
        """
        Run all steps together, which costs least. If a bug ends that, undo everything and run each
        step by itself, so that only the faulty step fails. False: there is nothing to commit.
        """
        fault = attempt(lambda: self._run_together(steps), _is_of_disk)
        if fault is None:
            return True
        self._undo()
        self._begin(steps)
        fault = attempt(lambda: self._run_apart(steps, faults), _is_of_disk)
        if fault is None:
            return True
        self._undo()
        for step in steps:
            step.fault(fault)
        faults[:] = [(steps[0].path, fault)]
        return False

    def _run_together(self, steps: Sequence[Step[Any]]) -> None:
        for step in steps:
            step.run(self._namespace)
        self._store.prepare()

    def _run_apart(self, steps: Sequence[Step[Any]], faults: list[Fault]) -> None:
        journal = self._namespace.journal
        for step in steps:
            mark = journal.mark()
            fault = attempt(partial(self._run_part, step), _is_of_disk)
            if fault is not None:
                journal.rewind(mark)
                step.fault(fault)
                faults.append((step.path, fault))
        self._store.prepare()

    def _run_part(self, step: Step[Any]) -> None:
        with self._store.savepoint():
            step.run(self._namespace)

    def _commit(self, steps: Sequence[Step[Any]]) -> None:
        try:
            self._store.commit()
            self._untidy = True
        except (apsw.Error, OSError) as error:
            self.fail(steps, str(error))


def _is_of_disk(error: Exception) -> bool:
    return isinstance(error, apsw.Error | OSError) and not isinstance(error, _OF_VALUES)


def _refuse(steps: Sequence[Step[Any]], error: apsw.Error) -> None:
    refusal = next(ours for theirs, ours in _DEFINITE.items() if isinstance(error, theirs))
    for step in steps:
        step.value, step.error = None, refusal(str(error))
