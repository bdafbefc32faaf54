"""The SDKs of Storage Queue, unmodified, each in its own process: each operation, and an outage."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, Gateways, broker_config, pair_config

pytestmark = pytest.mark.slow

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PYTHON: Final = ROOT / ".venv-azure" / "bin" / "python"
ENVIRONMENT: Final = {**os.environ, "NODE_PATH": str(ROOT / ".node" / "node_modules")}
CLIENTS: Final = ("plain", "asyncio", "node")
CREDENTIALS: Final = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
)
ENDPOINT: Final = '[[endpoints]]\nprotocol = "storage-queue"\nbind = "127.0.0.1:0"\n'

HEALTHY: Final = 1.0  # seconds
OUTAGE: Final = 2.5
# An attempt on the primary, one on the backlog, and five seconds for busy cores. An SDK that hears
# of an error waits for 12 seconds at least.
LONGEST_STALL: Final = 11.0

EXPECTED: Final[dict[str, dict[str, Any]]] = {
    "queues": {
        "again": 204,
        "other": "QueueAlreadyExists",
        "listed": [["a", {"Team": "blue", "Floor_2": "x y"}], ["b", {}], ["c", {}], ["d", {}]],
        "metadata": {"new": "1"},
        "deleted": "QueueNotFound",
        "deleted twice": "QueueNotFound",
    },
    "messages": {
        "empty": [],
        "never": 9999,
        "count": 4,
        "peeked": [[16, 0], [0, 0], [65536, 0]],
        "got": [[16, 1], [0, 1], [65536, 1]],
        "text": "first <&> grün \n",  # XML reads a line's end so
        "same": True,
        "hidden": [],
        "changed": ["changed", 2, True],
        "stale": "PopReceiptMismatch",
        "stale update": "PopReceiptMismatch",
        "deleted": "MessageNotFound",
        "back": [True, 2],
        "wrong receipt": "PopReceiptMismatch",
        "cleared": 0,
        "expired": [[], "MessageNotFound"],
    },
    "poison": {
        "refused": "InvalidMetadata",
        "dequeues": [1, 2],
        "moved": [["bad", 1]],
        "left": 0,
    },
    "refusals": {
        "no queue": "QueueNotFound",
        "no queue to get": "QueueNotFound",
        "no queue to peek": "QueueNotFound",
        "no queue to clear": "QueueNotFound",
        "name": "InvalidResourceName",
        "short name": "OutOfRangeInput",
        "too large": "RequestBodyTooLarge",
        "far too large": "RequestBodyTooLarge",
        "life": "InvalidQueryParameterValue",
        "visibility": "OutOfRangeQueryParameterValue",
        "visibility and life": "InvalidQueryParameterValue",
        "hide": "OutOfRangeQueryParameterValue",
        "many": "OutOfRangeQueryParameterValue",
        "no such message": "MessageNotFound",
        "no id": "MessageNotFound",
        "metadata name": "InvalidMetadata",
        "metadata size": "MetadataTooLarge",
    },
    "access": {
        "stored": {"nothing": None, "readers": "rp"},
        "by policy": ["by a signature"],
        "no permission": "AuthorizationPermissionMismatch",
        "no policy": "AuthenticationFailed",
        "expired": "AuthenticationFailed",
        "of another queue": "AuthenticationFailed",
        "account": ["by an account's"],
        "account's permission": "AuthorizationPermissionMismatch",
        "type": "AuthorizationResourceTypeMismatch",
        "protocol": "AuthorizationProtocolMismatch",
        "address": "AuthorizationSourceIPMismatch",
        "list of a queue's": "AuthorizationFailure",
        "wrong key": "AuthenticationFailed",
        "no account": "ResourceNotFound",
    },
    "properties": {
        "cors": [["https://a.example", "GET,PUT"]],
        "logging": "1.0",
        "replication": "live",
        "too many": "InvalidXmlDocument",
    },
}
REWRITTEN: Final = {"hidden": [], "text": "third <&>", "dequeues": 2}
MORE: Final[dict[str, dict[str, Any]]] = {
    "plain": {
        "rewritten": REWRITTEN,
        "binary": {"same": True},
        "tasks": {"got": [{"task": 1}, {"task": 2}], "left": 0},
    },
    "asyncio": {"binary": {"same": True}, "rewritten": REWRITTEN},
    "node": {},
}


def command(kind: str, port: int, *parts: str) -> list[str]:
    endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
    connection = f"{CREDENTIALS}QueueEndpoint={endpoint};"
    program = ["node", str(HERE / "storage_client.js")]
    if kind != "node":
        program = [str(PYTHON), str(HERE / "storage_client.py")]
    return [*program, connection, kind, *parts]


async def run(kind: str, process: GatewayProcess, *parts: str) -> dict[str, Any]:
    return await run_at(process.ports[-1], kind, *parts)


async def run_at(port: int, kind: str, *parts: str) -> dict[str, Any]:
    with trio.fail_after(150):
        result = await trio.run_process(
            command(kind, port, *parts),
            env=ENVIRONMENT,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert result.returncode == 0, result.stderr.decode()
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def test_the_sdks_find_the_queue_service(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config() + ENDPOINT)
    found: dict[str, dict[str, Any]] = {}

    async def ask(kind: str) -> None:
        found[kind] = await run(kind, broker, *EXPECTED, *MORE[kind])

    async with trio.open_nursery() as nursery:
        for kind in CLIENTS:
            nursery.start_soon(ask, kind)

    for kind in CLIENTS:
        for part, expected in {**EXPECTED, **MORE[kind]}.items():
            assert found[kind][part] == expected, (kind, part)
    assert broker.count("connection_crashed") == 0


async def test_the_namespace_may_be_behind_another_gateway(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config())
    far = f"""
