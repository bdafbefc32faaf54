"""The real admin front end in a thread of its own, with a prepared status: for a browser."""

import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import trio

from gateway.app.operations.control_calls import of_control, of_process
from gateway.app.runtime import Runtime
from gateway.demo.ports import free_port
from gateway.domain.access import AccessPolicy, Refusal
from gateway.domain.errors import InvalidRequest
from gateway.domain.events.gateway import Event
from gateway.domain.health.depth_history import DepthSample
from gateway.domain.operators.control import (
    MOST,
    Action,
    ControlAnswer,
    ControlState,
    Operator,
    Order,
    Override,
    matches,
)
from gateway.domain.operators.known_targets import refusal_of, unknown_among
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder, ProbeResult
from gateway.domain.operators.process import (
    DrainReport,
    ProcessAction,
    ProcessAnswer,
    ProcessOrder,
    ProcessState,
)
from gateway.domain.status.process import Status
from gateway.extensions.drill.feature import executors as drills
from gateway.extensions.drill.order import Drill, DrillAnswer, DrillOrder, DrillState
from gateway.extensions.purge.order import PURGE, PurgeAnswer, PurgeOrder
from gateway.extensions.redrive.feature import executor as redrive
from gateway.extensions.redrive.feature import listing
from gateway.extensions.redrive.order import (
    Group,
    Redriven,
    RedriveOrder,
    Sample,
    Selection,
    Survey,
)
from gateway.extensions.redrive.redrive import QueueRedrive
from gateway.frontends.admin.control import ControlFrontend, Executor
from gateway.frontends.admin.events import EventsFrontend
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.web_guard import Guarded, WebGuard
from gateway.net.http.server import HttpServer
from gateway.net.listeners import open_listener
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.recent_events import RecentEvents
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from tests.harness.patience import PATIENCE

T = TypeVar("T")


def now() -> datetime:
    return datetime.now(UTC)


@attrs.define(eq=False)
class Steered:
    """Executes orders as far as a page sees them: they are in effect, and remembered."""

    orders: list[tuple[Order, Operator]] = attrs.field(factory=list)
    probes: list[ProbeOrder] = attrs.field(factory=list)
    pins: tuple[Override, ...] = ()
    pauses: tuple[Override, ...] = ()
    entities: Mapping[str, str] = attrs.field(factory=dict)  # their states
    not_reached: tuple[str, ...] = ()
    has_pair: bool = True  # False: a process that is a syphon alone
    is_pair_wide: bool = False  # True: other processes follow the orders

    async def order(self, order: Order, operator: Operator) -> ControlAnswer:
        await trio.lowlevel.checkpoint()
        if self.entities and not order.force:
            unknown = unknown_among(order.targets, self.entities)
            if unknown:
                raise InvalidRequest(refusal_of(unknown, self.entities))
        before = self.state()
        self.orders.append((order, operator))
        given = tuple(
            Override(
                target=target,
                reason=order.reason,
                operator=operator.name,
                since=now(),
                until=order.until,
            )
            for target in order.targets
        )
        match order.action:
            case Action.FAILOVER:
                self.pins = given
            case Action.FAILBACK:
                self.pins = ()
            case Action.PAUSE:
                self.pauses = given
            case Action.RESUME:
                self.pauses = ()
        return ControlAnswer(
            action=order.action.value,
            targets=order.targets,
            changed=True,
            before=before,
            after=self.state(),
        )

    async def probe(self, order: ProbeOrder, operator: Operator) -> ProbeAnswer:
        await trio.lowlevel.checkpoint()
        self.probes.append(order)
        return ProbeAnswer(
            action="probe",
            targets=order.targets,
            changed=True,
            before=dict.fromkeys(order.targets, "secondary"),
            after=dict.fromkeys(order.targets, "half-open"),
            probes={each: ProbeResult(answered=True, seconds=0.012) for each in order.targets},
        )

    def state(self, targets: Sequence[str] = ("*",)) -> ControlState:
        names = [name for name in self.entities if any(matches(each, name) for each in targets)]
        return ControlState(
            entities={name: self.entities[name] for name in names[:MOST]},
            pins=self.pins,
            pauses=self.pauses,
            has_pair=self.has_pair,
            has_syphon=True,
            not_reached=self.not_reached,
        )


