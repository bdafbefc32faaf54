"""
RabbitMQ as Debian installs it (`rabbitmq-server`), but as a process of ours: for any user, without
the system's service, and several side by side.

RabbitMQ 4 is Debian 13's, unpacked by `unpack.sh`: `make` does so. For its processes alone, the
folder takes the place of /usr.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.demo.ports import free_port
from tests.harness.lasting import Lasting
from tests.harness.servers import ServerFailed, ServerProcess, answers, kill, running

USER: Final = "guest"  # and its password
USERS: Final = "rabbit_auth_backend_internal"  # the module of Erlang
MANAGEMENT: Final = "rabbitmq_management"  # the plugin
_HOMES: Final = "usr/lib/rabbitmq/lib"  # below the root
_BENEATH: Final = 'mount --bind "$0" /usr && exec "$@"'
_HEADER: Final = b"AMQP\x00\x00\x09\x01"  # AMQP 0-9-1, 4.2.2
_CALLS: Final = count()
_OK: Final = "{ok, "  # before the result of an expression
_METHOD_FRAME: Final = b"\x01"  # 4.2.3; the server begins with connection.start
_TOTAL: Final = """
lists:sum([
    begin
        {{ok, {{_, Total}}, _}} =
            ra:local_query(amqqueue:get_pid(Queue), fun rabbit_fifo:query_messages_total/1),
        Total
    end
    || Queue <- rabbit_amqqueue:list(<<"/">>),
    {{resource, _, _, Name}} <- [amqqueue:get_name(Queue)],
    string:prefix(Name, <<"{}">>) =/= nomatch,
    binary:match(Name, <<":">>) =:= nomatch,
    amqqueue:get_type(Queue) =:= rabbit_quorum_queue
]).
"""


@attrs.frozen
class Release:
    """A RabbitMQ of this machine, which may be missing."""

    root: Path

    def home(self) -> Path:
        """
        Return the folder of Debian's package, whose name has the version.

        Raises:
            ServerFailed: it isn't there.
        """
        homes = sorted((self.root / _HOMES).glob("rabbitmq_server-*"))
        if not homes:
            raise ServerFailed(f"no RabbitMQ below {self.root}: `make test` brings it")
        return Path("/") / homes[-1].relative_to(self.root)

    def command(self, program: str, *arguments: str) -> list[str]:
        """A command that runs a program of RabbitMQ or of Erlang."""
        if self.root == Path("/"):
            return [program, *arguments]
        # A mount namespace of its own: for root, and else for a user who is root in it alone.
        apart = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        return [*apart, "sh", "-c", _BENEATH, str(self.root / "usr"), program, *arguments]


INSTALLED: Final = Release(Path("/"))
RABBITMQ_4: Final = Release(Path(__file__).parents[2] / ".rabbitmq-4")


@asynccontextmanager
async def rabbitmq(
    folder: Path,
    name: str = "rabbit",
    *,
    release: Release = INSTALLED,
    plugins: Sequence[str] = (),
    settings: Sequence[str] = (),
    erlang: str = "",
) -> AsyncIterator[tuple[ServerProcess, int]]:
    """
    Run a node with its data in `folder`; yield its process and its port for AMQP.

    The user is `guest`; `settings` are lines of rabbitmq.conf, `erlang` are arguments of Erlang's
    runtime system. It's killed in the end; its data stay.

    Raises:
        ServerFailed: it isn't installed, or didn't start.
    """
    port, names_port = free_port(), free_port()
    prepare(folder, plugins, settings)
    # Erlang's name service: else the first node starts one that outlives us.
    names = ServerProcess(
        command=release.command("epmd", "-port", str(names_port), "-address", "127.0.0.1"),
        folder=folder,
        is_ready=lambda: answers(names_port, b"\x00\x01n", b""),
    )
    environment = node_environment(folder, f"{name}@localhost", port, names_port, release)
    environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += f" {erlang}"
    node = node_process(folder, port, environment, release)
    async with running(names), running(node):
        yield node, port


def management_at(port: int) -> tuple[str, ...]:
    """The settings by which the plugin listens on that port of 127.0.0.1."""
    return ("management.tcp.ip = 127.0.0.1", f"management.tcp.port = {port}")


def control_command(node: ServerProcess) -> list[str]:
    """`rabbitmqctl` of the node's release, for its environment."""
    beside = Path(node.environment["RABBITMQ_HOME"]) / "sbin" / "rabbitmqctl"
    return [*node.command[:-1], str(beside), "--quiet"]


