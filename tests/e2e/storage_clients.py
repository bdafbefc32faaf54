"""Parts of the tests of storage clients that other tests need, too."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from tests.e2e.processes import GatewayProcess

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