@attrs.define(eq=False)
class Redriving:
    """Answers a redrive of dead letters, and remembers it."""

    runs: list[Selection] = attrs.field(factory=list)
    survey_of: Survey = attrs.field(factory=Survey)

    async def survey(self, selection: Selection, peek: int = 0, preview: int = 0) -> Survey:
        await trio.lowlevel.checkpoint()
        assert peek == 20
        return self.survey_of

    async def run(
        self,
        selection: Selection,
        *,
        add: Callable[[Redriven], None],
        rate: float | None = None,
        most: float,
        reason: str = "",
    ) -> Redriven:
        await trio.lowlevel.checkpoint()
        self.runs.append(selection)
        return Redriven(moved=2, left=1, problems=("orders: missing",))


DEAD: Final = Survey(
    groups=(
        Group(
            reason="EntityNotFound",
            entity="<img src=x onerror=alert(3)>",
            messages=2,
            moves=2,
            oldest=now() - timedelta(hours=5),
        ),
        Group(reason="NotOurs", entity=None, messages=1, problem="no envelope"),
    ),
    samples=(
        Sample(
            reason="EntityNotFound",
            entity="<img src=x onerror=alert(3)>",
            message_id="<script>alert(4)</script>",
            enqueued=now() - timedelta(hours=5),
            size=70_000,
            problem="",
        ),
    ),
)


@attrs.define(eq=False)
class Drilling:
    """Begins and ends a drill, as far as a page sees it."""

    orders: list[DrillOrder] = attrs.field(factory=list)
    drill: Drill | None = None

    def begin(self, order: DrillOrder, operator: Operator) -> DrillAnswer:
        before = self.state()
        self.orders.append(order)
        self.drill = Drill(
            namespace=order.namespace or "north",
            targets=order.targets,
            fault=order.fault,
            delay=order.delay,
            reason=order.reason,
            operator=operator.name,
            since=now(),
            until=now() + timedelta(seconds=order.seconds),
        )
        return DrillAnswer(action="drill", changed=True, before=before, after=self.state())

    def end(self, operator: Operator) -> DrillAnswer:
        before, self.drill = self.state(), None
        return DrillAnswer(action="end-drill", changed=True, before=before, after=self.state())

    def state(self) -> DrillState:
        return DrillState(allowed=True, longest=900.0, drill=self.drill)


@attrs.define(eq=False)
class Processing:
    """Executes orders to the process as a whole, and remembers them."""

    orders: list[ProcessOrder] = attrs.field(factory=list)

    async def execute(self, order: ProcessOrder, operator: Operator) -> ProcessAnswer:
        await trio.lowlevel.checkpoint()
        self.orders.append(order)
        state = ProcessState(ready=True, reason="serving", log_level="info", access=("ops",))
        reloads = order.action is ProcessAction.RELOAD
        return ProcessAnswer(
            action=order.action.value,
            changed=True,
            before=state,
            after=state,
            needs_restart=("endpoints",) if reloads else (),
            report=None
            if reloads
            else DrainReport(unit="connections", finished=12, left=0, seconds=0.3),
        )


@attrs.define(eq=False)
class Purging:
    """Counts and deletes seven messages, and remembers the orders."""

    orders: list[PurgeOrder] = attrs.field(factory=list)

    async def execute(self, order: PurgeOrder, operator: Operator) -> PurgeAnswer:
        await trio.lowlevel.checkpoint()
        self.orders.append(order)
        return PurgeAnswer(
            queue=order.queue,
            dead_letters=order.dead_letters,
            messages=7,
            purged=order.messages or 0,
        )


