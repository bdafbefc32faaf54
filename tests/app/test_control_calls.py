"""Each control call of the table, over HTTP, TLS and a Unix socket, as a command makes it."""

import json
import os
import pwd
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.app.assembly.parts import make_issuers
from gateway.app.endpoints import bind_endpoint, make_basis, tls_of
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.admin_endpoint import AdminEndpoint, admin_at
from gateway.app.operations.asking import give, give_to
from gateway.app.operations.certificates import make_certificates
from gateway.app.runtime import Runtime
from gateway.app.servers import Basis, Server, make_admin_server, make_http
from gateway.config.file import parse
from gateway.config.options import Config
from gateway.domain.errors import BrokerError, InvalidRequest, NotAuthorized, NotSupported
from gateway.domain.operators.control import (
    ControlAnswer,
    ControlQuery,
    ControlState,
    Operator,
    Order,
    Override,
)
from gateway.domain.operators.permissions import Permissions, Role
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder, ProbeResult
from gateway.domain.operators.process import (
    DrainReport,
    ProcessAnswer,
    ProcessOrder,
    ProcessState,
)
from gateway.domain.status.process import Status
from gateway.extensions.drill import order as drilling
from gateway.extensions.drill.order import Drill, DrillAnswer, DrillFault, DrillOrder, DrillState
from gateway.extensions.faults import order as faulting
from gateway.extensions.faults.order import (
    Fault,
    FaultAnswer,
    FaultKind,
    FaultOrder,
    FaultState,
    FaultsToClear,
)
from gateway.extensions.ledger.facts import (
    FACTS,
    Fact,
    FactsQuery,
    LedgerFacts,
    PairSide,
    Searched,
    Seen,
    What,
)
from gateway.extensions.move import order as moving
from gateway.extensions.move.order import (
    MoveAction,
    MoveOrder,
    MovePlan,
    MovesAnswer,
    MoveState,
    PlannedMove,
    PlanOrder,
)
from gateway.extensions.move.report import MoveReport
from gateway.extensions.move.stages import MoveStage
from gateway.extensions.outage_report.outage import (
    OUTAGES,
    DepthPoint,
    EntityOutage,
    OutageReport,
    RecordedOutage,
)
from gateway.extensions.purge import order as purging
from gateway.extensions.purge.order import PurgeAnswer, PurgeOrder
from gateway.extensions.redrive.order import (
    DEAD_LETTERS,
    REDRIVE,
    DeadLetterCount,
    DeadLetterList,
    DeadLetterQuery,
    Group,
    Redriven,
    RedriveOrder,
    Selection,
    Survey,
)
from gateway.extensions.sharding.shards import SHARDS, ShardReport, ShardsAnswer, ShardState
from gateway.fair_budget import FairBudget
from gateway.frontends.admin.control import ControlFrontend, Executor
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.refusals import Refusals
from gateway.net.tls import ClientTlsOptions
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate import control_calls as table
from gateway.wire.pairgate.control_call import ControlCall, NoKeys
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from tests.harness.patience import PATIENCE

KEY = "c2VjcmV0LW9mLXRoZS1vcGVyYXRvcnM="
WAYS = ("http", "tls", "unix")
DATE = datetime(2027, 1, 1, 12, tzinfo=UTC)
JSON = "application/json"

