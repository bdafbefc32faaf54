"""Reload and drain of this process, for HTTP, the commands and signals."""

from collections.abc import Callable

import attrs
import trio

from gateway.app.logs import Reloader
from gateway.config.file import Loaded
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.events.control import ControlCalled
from gateway.domain.operators.control import Operator
from gateway.domain.operators.process import (
    DrainReport,
    ProcessAction,
    ProcessAnswer,
    ProcessOrder,
    ProcessState,
    Workload,
)
from gateway.frontends.admin.readiness import Readiness
from gateway.pairing.records.order_book import OrderBook
from gateway.ports import Observer


@attrs.define(eq=False, kw_only=True)
class ProcessControl:
    """Executes the orders to one process. Each is idempotent."""

    observer: Observer
    readiness: Readiness
    ask_end: Callable[[str], None]  # drain; called again, cut off
    work: Callable[[], Workload]
    reloader: Reloader | None = None
    place: str = ""  # as the records of its pair name the process
    # The orders of its pair; None: it leaves no records.
    book: OrderBook | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)  # set when the drain has ended
    _began: float = attrs.field(default=0.0, init=False)  # the drain, by Trio's clock
    _before: Workload | None = attrs.field(default=None, init=False)
    _appliers: list[Callable[[Loaded], None]] = attrs.field(factory=list, init=False)

    def on_reload(self, apply: Callable[[Loaded], None]) -> None:
        """Call `apply`, too, with each configuration that a reload has read."""
        self._appliers.append(apply)

    async def execute(self, order: ProcessOrder, operator: Operator) -> ProcessAnswer:
        """
        Execute the order, and report it with its operator. When this returns, a drain has begun;
        with `wait` it has ended. If cancelled, the drain continues.

        Raises:
            InvalidRequest: the new configuration is wrong; nothing was changed.
            NotSupported: this process has no configuration to read again.
        """
        before = self.state()
        if order.action is ProcessAction.RELOAD:
            return await self._reload(order, operator, before)
        begins = not self.readiness.is_ending
        self._report(order, operator, changed=begins)
        if begins:
            reason = f": {order.reason}" if order.reason else ""
            self.drain(f"by {operator.name}{reason}")
        answer = ProcessAnswer(
            action=order.action.value, changed=begins, before=before, after=self.state()
        )
        if order.wait:
            await self.ended.wait()
            answer = attrs.evolve(answer, report=self._drained())
        return answer

    def drain(self, reason: str) -> None:
        """Begin to drain; called again, cut off the unfinished work."""
        if self._before is None:
            self._before, self._began = self.work(), trio.current_time()
        self.ask_end(reason)

    async def reload(self) -> None:
        """Reload the configuration, unless it is wrong: for SIGHUP."""
        if self.reloader is not None:
            await self.reloader(self._apply)

    def state(self) -> ProcessState:
        current = None if self.reloader is None else self.reloader.current.config
        return ProcessState(
            ready=self.readiness.is_ready,
            reason=self.readiness.reason,
            log_level="" if current is None else current.logging.level,
            access=() if current is None else tuple(each.name for each in current.access),
            place=self.place,
        )

    async def _reload(
        self, order: ProcessOrder, operator: Operator, before: ProcessState
    ) -> ProcessAnswer:
        if self.reloader is None:
            raise NotSupported("this process has no configuration to read again")
        result = await self.reloader(self._apply)
        self._report(order, operator, changed=result.changed)
        if result.problems:
            raise InvalidRequest(f"nothing was changed: {'; '.join(result.problems)}")
        if order.everywhere and self.book is not None:
            self.book.ask_reload()
        return ProcessAnswer(
            action=order.action.value,
            changed=result.changed,
            before=before,
            after=self.state(),
            applied=result.applied,
            needs_restart=result.needs_restart,
            warnings=result.warnings,
        )

    def _apply(self, fresh: Loaded) -> None:
        for apply in self._appliers:
            apply(fresh)
        if self.book is not None:
            self.book.given.notify()  # the record tells the keys that were read

    def _drained(self) -> DrainReport:
        before, now = self._before, self.work()
        finished = None
        if before is not None and before.done is not None and now.done is not None:
            finished = now.done - before.done
        seconds = 0.0 if before is None else round(trio.current_time() - self._began, 3)
        return DrainReport(unit=now.unit, finished=finished, left=now.left, seconds=seconds)

    def _report(self, order: ProcessOrder, operator: Operator, *, changed: bool) -> None:
        self.observer.report(
            ControlCalled.by(operator, order.action.value, changed=changed, reason=order.reason)
        )


@attrs.frozen
class ReloadFollower:
    """Reloads whenever another process of the pair asks all to."""

    process: ProcessControl

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; return at once if the process leaves no records."""
        task_status.started()
        book = self.process.book
        if book is None:
            return
        seen = book.reloads.version
        while True:
            seen = await book.reloads.wait(seen)
            await self.process.reload()