[namespaces.far]
url = "servicebus+http://RootManageSharedAccessKey@{broker.address}"
key = {{ env = "{KEY_VARIABLE}" }}
"""
    gateway = await gateways.start(far + ENDPOINT)
    unclear = {"no such message": "PopReceiptMismatch"}  # the sender gives the ids
    expected = {
        **{part: EXPECTED[part] for part in ("queues", "poison", "access", "properties")},
        "refusals": EXPECTED["refusals"] | unclear,
        **MORE["plain"],
    }
    del expected["rewritten"]  # Service Bus can't change the text of a message

    found = await run("plain", gateway, *expected)

    # An answer that comes too late between the gateways is lost, and counts as a delivery.
    dequeues = found["poison"]["dequeues"]
    assert dequeues in ([1], [2], [1, 2])
    assert found == {**expected, "poison": {**EXPECTED["poison"], "dequeues": dequeues}}
    assert gateway.count("connection_crashed") == 0


@attrs.define(eq=False)
class Producer:
    """An SDK that sends, with the retries that it has by itself, until it is told to stop."""

    kind: str
    gateway: GatewayProcess
    sent: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)
    longest: float = 0.0
    _stop: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Started when the first message was accepted."""
        process = await trio.lowlevel.open_process(
            command(self.kind, self.gateway.ports[-1], "send-all-the-time"),
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            output = await process.stdout.receive_some()
            task_status.started()
            await self._stop.wait()
            await process.stdin.aclose()
            output = b"".join([bytes(output), *[part async for part in process.stdout]])
        finally:
            process.kill()  # the process has ended, unless a test fails
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await process.wait()
        found = json.loads(output)["send-all-the-time"]
        self.sent, self.errors, self.longest = found["sent"], found["errors"], found["longest"]

    def stop(self) -> None:
        self._stop.set()


async def test_no_sdk_notices_that_the_primary_freezes_and_stops(gateways: Gateways) -> None:
    backlogs = [f"east/x-servicebus-transfer/{n}" for n in range(2)]
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(*backlogs), name="secondary")
    pair = pair_config(primary.address, secondary.address, backlog_queues=2)
    gateway = await gateways.start(pair + ENDPOINT, name="gateway")
    producers = [Producer(kind, gateway) for kind in CLIENTS]

    async with trio.open_nursery() as nursery:
        for producer in producers:
            await nursery.start(producer.run)
        primary.signal(signal.SIGSTOP)
        await gateway.seen("entity_state_changed", entity="orders", after="secondary")
        await trio.sleep(HEALTHY)
        primary.signal(signal.SIGCONT)
        await gateway.seen("entity_state_changed", entity="orders", after="primary")
        await primary.stop()
        await trio.sleep(OUTAGE)
        await primary.start()
        for producer in producers:
            producer.stop()
    sent = {body for producer in producers for body in producer.sent}
    missing = set(sent)
    # The second failure within minutes: the return needs 40 s of successes in a row.
    with trio.move_on_after(100):
        while missing:
            missing -= set((await run("plain", gateway, "take-all"))["take-all"]["got"])

    told = [(p.kind, len(p.sent), round(p.longest, 2), p.errors[:3]) for p in producers]
    print(told)  # noqa: T201 shown where the test fails
    assert missing == set(), told
    assert all(producer.errors == [] for producer in producers), told
    assert all(len(producer.sent) > 30 for producer in producers), told
    assert max(producer.longest for producer in producers) < LONGEST_STALL, told
    assert gateway.count("connection_crashed") == 0