PIN = Override(target="bills/*", reason="why", operator="ann", since=DATE, until=DATE)
STATE = ControlState(entities={"orders": "pinned"}, pins=(PIN,), rate=2.5, has_pair=True)
RUNNING = Drill(
    namespace="east",
    targets=("orders",),
    fault=DrillFault.SLOW,
    delay=1.5,
    reason="",
    operator="ann",
    since=DATE,
    until=DATE,
)
SHARD = ShardReport(
    queue="orders",
    number=1,
    path="orders/x-pairgate-shard/1",
    namespace="east",
    state=ShardState.DRAINING,
    messages=0,
    is_empty=True,
    not_counted=("scheduled",),
)
OUTAGE = RecordedOutage(
    began=DATE,
    cause="refused",
    entities=(EntityOutage(entity="orders", began=DATE, diverted=None),),
    dead_lettered={"expired": 2},
    curve=(DepthPoint(at=DATE, pending=None),),
)
MOVES = MovesAnswer(
    to="west",
    moves=(
        MoveState(
            entity="orders",
            stage=MoveStage.TO_NEW,
            since=DATE,
            left=3,
            report=MoveReport(active=2, moved=("m1", "m2"), doubtful=("m3",), updated=DATE),
        ),
    ),
)
MOVE_ORDER = MoveOrder(action=MoveAction.START, targets=("orders",), force=True, reason="why")
MOVE_PLAN = MovePlan(
    to="west",
    entities=(PlannedMove(entity="orders", messages=3, problems=("no sessions",)),),
)
DRILLS = DrillState(allowed=True, longest=900.0, drill=RUNNING)
FAULT = Fault(
    id="1",
    kind=FaultKind.DELAY,
    entities=("orders",),
    operations=("send",),
    clients=("shop",),
    left=2,
    times=1,
    delay=0.5,
    reason="why",
    operator="ann",
    since=DATE,
    until=DATE,
)
FAULTS = FaultState(allowed=True, faults=(FAULT,))
FAULT_ORDER = FaultOrder(
    kind=FaultKind.DELAY,
    entities=("orders",),
    operations=("send",),
    clients=("shop",),
    count=3,
    seconds=60.0,
    delay=0.5,
    reason="why",
)
PROCESS = ProcessState(ready=True, reason="serving", log_level="info", access=("ops",))
Call = ControlCall[Any, Any]


def steered(call: Call) -> tuple[Order, ControlAnswer]:
    order = Order(
        **call.fixed, targets=("orders", "bills/*"), reason="case 4711", until=DATE, rate=2.5
    )
    answer = ControlAnswer(
        action=call.name, targets=order.targets, changed=True, before=ControlState(), after=STATE
    )
    return order, answer


def drilled(action: str) -> DrillAnswer:
    return DrillAnswer(action=action, changed=True, before=DRILLS, after=DRILLS)


def faulted(action: str) -> FaultAnswer:
    return FaultAnswer(action=action, changed=True, faults=(FAULT,), after=FAULTS)


def of_process(action: str, report: DrainReport | None = None) -> ProcessAnswer:
    return ProcessAnswer(
        action=action,
        changed=True,
        before=PROCESS,
        after=PROCESS,
        needs_restart=("listener",),
        report=report,
    )


PROBED = ProbeAnswer(
    action="probe",
    targets=("orders",),
    changed=True,
    before={"orders": "secondary"},
    after={"orders": "half-open"},
    probes={"orders": ProbeResult(answered=True, seconds=0.01)},
    more=2,
)
SELECTION = Selection(reasons=("a",), entities=("orders/*", "b"), before=DATE)
DRILL = DrillOrder(
    seconds=30.0, fault=DrillFault.SLOW, targets=("orders",), namespace="east", delay=1.5
)
PURGE = PurgeOrder(queue="q", dead_letters=True, confirm="q", messages=3, reason="why")
COUNTED = Survey(
    groups=(Group(reason="a", entity=None, messages=2, moves=1, oldest=DATE, problem="no path"),),
    problems=("silent",),
    is_outage=True,
)

