"""`pairgate serve` and `pairgate syphon` as processes that are started, killed and restarted."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.demo.ports import free_port
from gateway.domain.errors import GatewayError

START_LIMIT: Final = 20.0  # seconds
STOP_LIMIT: Final = 10.0
KEY_VARIABLE: Final = "PAIRGATE_DEMO_KEY"
KEY_NAME: Final = "RootManageSharedAccessKey"  # the emulators' well-known credentials
KEY: Final = "SAS_KEY_VALUE"
_BIND: Final = re.compile(r'bind = "127\.0\.0\.1:\d+"')

LogLine = Mapping[str, Any]


class MachineFailed(GatewayError):
    """A process ended, or didn't start to listen; the text has the end of its log."""


@attrs.define(eq=False)
class DemoMachine:
    """A process with a folder of its own, which keeps its port over restarts."""

    name: str
    folder: Path
    config: str
    on_log: Callable[["DemoMachine", LogLine], None]
    command: str = "serve"  # or "syphon", which has no port
    environment: Mapping[str, str] = attrs.field(factory=dict)  # besides the usual variables
    start_limit: float = START_LIMIT  # seconds
    port: int = attrs.field(factory=free_port, init=False)
    pid: int = attrs.field(default=0, init=False)
    _process: trio.Process | None = attrs.field(default=None, init=False)
    _ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    _tail: list[str] = attrs.field(factory=list, init=False)

    async def start(self, nursery: trio.Nursery) -> None:
        """
        Return when the process listens; a syphon, when it has started.

        Raises:
            MachineFailed: the process didn't start in time.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "pairgate.toml"
        file.write_text(_BIND.sub(f'bind = "127.0.0.1:{self.port}"', self.config))
        self._ready = trio.Event()
        command = [sys.executable, "-m", "gateway", self.command, "--json", "--config", str(file)]
        self._process = await trio.lowlevel.open_process(
            command,
            cwd=self.folder,
            env=self._whole_environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.pid = self._process.pid
        nursery.start_soon(self._read_log, self._process)
        with trio.move_on_after(self.start_limit):
            await self._ready.wait()
        if not self._ready.is_set() or self._process.poll() is not None:
            raise MachineFailed(f"{self.name} didn't start: {' '.join(self._tail)}")

    async def ask(self, command: str, *arguments: str) -> tuple[int, str]:
        """
        Run another command with this configuration; return its exit code, and its output as JSON.
        """
        file = self.folder / "pairgate.toml"
        done = await trio.run_process(
            [sys.executable, "-m", "gateway", command, "--json", "--config", str(file), *arguments],
            cwd=self.folder,
            env=self._whole_environment,
            capture_stdout=True,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    @property
    def _whole_environment(self) -> dict[str, str]:
        return {**_environment(), KEY_VARIABLE: KEY, **self.environment}

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def kill(self) -> None:
        """Send SIGKILL; return when the process has ended."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that takes too long; return when the process has ended."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_LIMIT) as limit:
            await self._process.wait()
        if limit.cancelled_caught:
            await self.kill()

    def kill_at_once(self) -> None:
        """Kill the process without waiting, at the end of a cancelled run."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def _read_log(self, process: trio.Process) -> None:
        stream = process.stderr
        if stream is None:
            return
        rest = b""
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._read_line(line.decode(errors="replace"))
        self._ready.set()  # the waiting task checks the exit code

    def _read_line(self, text: str) -> None:
        self._tail = [*self._tail[-4:], text]
        try:
            line = json.loads(text)
        except ValueError:
            return  # not a log line: it stays in the tail, for an error message
        if line.get("event") == "listening":
            self._ready.set()
        if line.get("event") == "started" and self.command == "syphon":
            self._ready.set()
        self.on_log(self, line)


def broker_config(*queues: str) -> str:
    """The configuration of a plain broker with these queues, durable in its folder."""
    return f"""
[namespaces.here]
url = "embedded:broker.db"
queues = {json.dumps(queues)}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


def gateway_config(primary: int, secondary: int, label: str) -> str:
    """
    The configuration of a gateway in front of the brokers on these ports, with times for a short
    demo.
    """
    url = f"servicebus+http://{KEY_NAME}@127.0.0.1"
    return f"""
logging = {{ level = "debug" }}

[namespaces.primary]
url = "{url}:{primary}"
key = {{ env = "{KEY_VARIABLE}" }}

[namespaces.secondary]
url = "{url}:{secondary}"
key = {{ env = "{KEY_VARIABLE}" }}

[pairing]
primary = "primary"
secondary = "secondary"
label = "{label}"
failover_interval = "2s"
attempt_timeout = "2s"
send_timeout = "10s"
ping_interval = "1s"
enable_syphon = true

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


def _environment() -> dict[str, str]:
    """The variables that a child process needs to find Python and this package."""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])}