@attrs.define(eq=False)
class Site:
    """
    `told` makes the status at each request; `stop` and `start` end and begin to serve, at the same
    address. All of it may be called from the test's thread.
    """

    told: Callable[[], Status]
    policies: Sequence[AccessPolicy] = ()
    history: Callable[[], Iterable[DepthSample]] = tuple
    control: Steered = attrs.field(factory=Steered)
    redriving: Redriving = attrs.field(factory=Redriving)
    drilling: Drilling = attrs.field(factory=Drilling)
    processing: Processing = attrs.field(factory=Processing)
    purging: Purging = attrs.field(factory=Purging)
    broker: Any = attrs.field(factory=lambda: MemoryBroker(now, random.Random(0)))
    requests: list[Request] = attrs.field(factory=list)
    refused: list[Refusal] = attrs.field(factory=list)
    recent: RecentEvents = attrs.field(factory=lambda: RecentEvents(now))
    port: int = attrs.field(factory=free_port)
    _token: trio.lowlevel.TrioToken | None = None
    _scope: trio.CancelScope | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve, ready))
        self._thread.start()
        assert ready.wait(PATIENCE)

    def stop(self) -> None:
        assert self._token is not None
        assert self._scope is not None
        assert self._thread is not None
        trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def report(self, *events: Event) -> None:
        """Report events as the gateway's parts do."""

        def report() -> None:
            for event in events:
                self.recent.record(event)

        trio.from_thread.run_sync(report, trio_token=self._token)

    def run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do something with the namespace, in the site's thread."""
        return trio.from_thread.run(work, self.broker, trio_token=self._token)

    def _of_queue(self, order: RedriveOrder) -> QueueRedrive:
        return QueueRedrive.of(order, self.broker, Runtime())

    def _executors(self) -> list[Executor[Any, Any]]:
        parts: Any = self  # its own parts, which behave as those of a gateway
        return [
            *of_control(parts.control),
            *drills(parts.drilling),
            *of_process(parts.processing),
            *(
                attrs.evolve(each, works=lambda: self.control.has_pair)
                for each in (
                    Executor(PURGE, parts.purging.execute),
                    redrive(parts.redriving, None, self._of_queue),
                    listing(lambda name: self.broker),
                )
            ),
        ]

    async def _serve(self, ready: threading.Event) -> None:
        authorizer = Authorizer(
            self.policies,
            wall_clock=now,
            accepts_well_known_key=True,
            on_refused=lambda name, why: self.refused.append(why),
        )
        figures = FiguresFrontend(
            authorizer=authorizer,
            read=self._read,
            exposition=lambda status: b"",
            control=ControlFrontend(authorizer, CONTROL_CALLS, self._executors()),
            history=lambda: self.history(),
            events=EventsFrontend(authorizer, self.recent),
        )

        frontend = AdminFrontend(
            broker=self.broker,
            authorizer=authorizer,
            wall_clock=now,
            figures=figures,
        )

        async def handle(request: Request) -> Response:
            self.requests.append(request)
            return await frontend.handle(request)

        guard = WebGuard(is_open=lambda: authorizer.is_open)
        guarded = Guarded(
            guard=guard, frontend=frontend, handler=handle, prepare=authorizer.prepare
        )
        server = HttpServer(
            handler=guarded.handle,
            check_head=guarded.check_head,
            error_body=frontend.refuse,
            wall_clock=now,
        )
        port = await open_listener(f"127.0.0.1:{self.port}", on_crash=_crashed)
        async with trio.open_nursery() as nursery:
            self._token, self._scope = trio.lowlevel.current_trio_token(), nursery.cancel_scope
            await nursery.start(partial(port.serve, server.serve_connection, connections=nursery))
            ready.set()

    async def _read(self) -> Status:
        await trio.lowlevel.checkpoint()
        return self.told()


def _crashed(peer: str, error: BaseException) -> None:
    raise error


@contextmanager
def open_site(told: Callable[[], Status], policies: Sequence[AccessPolicy] = ()) -> Iterator[Site]:
    site = Site(told, policies)
    site.start()
    try:
        yield site
    finally:
        if site._thread is not None and site._thread.is_alive():
            site.stop()
