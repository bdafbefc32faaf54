"""The answers, events and lines that pages show are those of a running gateway."""

import http.client
import json
import re
import shlex
import subprocess
from base64 import b64encode
from typing import Any

import pytest
import trio

from gateway.demo.ports import free_port
from tests.e2e.commands import run
from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, Gateways, environment
from tests.e2e.rest import send
from tests.extensions.drill.drill import PAIR
from tests.harness.patience import PATIENCE
from tests.pages import blocks

pytestmark = pytest.mark.slow

FAILOVER, PROBE, DRILL, FAULTS, MOVES, DRAIN, AUDIT_LINE = blocks(
    "docs/reference/control.md", "json"
)
DATE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")
POLICY = f"""
[[access]]
name = "%s"
key = {{ env = "{KEY_VARIABLE}" }}
rights = ["Manage"]
"""


def likeness(value: Any) -> Any:
    """The value with all dates, numbers, ports and places made equal: they differ in each run."""
    match value:
        case dict():
            return {name: likeness(each) for name, each in value.items()}
        case list():
            return [likeness(each) for each in value]
        case bool() | None:
            return value
        case int() | float():
            return 0
        case str():
            text = re.sub(r"^127\.0\.0\.1:\d+$", "PEER", DATE.sub("DATE", value))
            return re.sub(r"^serve on \S+ \(process \d+\)$", "PLACE", text)
    return value


def shown(block: str) -> Any:
    return likeness(json.loads(block))


async def ask(
    gateway: GatewayProcess, method: str, path: str, order: object = None, user: str = ""
) -> Any:
    """The answer of the endpoint `admin`, its dates and numbers made equal."""
    key = environment()[KEY_VARIABLE]
    headers = {"Content-Type": "application/json"} if method == "POST" else {}
    if user:
        headers["Authorization"] = f"Basic {b64encode(f'{user}:{key}'.encode()).decode()}"

    def call() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.ports[1], timeout=PATIENCE)
        try:
            body = json.dumps(order) if method == "POST" else None
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    status, body = await trio.to_thread.run_sync(call)
    assert status == 200, body
    return likeness(json.loads(body))


def on_port(code: str, gateway: GatewayProcess) -> str:
    return code.replace(":9640", f":{gateway.ports[1]}")


async def test_orders_probes_and_drills_are_answered_as_the_page_shows(gateways: Gateways) -> None:
    # The probes are those of the test alone.
    gateway = await gateways.start(PAIR.replace('ping_interval = "1s"', 'ping_interval = "30m"'))
    [typed] = blocks("docs/reference/control.md", "sh")
    [history] = blocks("docs/reference/status.md", "json")

    await ask(gateway, "GET", "/status")  # takes the first reading
    readings = await ask(gateway, "GET", "/v1/history")
    order = {"targets": ["one"], "reason": "maintenance"}
    failover = await ask(gateway, "POST", "/v1/failover", order)
    await ask(gateway, "POST", "/v1/failback", {"targets": ["*"]})
    told = await trio.run_process(["sh", "-c", on_port(typed, gateway)], capture_stdout=True)
    await ask(gateway, "POST", "/v1/failback", {"targets": ["orders/*"]})
    fault = {"seconds": 60, "fault": "hang", "reason": "game day"}
    began = await ask(gateway, "POST", "/v1/drill", fault)
    drill = await ask(gateway, "GET", "/v1/drill")
    while not gateway.count("entity_state_changed", entity="one", after="secondary"):
        assert (await send(gateway.address, "one", b"hello")) == (201, "backlog")
    await ask(gateway, "POST", "/v1/end-drill", {})
    probe = await ask(gateway, "POST", "/v1/probe", {"targets": ["one"]})
    url = f"--url=http://127.0.0.1:{gateway.ports[1]}"
    [commands] = blocks("docs/how-to/operate/report-an-outage.md", "sh")
    reports = [
        await run(gateway.folder, *shlex.split(each)[1:], url) for each in commands.splitlines()
    ]

    assert [code for code, _, _ in reports] == [0, 0], reports
    assert "| one |" in reports[0][1]
    assert json.loads(reports[1][1])["outages"][0]["diverted"] > 0
    assert failover == shown(FAILOVER.replace('"orders"', '"one"'))
    [pin] = json.loads(told.stdout)["after"]["pins"]
    assert (pin["target"], pin["until"]) == ("orders/*", "2027-01-01T06:00:00+00:00")
    assert (began["after"], drill) == (shown(DRILL), shown(DRILL))
    assert probe == shown(PROBE.replace('"orders"', '"one"'))
    page = shown(history)
    assert readings.keys() == page.keys()
    assert page["queues"].keys() <= readings["queues"].keys()
    columns = [page["queues"].popitem()[1], *readings["queues"].values()]
    assert {tuple(each) for each in columns} == {("pending", "oldest_age")}


