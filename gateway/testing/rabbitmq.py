"""
RabbitMQ as Debian installs it (`rabbitmq-server`), but as a process of ours: for any user, without
the system's service, and several side by side.
"""

import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.testing.servers import ServerFailed, ServerProcess, answers, free_port, running

USER: Final = "guest"  # and its password
MANAGEMENT: Final = "rabbitmq_management"  # the plugin
_HOMES: Final = Path("/usr/lib/rabbitmq/lib")
_HEADER: Final = b"AMQP\x00\x00\x09\x01"  # AMQP 0-9-1, 4.2.2
_METHOD_FRAME: Final = b"\x01"  # 4.2.3; the server begins with connection.start
_LIFE_LIMIT: Final = 120.0  # seconds to start, or to end


@asynccontextmanager
async def rabbitmq(
    folder: Path,
    name: str = "rabbit",
    *,
    plugins: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> AsyncIterator[tuple[ServerProcess, int]]:
    """
    Run a node with its data in `folder`; yield its process and its port for AMQP.

    The user is `guest`; `settings` are lines of rabbitmq.conf. It's killed in the end; its data
    stay.

    Raises:
        ServerFailed: it isn't installed, or didn't start.
    """
    home = home_of()
    port, names_port = free_port(), free_port()
    _prepare(folder, plugins, settings)
    # Erlang's name service: else the first node starts one that outlives us.
    names = ServerProcess(
        command=["epmd", "-port", str(names_port), "-address", "127.0.0.1"],
        folder=folder,
        is_ready=lambda: answers(names_port, b"\x00\x01n", b""),
    )
    node = ServerProcess(
        command=[str(home / "sbin" / "rabbitmq-server")],
        folder=folder,
        is_ready=lambda: answers(port, _HEADER, _METHOD_FRAME),
        environment=_environment(folder, home, f"{name}@localhost", port, names_port),
    )
    async with running(names), running(node):
        yield node, port


def management_at(port: int) -> tuple[str, ...]:
    """The settings by which the plugin listens on that port of 127.0.0.1."""
    return ("management.tcp.ip = 127.0.0.1", f"management.tcp.port = {port}")


async def control(node: ServerProcess, *arguments: str) -> str:
    """
    Run `rabbitmqctl` for a node that runs; return what it printed. It takes a second.

    Raises:
        ServerFailed: it refused.
    """
    command = [str(home_of() / "sbin" / "rabbitmqctl"), "--quiet"]
    done = await trio.run_process(
        [*command, "--node", node.environment["RABBITMQ_NODENAME"], *arguments],
        env={**os.environ, **node.environment},
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        raise ServerFailed(f"rabbitmqctl {arguments[0]}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


@attrs.define(eq=False, kw_only=True)
class LastingNode:
    """
    A node in a Trio of its own, in a thread: it outlives that of a test, and serves many.

    `plugins` and `settings` are those of `rabbitmq`.
    """

    folder: Path
    name: str = "rabbit"
    plugins: Sequence[str] = ()
    settings: Sequence[str] = ()
    _port: int = attrs.field(default=0, init=False)
    _process: ServerProcess | None = attrs.field(default=None, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _ready: threading.Event = attrs.field(factory=threading.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _token: trio.lowlevel.TrioToken | None = attrs.field(default=None, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)

    @property
    def port(self) -> int:
        """For AMQP; blocks until it's ready. Raises as `begin` and `process`."""
        self.process  # noqa: B018 it waits
        return self._port

    @property
    def process(self) -> ServerProcess:
        """
        For `control`; blocks until it's ready.

        Raises:
            ServerFailed: it didn't start.
        """
        self.begin()
        if not self._ready.wait(_LIFE_LIMIT) or self._process is None:
            raise ServerFailed(f"RabbitMQ didn't start: {self._error}") from self._error
        return self._process

    def begin(self) -> None:
        """Start it, if it wasn't, and don't wait."""
        if self._thread is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._thread = threading.Thread(target=self._run, name=f"rabbitmq {self.name}")
            self._thread.start()

    async def kill(self) -> None:
        """SIGKILL; return when it is gone."""
        await self._there(self.process.kill)

    async def start(self) -> None:
        """After `kill`: return when it's ready again. Raises ServerFailed."""
        await self._there(self.process.start)

    def end(self) -> None:
        """Block until it is gone."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        if self._thread is not None:
            self._thread.join(_LIFE_LIMIT)

    async def _there(self, act: Callable[[], Awaitable[None]]) -> None:
        """Its process belongs to its own Trio."""
        await trio.to_thread.run_sync(partial(trio.from_thread.run, act, trio_token=self._token))

    def _run(self) -> None:
        try:
            trio.run(self._hold)
        except BaseException as error:  # noqa: ASYNC103 it is raised in the tests' thread
            self._error = error
            self._ready.set()

    async def _hold(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            running_node = rabbitmq(
                self.folder, self.name, plugins=self.plugins, settings=self.settings
            )
            async with running_node as (self._process, self._port):
                self._ready.set()
                await trio.sleep_forever()


def _prepare(folder: Path, plugins: Sequence[str], settings: Sequence[str]) -> None:
    for each in ("mnesia", "log", "home"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    lines = ["loopback_users = none", "log.console = false", "log.file.level = warning", *settings]
    (folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in lines))
    (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")


def home_of() -> Path:
    """
    Where Debian's package is; the folder's name has the version.

    Raises:
        ServerFailed: it isn't installed.
    """
    homes = sorted(_HOMES.glob("rabbitmq_server-*"))
    if not homes or shutil.which("epmd") is None:
        raise ServerFailed("RabbitMQ isn't installed: Debian's package is rabbitmq-server")
    return homes[-1]


def _environment(folder: Path, home: Path, node: str, port: int, names_port: int) -> dict[str, str]:
    return {
        "HOME": str(folder / "home"),  # the cookie is made there
        "RUNNING_UNDER_SYSTEMD": "true",  # no shell around it: signals reach it
        "RABBITMQ_HOME": str(home),
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CTL_ERL_ARGS": "+S 1:1",  # rabbitmqctl does one thing, and starts faster so
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
