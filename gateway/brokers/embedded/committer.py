"""Runs steps on a store, a batch in one transaction, and says of each what is known afterwards."""

from collections.abc import Sequence
from typing import Any, Final

import apsw
import attrs

from gateway.brokers.embedded.store import Store
from gateway.brokers.step import Step
from gateway.domain.errors import (
    BrokerError,
    MessageTooLarge,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from gateway.domain.namespace import Namespace
from gateway.domain.queue_values import Report

# What SQLite refuses before anything is written: the batch is undone, and the store goes on.
_DEFINITE: Final[dict[type[apsw.Error], type[BrokerError]]] = {
    apsw.FullError: StorageFull,
    apsw.BusyError: StorageFull,
    apsw.TooBigError: MessageTooLarge,
}
_REFUSED: Final = tuple(_DEFINITE)


@attrs.define(eq=False)
class Committer:
    """
    Plain blocking code for the writer's thread.

    After an error of the disk it has `failed` and does nothing more: SQLite would go on, and
    acknowledge what is lost. Whoever opens the store again finds what really is on the disk.
    """

    _store: Store
    _namespace: Namespace
    failed: str = ""  # why
    _untidy: bool = True

    def run(self, steps: Sequence[Step[Any]]) -> Report:
        """
        Give every step its result: the commit has returned, or the error says what is known.

        Return whom they concern: everybody, where all locks are gone.
        """
        try:
            if not self.failed:
                self._store.begin(steps[0].now.monotonic)
        except _REFUSED as error:
            _refuse(steps, error)
            return self._namespace.report_all(steps[-1].now)
        except (apsw.Error, OSError) as error:
            self.failed = f"the store can't begin: {error}"
        if self.failed:
            for step in steps:
                step.error = Unavailable(self.failed)
            return Report()
        try:
            if not self._run_steps(steps):
                return self._namespace.report_all(steps[-1].now)
            self._store.commit()
            self._untidy = True
        except (apsw.Error, OSError) as error:
            self.fail(steps, str(error))
        return self._namespace.report(steps[-1].now)

    def fail(self, steps: Sequence[Step[Any]], why: str) -> None:
        """Stop for good; what the steps did may be on the disk or not."""
        self.failed = f"the store has failed: {why}"
        for step in steps:
            if step.error is None:
                step.error = OutcomeUnknown(self.failed)

    @property
    def untidy(self) -> bool:
        """Whether something is left to do for when nobody asks for anything."""
        return self._untidy and not self.failed

    def tidy(self) -> None:
        """Do a slice of it: messages of deleted queues go, the log moves into the store."""
        try:
            self._untidy = self._store.tidy()
            self._store.checkpoint()
        except _REFUSED:
            self._untidy = False  # no room: it can wait
        except (apsw.Error, OSError) as error:
            self.fail((), str(error))

    def shorten_log(self) -> None:
        """Move the log into the store where it has become long."""
        if self._store.wants_checkpoint and not self.failed:
            try:
                self._store.checkpoint()
            except apsw.Error as error:
                self.fail((), str(error))

    def close(self) -> None:
        """Let go of the store; tidily, unless it has failed."""
        if self.failed:
            self._store.forsake()
            return
        try:
            self._store.close()
        except (apsw.Error, OSError) as error:
            self.fail((), str(error))

    def _run_steps(self, steps: Sequence[Step[Any]]) -> bool:
        """
        False where SQLite has refused: all is as before, but for the locks, which are gone.

        There is no savepoint around each step, since no message can fail alone: whatever depends
        on a message was checked before, and a disk that is full is full for all.
        """
        try:
            for step in steps:
                step.run(self._namespace)
            self._store.flush()
        except _REFUSED as error:
            self._store.take_back()
            self._namespace.reload()
            _refuse(steps, error)
            return False
        return True


def _refuse(steps: Sequence[Step[Any]], error: apsw.Error) -> None:
    refusal = next(ours for theirs, ours in _DEFINITE.items() if isinstance(error, theirs))
    for step in steps:
        step.value, step.error = None, refusal(str(error))
