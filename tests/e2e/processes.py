"""Real `pairgate` processes for tests: started in a folder of their own, killed, started again."""

import atexit
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.demo.ports import free_port
from tests.harness.fork_server import ForkedProcess, ForkServer
from tests.harness.patience import PATIENCE

ROOT: Final = Path(__file__).parents[2]
START_SECONDS: Final = PATIENCE
ANY_PORT: Final = re.compile(r'(bind = "[^"]*):0"')
EARLY: Final = re.compile("PYTHON|LD_")  # variables that are read before a fork
KEY_VARIABLE: Final = "PAIRGATE_TEST_KEY"  # the emulators' well-known key
ENVELOPE_VARIABLE: Final = "PAIRGATE_TEST_ENVELOPE_KEY"
ENVELOPE_SECRET: Final = "an envelope key for tests, and for tests only"


@cache
def fork_server() -> ForkServer:
    """The one of this process of tests; it ends with it."""
    server = ForkServer.start(environment())
    atexit.register(server.end)
    return server


@attrs.define(eq=False)
class GatewayProcess:
    """
    A process of `python -m gateway COMMAND --json --config FOLDER/pairgate.toml`.

    `ports` are those of `[[endpoints]]` in their order. Port 0 stands for a free port, which a
    later start binds again.
    """

    folder: Path
    config: str
    command: Sequence[str]
    nursery: trio.Nursery = attrs.field(repr=False)
    environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # beside the usual one
    forks: Callable[[], ForkServer] = fork_server
    ports: list[int] = attrs.field(factory=list)
    log: list[dict[str, Any]] = attrs.field(factory=list, repr=False)
    garbage: list[str] = attrs.field(factory=list)  # lines among the log that weren't JSON
    _process: trio.Process | ForkedProcess | None = None
    _grown: trio.Condition = attrs.field(factory=trio.Condition, repr=False)
    _log_ended: trio.Event = attrs.field(factory=trio.Event, repr=False)

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def config_file(self) -> Path:
        return self.folder / "pairgate.toml"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, *, wait: bool = True) -> None:
        """Return when every endpoint listens, or at once. Fails with the log if it ends before."""
        assert not self.running
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = ANY_PORT.sub(lambda match: f'{match[1]}:{free_port()}"', self.config)
        self.config_file.write_text(self.config)
        since = len(self.log)
        self._process = await self._open()
        self._log_ended = trio.Event()
        self.nursery.start_soon(self._read_log, self._process, self._log_ended)
        if wait:
            with trio.fail_after(START_SECONDS):
                await self._seen_since(since, "started", {})
            self._keep_ports(since)

    async def _open(self) -> trio.Process | ForkedProcess:
        """
        Start the process: by a fork, unless its environment adds what Python has already read.
        """
        arguments = [*self.command, "--json", "--config", str(self.config_file)]
        if not any(EARLY.match(name) for name in self.environment):
            return await self.forks().fork(self.folder, arguments, variables=self.environment)
        return await trio.lowlevel.open_process(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=self.folder,
            env={**environment(), **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    async def kill(self) -> None:
        """SIGKILL; returns when it is reaped."""
        if self.running:
            self.signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """SIGTERM; returns the exit code when it has ended."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        """Return the exit code when it has ended, and its log is read to the end."""
        assert self._process is not None
        with trio.fail_after(START_SECONDS):
            code = await self._process.wait()
            await self._log_ended.wait()
        return code

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def seen(self, event: str, **fields: object) -> dict[str, Any]:
        """Wait for such a log line; past ones count too."""
        with trio.fail_after(START_SECONDS):
            return await self._seen_since(0, event, fields)

    async def until(self, happened: Callable[[], bool], patience: float = START_SECONDS) -> None:
        """Wait until the logged lines make the condition true."""
        with trio.fail_after(patience):
            async with self._grown:
                while not happened():
                    await self._grown.wait()

    def count(self, event: str, **fields: object) -> int:
        return sum(_matches(line, event, fields) for line in self.log)

    async def _seen_since(
        self, since: int, event: str, fields: dict[str, object]
    ) -> dict[str, Any]:
        async with self._grown:
            while True:
                for line in self.log[since:]:
                    if _matches(line, event, fields):
                        return line
                since = max(since, len(self.log))
                if self._log_ended.is_set():
                    raise AssertionError(f"{self.folder.name} ended: {self.garbage}, {self.log}")
                await self._grown.wait()

    async def _read_log(self, process: trio.Process | ForkedProcess, ended: trio.Event) -> None:
        assert process.stderr is not None
        rest = b""
        async for chunk in process.stderr:
            *lines, rest = (rest + chunk).split(b"\n")
            await self._note(lines)
        await self._note([rest] if rest else [])
        ended.set()
        await self._note([])
        await process.wait()

    async def _note(self, lines: Sequence[bytes]) -> None:
        async with self._grown:
            for line in lines:
                try:
                    event = json.loads(line)
                    event["event"]  # an error at the end doesn't count
                    self.log.append(event)
                except (ValueError, KeyError, TypeError):
                    self.garbage.append(line.decode(errors="replace"))
            self._grown.notify_all()

    def _keep_ports(self, since: int) -> None:
        addresses = [
            line["address"]
            for line in self.log[since:]
            if line["event"] == "listening" and not line["address"].startswith("unix:")
        ]
        if not addresses:  # a syphon of its own listens nowhere
            return
        self.ports = [int(address.rpartition(":")[2]) for address in addresses]


@attrs.define(eq=False)
class Gateways:
    """
    Starts processes below one folder. All of them are killed when the scope ends.

    `environments` are the variables of some beside the usual ones, by the names of the processes.
    `forks` gives the fork server: that of another package than ours, where there is one.
    """

    folder: Path
    nursery: trio.Nursery
    environments: dict[str, Mapping[str, str]] = attrs.field(factory=dict)
    forks: Callable[[], ForkServer] = fork_server
    processes: list[GatewayProcess] = attrs.field(factory=list)

    def prepare(
        self, config: str, *, name: str = "", command: Sequence[str] = ("serve",)
    ) -> GatewayProcess:
        """A process that isn't started yet."""
        process = GatewayProcess(
            folder=self.folder / (name or f"gateway-{len(self.processes)}"),
            config=config,
            command=command,
            nursery=self.nursery,
            environment=self.environments.get(name, {}),
            forks=self.forks,
        )
        self.processes.append(process)
        return process

    async def start(
        self,
        config: str,
        *,
        name: str = "",
        command: Sequence[str] = ("serve",),
        wait: bool = True,
    ) -> GatewayProcess:
        """A process that runs."""
        process = self.prepare(config, name=name, command=command)
        await process.start(wait=wait)
        return process


@asynccontextmanager
async def open_gateways(
    folder: Path, forks: Callable[[], ForkServer] = fork_server
) -> AsyncIterator[Gateways]:
    """A scope for processes; outside of pytest-trio's fixtures too."""
    async with trio.open_nursery() as nursery:
        gateways = Gateways(folder=folder, nursery=nursery, forks=forks)
        try:
            yield gateways
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + START_SECONDS):
                for process in gateways.processes:
                    if process.running:
                        await process.kill()
            nursery.cancel_scope.cancel()


def environment() -> dict[str, str]:
    """
    Return the environment of a process of these tests: little, and the keys of its configuration.
    """
    return {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "default",
        KEY_VARIABLE: "SAS_KEY_VALUE",
        ENVELOPE_VARIABLE: ENVELOPE_SECRET,
    }


# For a pair whose primary answers or refuses at once: a stall of the machine is no outage.
PATIENT: Final[Mapping[str, object]] = {
    "attempt_timeout": "30s",
    "send_timeout": "60s",
    "slow_call_duration": "off",
}
# For a pair whose primary hangs: each send to it waits for an attempt to end.
# It is longer than the machine stalls.
IMPATIENT: Final[Mapping[str, object]] = {"attempt_timeout": "6s", "send_timeout": "60s"}


def broker_config(*queues: str, url: str = "embedded:broker.db") -> str:
    """A plain broker: one namespace, no pairing, one endpoint on a free port."""
    return f"""
logging = {{ level = "debug" }}

[namespaces.here]
url = "{url}"
queues = {json.dumps(queues)}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


def pair_config(primary: str, secondary: str, **pairing: object) -> str:
    """
    A gateway before two other processes, each at `host:port`; its endpoint has a free port. It is
    patient, unless the options say otherwise.
    """
    options = {
        "label": "east",
        "failover_interval": "1s",
        "enable_syphon": True,
        "ping_interval": "1s",
        **PATIENT,
        **pairing,
    }
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    return f"""
logging = {{ level = "debug" }}

[namespaces.primary]
url = "servicebus+http://RootManageSharedAccessKey@{primary}"
key = {{ env = "{KEY_VARIABLE}" }}

[namespaces.secondary]
url = "servicebus+http://RootManageSharedAccessKey@{secondary}"
key = {{ env = "{KEY_VARIABLE}" }}

[pairing]
primary = "primary"
secondary = "secondary"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]
{lines}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


def _matches(line: dict[str, Any], event: str, fields: dict[str, object]) -> bool:
    return line.get("event") == event and all(line.get(n) == v for n, v in fields.items())
