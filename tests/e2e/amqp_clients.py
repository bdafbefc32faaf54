"""Parts of the tests of amqp clients that other tests need, too."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import attrs
import trio

from gateway.changes import Changes
from tests.e2e.processes import GatewayProcess

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


@attrs.define(eq=False)
class Producer:
    """An SDK that sends until it is told to stop."""

    kind: str
    gateway: GatewayProcess
    retries: int = 0
    part: str = "producing"  # of the client's script
    sent: list[str] = attrs.field(factory=list)
    longest: float = 0.0
    _stop: trio.Event = attrs.field(factory=trio.Event)
    _output: bytes = b""  # of its process: line ends as a sign that it continues, then its result
    _printed: Changes = attrs.field(factory=Changes)

    async def has_sent(self, number: int) -> None:
        """
        Return when the given number of messages was accepted, of a client that reports each one.
        """
        while self._output.count(b"\n") < number:
            await self._printed.wait_next()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Started when the first message was accepted."""
        process = await trio.lowlevel.open_process(
            command(self.kind, self.gateway, self.part, retries=self.retries),
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._output = bytes(await process.stdout.receive_some())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, process.stdout)
            task_status.started()
            await self._stop.wait()
            await process.stdin.send_all(b"\n")
        await process.wait()
        found = json.loads(self._output)[self.part]
        assert isinstance(found, dict), found
        self.sent, self.longest = found["sent"], found["longest"]

    async def _read(self, stdout: trio.abc.ReceiveStream) -> None:
        async for part in stdout:
            self._output += part
            self._printed.notify()

    def stop(self) -> None:
        self._stop.set()
