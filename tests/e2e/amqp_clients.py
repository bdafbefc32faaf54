"""Parts of the tests of amqp clients that other tests need, too."""

import json
import os
from pathlib import Path
from typing import Any

from tests.e2e.processes import GatewayProcess
from tests.e2e.sdk_producer import Producer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv-azure" / "bin" / "python"
MODULES = ROOT / ".node" / "node_modules"
NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
CREDENTIALS = f"SharedAccessKeyName={NAME};SharedAccessKey={KEY};"
ENVIRONMENT = {**os.environ, "NODE_PATH": str(MODULES)}


def command(
    kind: str,
    process: GatewayProcess,
    *parts: str,
    secure: str = "",
    retries: int = 0,
    credentials: str = CREDENTIALS,
) -> list[str]:
    """`secure` is the SDK's name of a transport; without one it's AMQP in plain text."""
    options: dict[str, Any] = {"connection_verify": str(process.folder / "tls/ca.pem")}
    options["retry_total"] = retries
    connection = f"Endpoint=sb://localhost:{process.port};{credentials}"
    if secure:
        options |= {"custom_endpoint_address": connection[9:].partition(";")[0]}
        options |= {"transport_type": secure}
    else:
        connection += "UseDevelopmentEmulator=true;"
    if kind == "node":
        program = ["node", str(HERE / "amqp_client.js")]
    else:
        program = [str(PYTHON), str(HERE / "amqp_client.py"), kind]
    return [*program, connection, json.dumps(options), *parts]


def producer_of(
    kind: str, gateway: GatewayProcess, *, retries: int = 0, part: str = "producing"
) -> Producer:
    """An SDK that sends to the queue `orders` over AMQP."""
    return Producer(
        kind=kind,
        command=command(kind, gateway, part, retries=retries),
        environment=ENVIRONMENT,
        part=part,
    )