# A request and its answer for each call.
EXAMPLES: Mapping[Call, tuple[Any, Any]] = {
    table.CONTROL: (ControlQuery(targets=("orders", "bills/*")), STATE),
    table.PERMISSIONS: (NoKeys(), None),  # the front end's own answer
    **{
        call: steered(call)
        for call in (table.FAILOVER, table.FAILBACK, table.PAUSE, table.RESUME, table.RATE)
    },
    table.PROBE: (ProbeOrder(targets=("orders",), reason="the disk is free"), PROBED),
    REDRIVE: (
        RedriveOrder(selection=SELECTION, executes=True, rate=2.5, most=7),
        Redriven(moved=1, left=2, problems=("full",), is_outage=True),
    ),
    DEAD_LETTERS: (
        DeadLetterQuery(namespace="north"),
        DeadLetterList(entities=(DeadLetterCount(entity="orders", messages=None),), total=2),
    ),
    purging.PURGE: (PURGE, PurgeAnswer(queue="q", dead_letters=True, messages=3, purged=2, left=1)),
    drilling.DRILLS: (NoKeys(), DRILLS),
    SHARDS: (NoKeys(), ShardsAnswer(shards=(SHARD,))),
    moving.MOVES: (NoKeys(), MOVES),
    moving.MOVE: (MOVE_ORDER, MOVES),
    moving.PLAN_MOVE: (PlanOrder(targets=("orders",)), MOVE_PLAN),
    FACTS: (
        FactsQuery(message="m,1", entity="orders", search=True, since=DATE, until=DATE, after=3),
        LedgerFacts(
            process="gw/7",
            ledger="f00",
            facts=(
                Fact(
                    at=DATE,
                    message="m,1",
                    entity="orders",
                    side=PairSide.SECONDARY,
                    what=What.UNKNOWN,
                    queue="east/0",
                    why="no answer",
                ),
            ),
            since=DATE,
            next=4,
            gaps=(DATE,),
            seen=(
                Seen(
                    side=PairSide.PRIMARY,
                    queue="orders",
                    state="Active",
                    number=1,
                    deliveries=0,
                    since=None,
                ),
            ),
            searched=(Searched(side=PairSide.PRIMARY, queue="orders", whole=True),),
        ),
    ),
    OUTAGES: (NoKeys(), OutageReport(outages=(OUTAGE,), markdown="# Outage")),
    drilling.DRILL: (DRILL, drilled("drill")),
    faulting.FAULTS: (NoKeys(), FAULTS),
    faulting.ADD_FAULT: (FAULT_ORDER, faulted("add-fault")),
    faulting.CLEAR_FAULTS: (FaultsToClear(ids=("1",)), faulted("clear-faults")),
    drilling.END_DRILL: (NoKeys(), drilled("end-drill")),
    table.RELOAD: (ProcessOrder(**table.RELOAD.fixed, reason="new batch"), of_process("reload")),
    table.DRAIN: (
        ProcessOrder(**table.DRAIN.fixed, wait=True),
        of_process("drain", DrainReport(unit="connections", finished=12, left=None, seconds=0.3)),
    ),
}
ORDERS = [call for call in CONTROL_CALLS if not call.reads]


def name_of(call: Call) -> str:
    return f"{call.method} {call.name}"


@attrs.define(eq=False)
class Site:
    """An endpoint that executes every call with its example, and remembers the requests."""

    config: Config
    authority: Path
    audit: Path
    urls: dict[str, str] = attrs.field(factory=dict)
    given: list[tuple[Call, Any, Operator]] = attrs.field(factory=list)
    error: BrokerError | None = None

    def choice(self, way: str, name: str) -> AdminChoice:
        credentials = None if way == "unix" else f"{name}:{KEY}"
        tls = ClientTlsOptions(ca=self.authority)
        return AdminChoice(url=self.urls[way], credentials=credentials, tls=tls)

    def endpoint(self, way: str = "http", name: str = "operators") -> AdminEndpoint:
        return admin_at(self.config, self.urls[way], "--url", self.choice(way, name))

    async def post(
        self, call: Call, body: bytes, kind: str = JSON, name: str = "operators"
    ) -> tuple[int, str]:
        """The status and the error of the answer to that body."""
        response = await self.send(call.path, body, {"Content-Type": kind}, name)
        return response.status, json.loads(response.body).get("error", "")

    async def post_json(self, call: Call, order: object) -> tuple[int, str]:
        return await self.post(call, json.dumps(order).encode())

    async def send(
        self, path: str, body: bytes, fields: Mapping[str, str], name: str = "operators"
    ) -> Response:
        endpoint = self.endpoint(name=name)
        right = purging.PURGE.least_right
        headers = Headers.of({"Authorization": endpoint.authorization(right) or "", **fields})
        async with endpoint.client() as client:
            return await client.request(
                Request(method="POST", target=path, headers=headers, body=body)
            )

    def audited(self) -> list[dict[str, Any]]:
        lines = self.audit.read_text().splitlines() if self.audit.exists() else []
        return [json.loads(line) for line in lines]

    def executors(self) -> list[Executor[Any, Any]]:
        return [Executor(call, partial(self._execute, call)) for call in CONTROL_CALLS]

    async def _execute(self, call: Call, request: Any, operator: Operator) -> Any:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.given.append((call, request, operator))
        return COUNTED if call is REDRIVE and not request.executes else EXAMPLES[call][1]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder, Runtime.now())
    return folder


