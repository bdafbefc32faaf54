"""Reload and drain of a process: idempotent, and nothing is changed by a wrong configuration."""

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from gateway.app.logs import Reloader
from gateway.app.process_control import ProcessControl, ReloadFollower
from gateway.config.file import Loaded, parse
from gateway.domain.errors import InvalidRequest, NotSupported
from gateway.domain.events.control import ControlCalled
from gateway.domain.events.gateway import Event
from gateway.domain.operators.control import Operator
from gateway.domain.operators.process import (
    DrainReport,
    ProcessAction,
    ProcessOrder,
    Workload,
)
from gateway.frontends.admin.readiness import Readiness
from gateway.pairing.records.order_book import OrderBook
from gateway.telemetry.log import LogObserver
from tests.frontends.rest_client import wall_clock

ONE = '[namespaces.here]\nurl = "memory:"\n'
ACCESS = '[[access]]\nname = "ops"\nkey = { env = "KEY" }\nrights = ["Manage"]\n'
SHIFT = Operator(name="night-shift", peer="127.0.0.1:1")
RELOAD = ProcessOrder(action=ProcessAction.RELOAD)
DRAIN = ProcessOrder(action=ProcessAction.DRAIN, reason="upgrade")


def loaded(text: str) -> Loaded:
    environ = {"KEY": "a key of sixteen bytes"}
    return parse(text, source="x", folder=Path("/nowhere"), environ=environ)


@attrs.define
class Process:
    """A process that has some work."""

    text: str = ONE
    reported: list[Event] = attrs.field(factory=list)
    reasons: list[str] = attrs.field(factory=list)
    applied: list[Loaded] = attrs.field(factory=list)
    done: int = 3
    left: int = 2
    readiness: Readiness = attrs.field(factory=Readiness)

    def report(self, event: Event) -> None:
        self.reported.append(event)

    def ask_end(self, reason: str) -> None:
        self.reasons.append(reason)
        self.readiness.end(reason)

    def control(self, reloader: Reloader | None = None) -> ProcessControl:
        control = ProcessControl(
            observer=self,
            readiness=self.readiness,
            ask_end=self.ask_end,
            work=lambda: Workload(unit="connections", done=self.done, left=self.left),
            reloader=reloader,
        )
        control.on_reload(self.applied.append)
        return control

    def reloadable(self) -> ProcessControl:
        log = LogObserver(lambda line: None, as_json=True, level="info", clock=wall_clock)
        return self.control(Reloader(loaded(ONE), log, lambda: loaded(self.text)))

    def changes(self) -> list[bool]:
        return [each.changed for each in self.reported if isinstance(each, ControlCalled)]


async def test_a_reload_says_what_it_applied_and_what_needs_a_restart() -> None:
    process = Process(text=f"workers = 2\n{ONE}{ACCESS}")
    control = process.reloadable()

    first = await control.execute(RELOAD, SHIFT)
    second = await control.execute(RELOAD, SHIFT)

    assert (first.changed, second.changed) == (True, False)
    assert (first.before.access, first.after.access) == ((), ("ops",))
    assert first.needs_restart == second.needs_restart == ("workers",)
    assert process.changes() == [True, False]
    assert len(process.applied) == 2


async def test_a_reload_for_all_is_told_to_the_pair_once_it_has_succeeded_here() -> None:
    process = Process(text="bogus = 1")
    control, book = process.reloadable(), OrderBook(process="p1", clock=wall_clock)
    control.book = book

    with pytest.raises(InvalidRequest):
        await control.execute(attrs.evolve(RELOAD, everywhere=True), SHIFT)
    refused = book.reload
    process.text = ONE
    await control.execute(RELOAD, SHIFT)
    here = book.reload, book.given.version
    await control.execute(attrs.evolve(RELOAD, everywhere=True), SHIFT)

    assert (refused, here) == (0, (0, 1))  # the record tells the keys again
    assert book.reload > 0


async def test_a_process_reloads_whenever_another_one_asks_all_to() -> None:
    process = Process(text=f"{ONE}{ACCESS}")
    control = process.reloadable()
    control.book = OrderBook(process="p1", clock=wall_clock)
    applied = trio.Event()
    control.on_reload(lambda _: applied.set())
    async with trio.open_nursery() as nursery:
        await nursery.start(ReloadFollower(control).run)
        control.book.hear_reload(0)
        control.book.hear_reload(1)
        await applied.wait()
        nursery.cancel_scope.cancel()

    assert control.state().access == ("ops",)


async def test_a_wrong_configuration_changes_nothing() -> None:
    process = Process(text=f"{ONE}{ACCESS}bogus = 1\n")
    control = process.reloadable()
    before = control.state()

    with pytest.raises(InvalidRequest, match=r"nothing was changed: x: access.*bogus"):
        await control.execute(RELOAD, SHIFT)

    assert control.state() == before
    assert process.applied == []
    assert process.changes() == [False]


async def test_a_process_without_a_file_refuses_a_reload() -> None:
    with pytest.raises(NotSupported):
        await Process().control().execute(RELOAD, SHIFT)


async def test_a_drain_begins_once_and_tells_the_state_before_and_after() -> None:
    process = Process()
    control = process.control()

    first = await control.execute(DRAIN, SHIFT)
    second = await control.execute(DRAIN, SHIFT)

    assert process.reasons == ["by night-shift: upgrade"]
    assert (first.changed, first.before.ready, first.after.ready) == (True, True, False)
    assert (second.changed, second.before, second.after) == (False, first.after, first.after)
    assert first.report is None


async def test_everybody_who_waits_for_a_drain_gets_its_report(
    autojump_clock: trio.testing.MockClock,
) -> None:
    process = Process()
    control = process.control()
    reports: list[DrainReport | None] = []

    async def wait() -> None:
        answer = await control.execute(attrs.evolve(DRAIN, wait=True), SHIFT)
        reports.append(answer.report)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.sleep(2)
        process.done, process.left = 4, 1
        control.ended.set()

    assert reports == [DrainReport(unit="connections", finished=1, left=1, seconds=2.0)] * 2


async def test_a_second_signal_cuts_a_drain_that_an_operator_began() -> None:
    process = Process()
    control = process.control()
    await control.execute(DRAIN, SHIFT)

    control.drain("SIGTERM")

    assert process.reasons == ["by night-shift: upgrade", "SIGTERM"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProcessOrder(action=ProcessAction.RELOAD, wait=True),
        lambda: ProcessOrder(action=ProcessAction.DRAIN, reason="x" * 201),
    ],
)
def test_malformed_orders_are_refused(make: Callable[[], ProcessOrder]) -> None:
    with pytest.raises(InvalidRequest):
        make()
