"""Control over HTTP: asked without a socket, by clients with and without the right."""

import json
import os
import pwd
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.errors import NotSupported
from gateway.domain.operators.control import Action, ControlAnswer, ControlState, Operator, Order
from gateway.domain.operators.drill import DrillAnswer, DrillFault, DrillOrder, DrillState
from gateway.domain.operators.probe import ProbeAnswer, ProbeOrder, ProbeResult
from gateway.domain.operators.purge import PurgeAnswer
from gateway.domain.status.process import Status
from gateway.frontends.admin.audited import Audited
from gateway.frontends.admin.control import ControlFrontend
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.auth import Authorizer
from gateway.net.visits import Visits
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate import drill, probe
from gateway.wire.pairgate.control import build_order, parse_answer, path_of
from gateway.wire.pairgate.purge import build_answer as build_purge_answer
from tests.frontends.rest_client import KEY, POLICIES, wall_clock

NOW = datetime(2026, 11, 25, tzinfo=UTC)
JSON = {"Content-Type": "application/json"}


PROBED = ProbeAnswer(
    action="probe",
    targets=("orders",),
    changed=True,
    before={"orders": "secondary"},
    after={"orders": "half-open"},
    probes={"orders": ProbeResult(answered=True, seconds=0.01)},
    more=2,
)


@attrs.define
class Recorded:
    """Remembers the orders that it gets."""

    orders: list[tuple[Order, Operator]] = attrs.field(factory=list)
    probes: list[tuple[ProbeOrder, Operator]] = attrs.field(factory=list)
    asked: list[Sequence[str]] = attrs.field(factory=list)

    async def probe(self, order: ProbeOrder, operator: Operator) -> ProbeAnswer:
        await trio.lowlevel.checkpoint()
        self.probes.append((order, operator))
        return PROBED

    def execute(self, order: Order, operator: Operator) -> ControlAnswer:
        if order.action is Action.RATE and order.rate == 1.0:
            raise NotSupported("no syphon runs in this process")
        self.orders.append((order, operator))
        state = self.state()
        return ControlAnswer(
            action=order.action.value,
            targets=order.targets,
            changed=True,
            before=state,
            after=state,
        )

    def state(self, targets: Sequence[str] = ("*",)) -> ControlState:
        self.asked.append(targets)
        return ControlState(entities={"orders": "pinned"}, has_pair=True)


@pytest.fixture
def control() -> Recorded:
    return Recorded()


async def never() -> Status:
    raise AssertionError("nobody asks for the status")


def frontend_of(
    control: Recorded, *, open_to_all: bool = False, refused: list[str] | None = None
) -> FiguresFrontend:
    authorizer = Authorizer(
        () if open_to_all else POLICIES,
        wall_clock=wall_clock,
        loopback=open_to_all,
        on_refused=lambda name, why: None if refused is None else refused.append(name),
    )
    return FiguresFrontend(
        authorizer=authorizer,
        read=never,
        exposition=lambda status: b"",
        control=ControlFrontend(authorizer, control),
    )