@pytest.fixture
def socket() -> Iterator[Path]:
    """A path that is short enough for the address of a socket."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        yield Path(folder) / "admin.sock"


@pytest.fixture
def config(certificates: Path, socket: Path, tmp_path: Path) -> Config:
    policies = "".join(
        f'[[access]]\nname = "{name}"\nkey = {{ env = "KEY" }}\nrights = ["{right}"]\n'
        for name, right in (("operators", "Manage"), ("readers", "Listen"), ("senders", "Send"))
    )
    tls = f'{{ certificate = "{certificates}/server.pem", key = "{certificates}/server.key" }}'
    text = f"""
[namespaces.here]
url = "memory:"
[audit]
file = "{tmp_path}/audit.jsonl"
{policies}
[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"
[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"
tls = {tls}
[[endpoints]]
protocol = "admin"
bind = "unix:{socket}"
"""
    return parse(text, source="x.toml", folder=tmp_path, environ={"KEY": KEY}).config


async def _status() -> Status:
    raise AssertionError("no control call reads the status")


@asynccontextmanager
async def open_site(
    config: Config, certificates: Path, *, executes: bool = True
) -> AsyncIterator[Site]:
    site = Site(config, certificates / "ca.pem", config.audit.file)  # type: ignore[union-attr]
    runtime, executors = Runtime(), site.executors() if executes else []
    refusals = Refusals(runtime.observer)

    def make(basis: Basis, *, secure: bool) -> Server:
        control = ControlFrontend(basis.authorizer, CONTROL_CALLS, executors)
        figures = FiguresFrontend(
            authorizer=basis.authorizer, read=_status, exposition=lambda _: b"", control=control
        )
        return make_admin_server(basis, figures)

    async with trio.open_nursery() as nursery:
        for number, way in enumerate(WAYS):
            budget, issuers = FairBudget(10_000_000, 10_000_000), make_issuers(config, runtime)
            basis = make_basis(config, number, refusals, runtime, budget, issuers)
            server = make_http(partial(make, basis), basis, tls_of(config, number))
            port = await bind_endpoint(config, number, runtime, refusals, 0)
            await nursery.start(partial(port.serve, server.serve_connection, connections=nursery))
            site.urls[way] = _url(way, port.address)
        with trio.fail_after(PATIENCE):
            yield site
        nursery.cancel_scope.cancel()


def _url(way: str, address: str) -> str:
    port = address.rpartition(":")[2]
    return {"http": f"http://{address}", "tls": f"https://localhost:{port}"}.get(way, address)


def test_each_call_has_an_example() -> None:
    assert set(EXAMPLES) == set(CONTROL_CALLS)


@pytest.mark.parametrize("way", WAYS)
async def test_each_call_is_executed_answered_and_audited(
    config: Config, certificates: Path, way: str
) -> None:
    name = pwd.getpwuid(os.getuid()).pw_name if way == "unix" else "operators"
    executed = [call for call in CONTROL_CALLS if call is not table.PERMISSIONS]
    async with open_site(config, certificates) as site:
        choice = site.choice(way, "operators")
        answers = [(await give(config, choice, call, EXAMPLES[call][0]))[1] for call in executed]
        _, permissions = await give(config, choice, table.PERMISSIONS, NoKeys())
        given, audited = site.given, site.audited()

    assert answers == [EXAMPLES[call][1] for call in executed]
    assert [(call, request) for call, request, _ in given] == [
        (call, EXAMPLES[call][0]) for call in executed
    ]
    assert {operator.name for *_, operator in given} == {name}
    assert permissions == Permissions(
        name=name, role=Role.OPERATOR, actions=tuple(call.name for call in ORDERS)
    )
    assert [line["call"] for line in audited] == [call.path for call in ORDERS]
    for call, line in zip(ORDERS, audited, strict=True):
        request, answer = EXAMPLES[call]
        value = json.loads(call.build_answer(answer))
        assert (line["operator"], line["status"]) == (name, 200), line
        assert line["order"] == json.loads(call.build(request))
        assert {key: line.get(key) for key in call.audited} == {
            key: value[key] for key in call.audited
        }
    assert KEY not in json.dumps(audited)


@pytest.mark.parametrize("way", ["http", "tls"])
async def test_a_client_without_the_right_executes_nothing(
    config: Config, certificates: Path, way: str
) -> None:
    tries = [(call, name) for call in ORDERS for name in ("senders", "readers")]
    tries += [(call, "senders") for call in CONTROL_CALLS if call.reads]
    async with open_site(config, certificates) as site:
        for call, name in tries:
            with pytest.raises(NotAuthorized, match="claim"):
                await give_to(site.endpoint(way, name), call, EXAMPLES[call][0])
        judged_first = [await site.post(call, b"nonsense", name="senders") for call in ORDERS]
        given, audited = site.given, site.audited()

    assert given == []
    assert {status for status, _ in judged_first} == {401}
    assert {line["status"] for line in audited} == {401}
    names = [(line["operator"], line["call"]) for line in audited]
    # Without any right a client has no name. A reader may count dead letters.
    assert [name for name in names if name[0] != "unknown"] == [("readers", "/v1/redrive")]


@pytest.mark.parametrize("way", ["http", "tls"])
async def test_a_reader_reads_and_counts(config: Config, certificates: Path, way: str) -> None:
    count = RedriveOrder(selection=Selection(), peek=7)
    async with open_site(config, certificates) as site:
        reader = site.endpoint(way, "readers")
        counted = await give_to(reader, REDRIVE, count)
        role = await give_to(reader, table.PERMISSIONS, NoKeys())
        state = await give_to(reader, table.CONTROL, ControlQuery())
        drills = await give_to(reader, drilling.DRILLS, NoKeys())
        [line] = site.audited()

    assert (line["operator"], line["call"], line["status"]) == ("readers", "/v1/redrive", 200)
    assert (counted, state, drills) == (COUNTED, STATE, DRILLS)
    assert role == Permissions(name="readers", role=Role.READER, actions=())


async def test_a_process_without_the_part_refuses_the_call(
    config: Config, certificates: Path
) -> None:
    errors = {}
    async with open_site(config, certificates, executes=False) as site:
        for call in ORDERS:
            errors[call.name] = await site.post(call, b"nonsense")

    assert errors == {call.name: (501, call.why_not) for call in ORDERS}


def test_a_call_without_its_part_is_refused_by_what_is_missing():
    refused = {call.path: call.why_not for call in CONTROL_CALLS}

    assert "keeps no ledger" in refused["/v1/facts"]
    assert refused["/v1/failover"] == "this process has nothing to failover"


async def test_a_refusal_by_the_part_is_answered_and_audited(
    config: Config, certificates: Path
) -> None:
    async with open_site(config, certificates) as site:
        site.error = NotSupported("no syphon runs in this process")
        for call in ORDERS:
            with pytest.raises(NotSupported, match="no syphon runs"):
                await give_to(site.endpoint(), call, EXAMPLES[call][0])
        audited = site.audited()

    assert [(line["call"], line["status"], line["error"]) for line in audited] == [
        (call.path, 501, "no syphon runs in this process") for call in ORDERS
    ]


@pytest.mark.parametrize("call", ORDERS, ids=name_of)
async def test_an_order_is_strict_json(config: Config, certificates: Path, call: Call) -> None:
    """The call, the key and what is expected are in each error."""
    good = json.loads(call.build(EXAMPLES[call][0]))
    texts = [b"{", b"[]", b"null", b'"*"', b"\xff", b"[" * 100_000]
    texts += [b'{"reason": "a", "reason": "b"}', b'{"rate": 1e999}']
    keys = [key.name for key in call.keys]
    required = [key.name for key in call.keys if call.is_required(key)]
    async with open_site(config, certificates) as site:
        broken = [await site.post(call, text) for text in texts]
        unknown = await site.post_json(call, {**good, "unheard": 1})
        typed = [await site.post_json(call, {**good, key: [1]}) for key in keys]
        lacking = [
            await site.post_json(call, {name: good[name] for name in good if name != key})
            for key in required
        ]
        form = await site.post(call, json.dumps(good).encode(), "text/plain")
        given, audited = site.given, site.audited()

    assert [status for status, _ in broken] == [400] * len(texts)
    assert all(error.startswith(f"{call.name}: ") for _, error in broken)
    assert unknown == (400, f"{call.name}: unknown: unheard")
    for key, (status, error) in zip(keys, typed, strict=True):
        assert status == 400
        assert error.startswith(f"{call.name}: {key}: ")
        assert error.endswith(" expected")
    assert lacking == [(400, f"{call.name}: {key}: is missing") for key in required]
    assert form == (400, "Content-Type: application/json expected")
    assert given == []
    assert {line["status"] for line in audited} == {400}
    assert [line["order"] for line in audited[:2]] == ["{", "[]"]  # as they were given


@pytest.mark.parametrize(
    ("call", "changes", "problem"),
    [
        (table.FAILOVER, {"targets": []}, "targets: 1 to 100 expected, got 0"),
        (table.FAILOVER, {"targets": ["a//b"]}, "target 'a//b'"),
        (table.FAILOVER, {"targets": "orders"}, "targets: a list of texts expected"),
        (table.FAILOVER, {"until": "6"}, "until: a date with a time zone expected"),
        (table.FAILOVER, {"until": "2026-01-01T00:00:00"}, "until: a date with a time zone"),
        (table.FAILOVER, {"reason": "x" * 201}, "reason: at most 200 characters expected"),
        (table.FAILOVER, {"reason": None}, "reason: a text expected"),
        (table.FAILOVER, {"action": "pause"}, "action: "),
        (table.RATE, {"rate": 0}, "'rate' must be > 0"),
        (table.RATE, {"rate": True}, "rate: a number expected"),
        (drilling.DRILL, {"seconds": 0}, "seconds: a number above 0 expected, got 0"),
        (drilling.DRILL, {"fault": "explode"}, "fault: refuse, hang, slow or busy expected"),
        (drilling.DRILL, {"targets": []}, "targets: 1 to 100 expected, got 0"),
        (purging.PURGE, {"messages": True}, "messages: a whole number expected"),
        (purging.PURGE, {"messages": None}, "messages: the number of messages that were seen"),
        (purging.PURGE, {"confirm": "other"}, "confirm: the name of the queue expected"),
        (REDRIVE, {"most": 0}, "'most' must be >= 1"),
        (REDRIVE, {"most": 1001}, "'most' must be <= 1000"),
        (REDRIVE, {"rate": "fast"}, "rate: a number expected"),
        (REDRIVE, {"executes": 1}, "executes: true or false expected"),
        (REDRIVE, {"most": 5.5}, "most: a whole number expected"),
        (REDRIVE, {"spool": "no"}, "spool: true or false expected"),
        (REDRIVE, {"selection": "all"}, "selection: an object expected"),
        (REDRIVE, {"selection": {"entities": "orders"}}, "selection.entities: a list of"),
        (REDRIVE, {"selection": {"after": "now"}}, "selection.after: a date with"),
        (REDRIVE, {"selection": {"after": 5}}, "selection.after: a date with"),
        (REDRIVE, {"selection": {"unheard": 1}}, "selection: unknown: unheard"),
        (table.RELOAD, {"wait": True}, "wait: is for a drain"),
    ],
)
def test_a_limit_is_named(call: Call, changes: dict[str, Any], problem: str) -> None:
    good = json.loads(call.build(EXAMPLES[call][0]))

    with pytest.raises(InvalidRequest, match=f"^{call.name}: .*{re.escape(problem)}"):
        call.parse(json.dumps({**good, **changes}).encode(), {})


async def test_keys_with_a_default_may_be_missing(config: Config, certificates: Path) -> None:
    async with open_site(config, certificates) as site:
        answers = [
            await site.post(table.PAUSE, b""),
            await site.post(drilling.END_DRILL, b"{}"),
            await site.post(drilling.DRILL, b'{"seconds": 1}'),
            await site.post(REDRIVE, b'{"selection": {}}'),
            # as the commands of other versions send it
            await site.post(table.RELOAD, b'{"reason": "", "wait": false}'),
        ]
        orders = [order for _, order, _ in site.given]

    assert answers == [(200, "")] * 5
    assert orders == [
        Order(**table.PAUSE.fixed),
        NoKeys(),
        DrillOrder(seconds=1),
        RedriveOrder(selection=Selection()),
        ProcessOrder(**table.RELOAD.fixed),
    ]


async def test_an_old_path_takes_a_body_without_a_type_but_not_from_a_page(
    config: Config, certificates: Path
) -> None:
    """A browser sends the key of HTTP Basic that it knows with a form, too."""
    body = REDRIVE.build(EXAMPLES[REDRIVE][0])
    async with open_site(config, certificates) as site:
        done = await site.send("/redrive", body, {})
        page = await site.send("/redrive", body, {"Origin": site.urls["http"]})
        audited = site.audited()

    assert (done.status, page.status, len(site.given)) == (200, 400, 1)
    assert [(line["call"], line["status"]) for line in audited] == [
        ("/redrive", 200),
        ("/redrive", 400),
    ]
