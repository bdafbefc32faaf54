"""Configurations and commands that several tests of running processes share."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.processes import (
    KEY_VARIABLE,
    GatewayProcess,
    Gateways,
    environment,
    fork_server,
)
from tests.harness.patience import PATIENCE

ADMIN = '\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\n'


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def status_at(port: int) -> Any:
    """The status that an endpoint `admin` tells."""
    _, body = await trio.to_thread.run_sync(get, port, "/status")
    return json.loads(body)


def admin_of(process: str) -> str:
    return f'{ADMIN}process = "{process}"\n'


def call(port: int, method: str, path: str, order: object = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = None if order is None else json.dumps(order)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


ACCESS = f"""
[[access]]
name = "operators"
key = {{ env = "{KEY_VARIABLE}" }}
rights = ["Manage"]
"""


async def run(folder: Path, *arguments: str | Path, **variables: str) -> tuple[int, str, str]:
    """A command in that folder: exit code, output, errors."""
    result = await fork_server().run(folder, [*map(str, arguments)], b"", variables)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


async def pairgate(
    process: GatewayProcess, *arguments: str, stdin: bytes = b""
) -> tuple[int, str, str]:
    """A command with the configuration of that process: exit code, output, errors."""
    command, *rest = arguments
    asked = [command, "--config", str(process.config_file), *rest]
    result = await process.forks().run(process.folder, asked, stdin, environment())
    return result.returncode, result.stdout.decode(), result.stderr.decode()


async def with_fixed_port(process: GatewayProcess) -> None:
    """Write the port that the process got into its configuration, for other commands."""
    process.config_file.write_text(process.config)
    await trio.lowlevel.checkpoint()


def samples(text: bytes) -> Mapping[str, float]:
    """Sums over all labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


async def pairgate_provision(gateways: Gateways, config: str) -> None:
    made = gateways.prepare(config, name="provision", command=("provision",))
    await made.start(wait=False)
    assert await made.wait() == 0