async def test_faults_are_listed_as_the_page_shows(gateways: Gateways) -> None:
    [config] = blocks("docs/how-to/connect/test-with-faults.md", "toml")
    gateway = await gateways.start(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", config))

    order = {"kind": "busy", "entities": ["orders"], "operations": ["send"], "count": 2}
    added = await ask(gateway, "POST", "/v1/add-fault", order)
    listed = await ask(gateway, "GET", "/v1/faults")

    assert (added["after"], listed) == (shown(FAULTS), shown(FAULTS))


async def test_moves_are_answered_as_the_page_shows(gateways: Gateways) -> None:
    further = '[namespaces.premium]\nurl = "memory:"\n[move]\nto = "premium"\nstate = "move"\n'
    gateway = await gateways.start(PAIR.replace('"one"', '"orders"') + further)

    order = {"action": "start", "targets": ["orders"], "reason": "to Premium"}
    started = await ask(gateway, "POST", "/v1/move", order)
    listed = await ask(gateway, "GET", "/v1/move")

    assert started == shown(MOVES)
    assert listed == shown(MOVES.replace('"changed": true', '"changed": false'))


async def test_a_drain_is_answered_as_the_page_shows(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR + POLICY % "operators")

    order = {"reason": "upgrade", "wait": True}
    answer = await ask(gateway, "POST", "/v1/drain", order, user="operators")

    assert answer == shown(DRAIN)
    assert await gateway.wait() == 0


async def test_the_log_and_the_audit_log_have_the_lines_of_the_pages(gateways: Gateways) -> None:
    config = PAIR.replace('["one", "two"]', '["orders"]') + POLICY % "night-shift"
    gateway = await gateways.start(f'{config}\n[audit]\nfile = "audit.jsonl"\n')
    [event] = blocks("docs/how-to/operate/steer-a-gateway.md", "json")

    order = {"targets": ["orders"], "reason": "case 4711"}
    await ask(gateway, "POST", "/v1/failover", order, user="night-shift")
    logged = likeness(await gateway.seen("control_called"))
    [line] = (gateway.folder / "audit.jsonl").read_text().splitlines()

    assert shown(event).items() <= logged.items()
    noted, page = likeness(json.loads(line)), shown(AUDIT_LINE)
    for before_or_after in ("before", "after"):  # the page shortens them
        assert page.pop(before_or_after).keys() <= noted.pop(before_or_after).keys()
    assert noted == page


async def test_events_are_followed_by_the_command_of_the_page(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR)
    [typed] = blocks("docs/reference/events.md", "sh")
    command = shlex.split(on_port(typed, gateway))

    async with trio.open_nursery() as nursery:
        curl = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        nursery.start_soon(curl.wait)
        assert curl.stdout is not None
        seen = b""
        with trio.fail_after(PATIENCE):
            while b"event: started\n" not in seen:
                part = await curl.stdout.receive_some()
                assert part, seen
                seen += part
        curl.kill()


async def test_commands_find_a_gateway_that_the_variable_of_the_page_has_moved(
    gateways: Gateways,
) -> None:
    [typed] = blocks("docs/reference/commands.md", "sh")
    for port in ("15672", "19640"):
        typed = typed.replace(f":{port}", f":{free_port()}")
    export, *commands = (shlex.split(line) for line in typed.splitlines())
    [(name, value)] = [word.split("=", 1) for word in export[1:]]
    [serve, status] = [words[1:] for words in commands]
    gateways.environments["moved"] = {name: value}

    config = PAIR.replace('"service-bus-http"', '"service-bus"')
    gateway = await gateways.start(config, name="moved", command=serve)
    code, output, errors = await run(gateway.folder, *status, **{name: value})

    assert [f"127.0.0.1:{port}" for port in gateway.ports] == [
        bind.partition("=")[2] for bind in value.split()
    ]
    assert code == 0, errors
    assert "all is well" in output