def basic(name: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{name}:{KEY}'.encode()).decode()}"}


def post(action: str, body: bytes = b"", **fields: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return Request(
        method="POST", target=f"/v1/{action}", headers=Headers.of({**JSON, **named}), body=body
    )


def value_of(response: Response) -> Any:
    return json.loads(response.body)


@pytest.mark.parametrize("action", Action)
async def test_every_action_is_executed_for_an_operator(control: Recorded, action: Action) -> None:
    order = Order(
        action=action,
        targets=("orders", "bills/*"),
        reason="why",
        until=datetime(2027, 1, 1, tzinfo=UTC),
        rate=2.5,
    )

    request = post(action.value, build_order(order), **basic("Manage"))
    answer = await frontend_of(control).handle(request)

    assert answer.status == 200
    assert control.orders == [(order, Operator(name="Manage", peer="unknown"))]
    assert parse_answer(answer.body).after.entities == {"orders": "pinned"}
    assert request.path == path_of(action)


async def test_a_probe_is_asked_for_by_an_operator_with_what_to_probe(control: Recorded) -> None:
    frontend = frontend_of(control)
    order = ProbeOrder(targets=("orders",), reason="the disk is free again")

    done = await frontend.handle(post("probe", probe.build_order(order), **basic("Manage")))
    read = await frontend.handle(post("probe", probe.build_order(order), **basic("Listen")))
    empty = await frontend.handle(post("probe", b"{}", **basic("Manage")))

    assert probe.parse_answer(done.body) == PROBED
    assert control.probes == [(order, Operator(name="Manage", peer="unknown"))]
    assert (read.status, empty.status) == (401, 400)


async def test_a_client_is_told_which_actions_work_for_it(control: Recorded) -> None:
    refused: list[str] = []
    frontend = frontend_of(control, refused=refused)

    operator, reader, sender = [
        await frontend.handle(
            Request(method="GET", target="/v1/permissions", headers=Headers.of(basic(name)))
        )
        for name in ("Manage", "Listen", "Send")
    ]

    assert value_of(operator) == {
        "name": "Manage",
        "role": "operator",
        "actions": ["failover", "failback", "probe", "redrive", "purge"],
    }
    assert value_of(reader) == {"name": "Listen", "role": "reader", "actions": []}
    assert sender.status == 401
    assert refused == ["Send"]  # to ask isn't to be refused


@pytest.mark.parametrize("role", ["Listen", "Send"])
async def test_who_may_only_read_or_send_steers_nothing(control: Recorded, role: str) -> None:
    frontend = frontend_of(control)
    request = post("failover", b'{"targets": ["*"]}', **basic(role))

    answer = await frontend.handle(request)
    head = frontend.check_head(request)

    assert (answer.status, head and head.status) == (401, 401)
    assert "'Manage' claim is required" in value_of(answer)["error"]
    assert control.orders == []


async def test_without_credentials_nothing_is_told_or_done(control: Recorded) -> None:
    frontend = frontend_of(control)

    answers = [
        await frontend.handle(post("pause")),
        await frontend.handle(Request(method="GET", target="/v1/control")),
    ]

    assert [answer.status for answer in answers] == [401, 401]
    assert (control.orders, control.asked) == ([], [])


async def test_who_may_read_sees_what_is_in_effect(control: Recorded) -> None:
    request = Request(
        method="GET",
        target="/v1/control?targets=orders,bills/*",
        headers=Headers.of(basic("Listen")),
    )

    answer = await frontend_of(control).handle(request)

    assert value_of(answer)["entities"] == {"orders": "pinned"}
    assert control.asked == [["orders", "bills/*"]]


async def test_on_loopback_without_policies_anyone_is_an_operator(control: Recorded) -> None:
    answer = await frontend_of(control, open_to_all=True).handle(post("pause"))

    assert answer.status == 200
    assert control.orders == [
        (Order(action=Action.PAUSE), Operator(name="anonymous", peer="unknown"))
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"*"',
        b"null",
        b"{}",
        b'{"targets": "orders"}',
        b'{"targets": [1]}',
        b'{"targets": []}',
        b'{"targets": ["a//b"]}',
        b'{"targets": ["a"], "until": "6"}',
        b'{"targets": ["a"], "until": "2026-01-01T00:00:00"}',
        b'{"targets": ["a"], "rate": 0}',
        b'{"targets": ["a"], "rate": "x"}',
        b'{"targets": ["a"], "reason": null, "why": 1}',
        b'{"targets": ["a"], "unheard": "of"}',
        b"[" * 100_000,
    ],
)
async def test_a_malformed_order_is_refused(control: Recorded, body: bytes) -> None:
    answer = await frontend_of(control).handle(post("failover", body, **basic("Manage")))

    assert answer.status == 400
    assert control.orders == []


async def test_a_form_of_another_site_is_refused(control: Recorded) -> None:
    """A browser sends a form with the credentials that it knows, but asks before it sends JSON."""
    request = post("pause", Content_Type="text/plain", **basic("Manage"))

    answer = await frontend_of(control).handle(request)

    assert (answer.status, control.orders) == (400, [])
    assert "Content-Type" in value_of(answer)["error"]


async def test_what_this_process_cant_do_is_said(control: Recorded) -> None:
    answer = await frontend_of(control).handle(post("rate", b'{"rate": 1}', **basic("Manage")))

    assert value_of(answer) == {"error": "no syphon runs in this process"}
    assert answer.status == 501


async def test_unknown_actions_and_other_methods_are_refused(control: Recorded) -> None:
    frontend = frontend_of(control)
    manage = Headers.of({**JSON, **basic("Manage")})

    answers = [
        await frontend.handle(post("explode", **basic("Manage"))),
        await frontend.handle(Request(method="GET", target="/v1/pause", headers=manage)),
        await frontend.handle(Request(method="PUT", target="/v1/pause", headers=manage)),
    ]

    assert [answer.status for answer in answers] == [404, 404, 405]


async def test_over_a_unix_socket_an_operator_needs_no_key_and_has_the_name_of_its_user(
    control: Recorded,
) -> None:
    frontend, visits = frontend_of(control), Visits(20.0)
    with visits.begin("this machine", "unix:4711", os.getuid()):
        answer = await frontend.handle(post("pause"))
    with visits.begin("this machine", "unix:4712", 2**31 - 7):
        await frontend.handle(post("pause"))

    assert answer.status == 200
    assert [operator for _, operator in control.orders] == [
        Operator(name=pwd.getpwuid(os.getuid()).pw_name, peer="unix:4711"),
        Operator(name=str(2**31 - 7), peer="unix:4712"),
    ]


@attrs.define
class RecordedDrills:
    """Remembers the orders for drills."""

    orders: list[tuple[DrillOrder | None, Operator]] = attrs.field(factory=list)

    def begin(self, order: DrillOrder, operator: Operator) -> DrillAnswer:
        self.orders.append((order, operator))
        return DrillAnswer(action="drill", changed=True, before=self.state(), after=self.state())

    def end(self, operator: Operator) -> DrillAnswer:
        self.orders.append((None, operator))
        return DrillAnswer(
            action="end-drill", changed=False, before=self.state(), after=self.state()
        )

    def state(self) -> DrillState:
        return DrillState(allowed=True, longest=900.0)


def with_drills(drills: RecordedDrills) -> FiguresFrontend:
    frontend = frontend_of(Recorded())
    assert frontend.control is not None
    frontend.control = attrs.evolve(frontend.control, drills=drills)
    return frontend


async def test_an_operator_begins_and_ends_a_drill() -> None:
    drills = RecordedDrills()
    frontend = with_drills(drills)
    order = DrillOrder(
        seconds=30.0, fault=DrillFault.SLOW, targets=("orders",), namespace="east", delay=1.5
    )

    begun = await frontend.handle(post("drill", drill.build_order(order), **basic("Manage")))
    ended = await frontend.handle(post("end-drill", **basic("Manage")))
    read = await frontend.handle(
        Request(method="GET", target="/v1/drill", headers=Headers.of(basic("Listen")))
    )

    ann = Operator(name="Manage", peer="unknown")
    assert drills.orders == [(order, ann), (None, ann)]
    answers = [drill.parse_answer(each.body) for each in (begun, ended)]
    assert [(each.action, each.changed) for each in answers] == [
        ("drill", True),
        ("end-drill", False),
    ]
    assert drill.parse_state(read.body) == drills.state()


@pytest.mark.parametrize("action", ["drill", "end-drill"])
@pytest.mark.parametrize("role", ["Listen", "Send"])
async def test_who_may_only_read_or_send_drills_nothing(action: str, role: str) -> None:
    drills = RecordedDrills()

    answer = await with_drills(drills).handle(post(action, b'{"seconds": 1}', **basic(role)))

    assert answer.status == 401
    assert drills.orders == []


@pytest.mark.parametrize(
    ("action", "body", "problem"),
    [
        ("drill", b"", "drill: "),
        ("drill", b"{}", "seconds"),
        ("drill", b"[]", "drill: "),
        ("drill", b'{"seconds": 0}', "seconds"),
        ("drill", b'{"seconds": 1, "fault": "explode"}', "fault"),
        ("drill", b'{"seconds": 1, "targets": "orders"}', "targets: a list"),
        ("drill", b'{"seconds": 1, "targets": []}', "targets: 1 to 100"),
        ("drill", b'{"seconds": 1, "more": 1}', "more"),
        ("end-drill", b'{"seconds": 1}', "an empty body"),
    ],
)
async def test_a_malformed_drill_is_refused(action: str, body: bytes, problem: str) -> None:
    drills = RecordedDrills()

    answer = await with_drills(drills).handle(post(action, body, **basic("Manage")))

    assert answer.status == 400
    assert problem in value_of(answer)["error"]
    assert drills.orders == []


async def test_a_process_without_a_pair_has_no_drills() -> None:
    answer = await frontend_of(Recorded()).handle(post("end-drill", **basic("Manage")))

    assert answer.status == 501


@attrs.define
class Noted:
    entries: list[Mapping[str, Any]] = attrs.field(factory=list)

    async def note(self, entry: Mapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        self.entries.append(entry)


def audited(control: Recorded, noted: Noted) -> Audited:
    frontend = frontend_of(control)
    return Audited(
        handler=frontend.handle, authorizer=frontend.authorizer, clock=lambda: NOW, notes=noted
    )


async def test_the_path_of_a_call_is_not_noted_at_any_length(control: Recorded) -> None:
    noted = Noted()

    answer = await audited(control, noted).handle(post("x" * 12_000))

    assert answer.status == 401
    assert [len(entry["call"]) for entry in noted.entries] == [100]


async def test_calls_without_a_name_are_counted_when_there_are_many(control: Recorded) -> None:
    noted, now = Noted(), [NOW]
    asked = attrs.evolve(audited(control, noted), clock=lambda: now[0])
    visits = Visits(20.0)
    for number in range(1000):
        host = f"10.0.0.{number % 20}"
        with visits.begin(host, f"{host}:50000"):
            await asked.handle(post("pause"))
    await asked.handle(post("pause", **basic("Manage")))
    in_time = list(noted.entries)
    now[0] += timedelta(minutes=2)
    await asked.handle(post("resume", **basic("Manage")))

    assert [each["operator"] for each in in_time] == ["unknown"] * 10 + ["Manage"]
    repeated, last = noted.entries[len(in_time) :]
    assert (repeated["operator"], repeated["repeated"], repeated["seconds"]) == (
        "unknown",
        990,
        120.0,
    )
    assert len(repeated["peers"]) == 11
    assert sum(repeated["peers"].values()) == 990
    assert last["operator"] == "Manage"


async def test_a_call_that_is_cut_off_is_noted_too() -> None:
    noted = Noted()

    async def hang(request: Request) -> Response:
        await trio.sleep_forever()
        raise AssertionError(request)

    cut = attrs.evolve(audited(Recorded(), noted), handler=hang)
    with trio.move_on_after(0):
        await cut.handle(post("pause", b'{"reason": "case 4711"}', **basic("Manage")))

    [entry] = noted.entries
    assert (entry["operator"], entry["order"]) == ("Manage", {"reason": "case 4711"})
    assert (entry["status"], entry["error"]) == (None, "Cancelled")


async def test_each_call_is_noted_with_its_operator_its_order_and_its_outcome(
    control: Recorded,
) -> None:
    noted = Noted()
    asked = audited(control, noted)
    await asked.handle(post("pause", b'{"reason": "case 4711"}', **basic("Manage")))
    await asked.handle(post("rate", b'{"rate": 1.0}', **basic("Manage")))
    await asked.handle(post("failover", b"nonsense", **basic("Listen")))
    await asked.handle(Request(method="GET", target="/v1/control", headers=Headers.of({})))

    done, refused, malformed = noted.entries
    assert (done["operator"], done["call"], done["status"]) == ("Manage", "/v1/pause", 200)
    assert (done["order"], done["changed"]) == ({"reason": "case 4711"}, True)
    assert done["before"]["entities"] == done["after"]["entities"] == {"orders": "pinned"}
    assert (done["at"], done["seconds"]) == (NOW.isoformat(), 0.0)
    assert (refused["status"], refused["error"]) == (501, "no syphon runs in this process")
    assert (malformed["operator"], malformed["status"]) == ("unknown", 401)
    assert malformed["order"] == "nonsense"
    assert KEY not in json.dumps(noted.entries)


async def test_a_purge_is_noted_with_what_it_has_deleted(control: Recorded) -> None:
    noted = Noted()

    async def purge(_: Request) -> Response:
        await trio.lowlevel.checkpoint()
        answer = PurgeAnswer(queue="q", dead_letters=False, messages=3, purged=2, left=1)
        return Response(status=200, headers=Headers.of(JSON), body=build_purge_answer(answer))

    asked = attrs.evolve(audited(control, noted), handler=purge)
    await asked.handle(post("purge", b"{}", **basic("Manage")))

    [entry] = noted.entries
    assert (entry["call"], entry["purged"], entry["left"]) == ("/v1/purge", 2, 1)
