"""Control over HTTP: asked without a socket, by clients with and without the right."""

import json
import os
import pwd
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.errors import NotSupported
from gateway.domain.operators.control import Action, ControlAnswer, ControlState, Operator, Order
from gateway.domain.status.process import Status
from gateway.frontends.admin.audited import Audited
from gateway.frontends.admin.control import ControlFrontend, Executor
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.auth import Authorizer
from gateway.net.visits import Visits
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate.control_calls import CONTROL_CALLS, FAILBACK, FAILOVER, PAUSE, RATE
from tests.frontends.rest_client import KEY, POLICIES, wall_clock

NOW = datetime(2026, 11, 25, tzinfo=UTC)
JSON = {"Content-Type": "application/json"}


@attrs.define
class Recorded:
    """Remembers the orders that it gets. Each order works but those of the syphon."""

    orders: list[tuple[Order, Operator]] = attrs.field(factory=list)

    async def execute(self, order: Order, operator: Operator) -> ControlAnswer:
        await trio.lowlevel.checkpoint()
        if order.action is Action.RATE:
            raise NotSupported("no syphon runs in this process")
        self.orders.append((order, operator))
        state = ControlState(entities={"orders": "pinned"}, has_pair=True)
        return ControlAnswer(
            action=order.action.value,
            targets=order.targets,
            changed=True,
            before=state,
            after=state,
        )

    def executors(self) -> list[Executor[Any, Any]]:
        calls = (FAILBACK, FAILOVER, PAUSE)
        never = [Executor(RATE, self.execute, lambda: False)]
        return [*never, *(Executor(call, self.execute) for call in calls)]


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
        accepts_well_known_key=open_to_all,
        on_refused=lambda name, why: None if refused is None else refused.append(name),
    )
    return FiguresFrontend(
        authorizer=authorizer,
        read=never,
        exposition=lambda status: b"",
        control=ControlFrontend(authorizer, CONTROL_CALLS, control.executors()),
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
        "actions": ["failover", "failback", "pause"],  # in the order of the table
    }
    assert value_of(reader) == {"name": "Listen", "role": "reader", "actions": []}
    assert sender.status == 401
    assert refused == ["Send"]  # to ask isn't to be refused


@pytest.mark.parametrize("role", ["Listen", "Send"])
async def test_a_client_that_only_reads_or_sends_is_refused_before_its_body_is_read(
    control: Recorded, role: str
) -> None:
    frontend = frontend_of(control)
    request = post("failover", b'{"targets": ["*"]}', **basic(role))

    answer = await frontend.handle(request)
    head = frontend.check_head(request)

    assert (answer.status, head and head.status) == (401, 401)
    assert "'Manage' claim(s) are required" in value_of(answer)["error"]
    assert control.orders == []


async def test_without_credentials_nothing_is_told_or_done(control: Recorded) -> None:
    frontend = frontend_of(control)

    answers = [
        await frontend.handle(post("pause")),
        await frontend.handle(Request(method="GET", target="/v1/control")),
    ]

    assert [answer.status for answer in answers] == [401, 401]
    assert control.orders == []


async def test_on_loopback_without_policies_anyone_is_an_operator(control: Recorded) -> None:
    answer = await frontend_of(control, open_to_all=True).handle(post("pause"))

    assert answer.status == 200
    assert control.orders == [
        (Order(action=Action.PAUSE), Operator(name="anonymous", peer="unknown"))
    ]


async def test_unknown_actions_and_other_methods_are_refused(control: Recorded) -> None:
    frontend = frontend_of(control)
    manage = Headers.of({**JSON, **basic("Manage")})

    answers = [
        await frontend.handle(post("explode", **basic("Manage"))),
        await frontend.handle(Request(method="GET", target="/v1/pause", headers=manage)),
        await frontend.handle(Request(method="GET", target="/redrive", headers=manage)),
        await frontend.handle(Request(method="PUT", target="/v1/pause", headers=manage)),
    ]

    assert [answer.status for answer in answers] == [404, 404, 404, 405]


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
class Noted:
    entries: list[Mapping[str, Any]] = attrs.field(factory=list)

    async def record(self, entry: Mapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        self.entries.append(entry)


def audited(control: Recorded, noted: Noted) -> Audited:
    frontend = frontend_of(control)
    return Audited(
        handler=frontend.handle,
        authorizer=frontend.authorizer,
        clock=lambda: NOW,
        notes=noted,
        calls=CONTROL_CALLS,
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
    assert (entry["at"], entry["seconds"]) == (NOW.isoformat(), 0.0)
