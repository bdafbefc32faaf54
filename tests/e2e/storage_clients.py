"""Parts of the tests of storage clients that other tests need, too."""

import json
import os
from pathlib import Path
from typing import Any, Final

import trio

from tests.e2e.processes import GatewayProcess
from tests.e2e.sdk_producer import Producer
from tests.harness.patience import PATIENCE

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
    with trio.fail_after(PATIENCE):
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


def producer_of(kind: str, gateway: GatewayProcess) -> Producer:
    """An SDK that sends to the queue `orders` of a storage account."""
    part = "send-all-the-time"
    return Producer(
        kind=kind,
        command=command(kind, gateway.ports[-1], part),
        environment=ENVIRONMENT,
        part=part,
    )
