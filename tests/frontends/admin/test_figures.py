"""The status and metrics of a process, over HTTP without a socket."""

import json
from base64 import b64encode

import pytest

from gateway.domain.health.depth_history import DepthSample
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.wire.http.messages import Headers, Request, Response
from tests.frontends.admin.figures import frontend
from tests.frontends.rest_client import KEY, wall_clock


async def ask(
    asked: FiguresFrontend, target: str, key_name: str | None = None, method: str = "GET"
) -> Response:
    fields = {}
    if key_name is not None:
        fields["Authorization"] = f"Basic {b64encode(f'{key_name}:{KEY}'.encode()).decode()}"
    return await asked.handle(Request(method=method, target=target, headers=Headers.of(fields)))


async def test_status_is_json_and_metrics_are_prometheus_text() -> None:
    status = await ask(frontend(), "/status")
    metrics = await ask(frontend(), "/metrics")

    assert json.loads(status.body)["pair"]["backlog"]["pending"] == 5
    assert metrics.headers.get("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert b"\npairgate_backlog_messages 5.0\n" in metrics.body


@pytest.mark.parametrize("path", ["/status", "/metrics", "/v1/history"])
@pytest.mark.parametrize(
    ("key_name", "code"), [("Listen", 200), ("Manage", 200), ("Send", 401), (None, 401)]
)
async def test_figures_are_for_who_may_listen(path: str, key_name: str | None, code: int) -> None:
    assert (await ask(frontend(closed=True), path, key_name)).status == code


async def test_without_policies_only_this_machine_may_ask() -> None:
    near = await ask(frontend(), "/status")
    far = await ask(frontend(accepts_well_known_key=False), "/status")

    assert (near.status, far.status) == (200, 401)


async def test_health_is_for_anybody() -> None:
    asked = frontend(closed=True)
    asked.readiness.end("draining: SIGTERM")

    codes = [(await ask(asked, path)).status for path in ("/livez", "/readyz")]

    assert codes == [200, 503]


async def test_readiness_comes_with_its_reason() -> None:
    asked = frontend()
    asked.readiness = Readiness(STARTING)
    told = []
    for change in (
        lambda: None,
        asked.readiness.begin,
        lambda: asked.readiness.end("draining: SIGTERM"),
        lambda: asked.readiness.end("a store has failed"),
        asked.readiness.begin,
    ):
        change()
        answer = await ask(asked, "/readyz")
        told.append((answer.status, json.loads(answer.body)))

    drains = (503, {"ready": False, "reason": "draining: SIGTERM"})
    assert told == [
        (503, {"ready": False, "reason": "starting"}),
        (200, {"ready": True, "reason": "serving"}),
        drains,
        drains,
        drains,
    ]


@pytest.mark.parametrize(
    ("method", "target", "code"), [("GET", "/x", 404), ("POST", "/status", 405)]
)
async def test_nothing_else_is_there(method: str, target: str, code: int) -> None:
    response = await ask(frontend(), target, method=method)

    assert response.status == code
    assert set(json.loads(response.body)) == {"error"}


async def test_the_history_of_the_backlog_is_json() -> None:
    asked = frontend()
    asked.history = lambda: [DepthSample(at=wall_clock(), pending=5)]

    answer = await ask(asked, "/v1/history")

    assert json.loads(answer.body)["pending"] == [5]