async def control(node: ServerProcess, *arguments: str) -> str:
    """
    Run `rabbitmqctl` for a running node; return its output. A call takes a second of a processor:
    `make` and `evaluate` do without.

    Raises:
        ServerFailed: the command failed.
    """
    named = ("--node", node.environment["RABBITMQ_NODENAME"])
    done = await trio.run_process(
        [*control_command(node), *named, *arguments],
        env={**os.environ, **node.environment},
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        deliver_cancel=kill,
    )
    if done.returncode:
        raise ServerFailed(f"rabbitmqctl {arguments[0]}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


async def evaluate(node: ServerProcess, expression: str) -> str:
    """
    Evaluate Erlang in a node that runs; return the result as Erlang's C library prints it. Unlike
    `control` it starts no runtime system, which takes half a second of a processor.

    Raises:
        ServerFailed: the node can't be reached, or the expression failed.
    """
    # A name of its own: the node may still have the connection of the last call.
    name = f"call-{os.getpid()}-{next(_CALLS)}"
    done = await trio.run_process(
        [
            *node.command[:-1],
            *("erl_call", "-h", name, "-n", node.environment["RABBITMQ_NODENAME"], "-e"),
        ],
        env={**os.environ, **node.environment},
        stdin=f"{expression}\n".encode(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        deliver_cancel=kill,
    )
    printed = done.stdout.decode(errors="replace").strip()
    if done.returncode or not printed.startswith(_OK):
        raise ServerFailed(f"erl_call: {printed} {done.stderr.decode(errors='replace')}")
    return printed.removeprefix(_OK).removesuffix("}")


async def make(node: ServerProcess, function: str, *arguments: str | float) -> None:
    """
    Make a change by an Erlang function that returns `ok`; texts become binaries.

    Raises:
        ServerFailed: as `evaluate`, or the function returned something else.
    """
    terms = ", ".join(
        f"<<{json.dumps(each)}/utf8>>" if isinstance(each, str) else f"{each:f}"
        for each in arguments
    )
    result = await evaluate(node, f"{function}({terms}).")
    if result != "ok":
        raise ServerFailed(f"{function}: {result}")


async def add_user(node: ServerProcess, name: str, password: str, *rights: str) -> None:
    """Add a user with these rights, or without any: as `set_rights`, which raises the same."""
    await make(node, f"{USERS}:add_user", name, password, USER)
    await set_rights(node, name, *rights)


async def set_rights(
    node: ServerProcess,
    name: str,
    configure: str = "^$",
    write: str = "^$",
    read: str = "^$",
    *,
    vhost: str = "/",
) -> None:
    """Set the rights of a user in a vhost; without any that are named it has none. As `make`."""
    await make(node, f"{USERS}:set_permissions", name, vhost, configure, write, read, USER)


async def delete_user(node: ServerProcess, name: str) -> None:
    """Delete a user, whose connections end. Raises as `make`."""
    await make(node, f"{USERS}:delete_user", name, USER)


async def limit_memory(node: ServerProcess, part: float) -> None:
    """Set the part of the machine's memory above which there is an alarm. Raises as `make`."""
    await make(node, "vm_memory_monitor:set_vm_memory_high_watermark", part)


async def keep_queues(node: ServerProcess) -> None:
    """
    Return when a kill takes no queue. RabbitMQ 3.10 forgets its newest quorum queues when it is
    killed within seconds.

    Raises:
        ServerFailed: as `evaluate`.
    """
    await evaluate(node, "[dets:sync(Table) || Table <- dets:all()].")


async def messages_on(node: ServerProcess, prefix: str) -> int:
    """
    The messages on all quorum queues whose names begin so, locked ones too. They are read from the
    queues themselves: `list_queues` reports their state of five seconds ago.

    Raises:
        ServerFailed: as `evaluate`.
    """
    return int(await evaluate(node, _TOTAL.format(prefix)))


@attrs.define(eq=False, kw_only=True)
class LastingNode:
    """
    A node that outlives the Trio of a test, and serves many.

    `plugins`, `settings` and `release` are those of `rabbitmq`.
    """

    folder: Path
    name: str = "rabbit"
    release: Release = INSTALLED
    plugins: Sequence[str] = ()
    settings: Sequence[str] = ()
    _lasting: Lasting[tuple[ServerProcess, int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._lasting = Lasting(
            f"RabbitMQ {self.name}",
            lambda: rabbitmq(
                self.folder,
                self.name,
                release=self.release,
                plugins=self.plugins,
                settings=self.settings,
            ),
        )

    @property
    def port(self) -> int:
        """The node's port for AMQP; blocks until it's ready. Raises as `process`."""
        return self._lasting.value[1]

    @property
    def process(self) -> ServerProcess:
        """
        The node's process, for `control`; blocks until it's ready.

        Raises:
            ServerFailed: it didn't start.
        """
        return self._lasting.value[0]

    def begin(self) -> None:
        """Start it, if it wasn't, and don't wait."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lasting.begin()

    async def kill(self) -> None:
        """SIGKILL; return when it is gone."""
        await self._lasting.there(self.process.kill)

    async def start(self) -> None:
        """Start the node again after `kill`; return when it's ready. Raises ServerFailed."""
        await self._lasting.there(self.process.start)

    def end(self) -> None:
        """Block until it is gone."""
        self._lasting.end()


def node_process(
    folder: Path, port: int, environment: Mapping[str, str], release: Release = INSTALLED
) -> ServerProcess:
    """A node that isn't started yet; it's ready when it speaks AMQP. Raises as `Release.home`."""
    return ServerProcess(
        command=release.command(str(release.home() / "sbin" / "rabbitmq-server")),
        folder=folder,
        is_ready=lambda: answers(port, _HEADER, _METHOD_FRAME),
        environment=environment,
    )


def prepare(folder: Path, plugins: Sequence[str], settings: Sequence[str]) -> None:
    """Make the folders of a node, and the files of its configuration."""
    for each in ("mnesia", "log", "home"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    lines = ["loopback_users = none", "log.console = false", "log.file.level = warning", *settings]
    (folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in lines))
    (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")


def node_environment(
    folder: Path, node: str, port: int, names_port: int, release: Release = INSTALLED
) -> dict[str, str]:
    """
    The environment that gives a node its own folders and ports.

    `names_port` is the port of Erlang's name service.
    """
    return {
        "HOME": str(folder / "home"),  # the cookie is made there
        "RUNNING_UNDER_SYSTEMD": "true",  # no shell around it: signals reach it
        "RABBITMQ_HOME": str(release.home()),
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
