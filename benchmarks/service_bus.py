"""
Measures the gateway in front of Service Bus over AMQP, beside the same clients without it.

    azure-servicebus ──AMQP 1.0──────────────────────────▶ namespace     direct
    azure-servicebus ──AMQP 1.0──▶ pairgate ──AMQP 1.0───▶ namespace     a pair's primary
    adapter ───────────AMQP 1.0──────────────────────────▶ namespace     direct
    adapter ───────────AMQP 1.0──▶ pairgate ──AMQP 1.0───▶ namespace     a pair's primary
    adapter ───────────AMQP 1.0──▶ pairgate ──AMQP 1.0───▶ secondary     its primary is down
    processor ─────────AMQP 1.0──────────────────────────▶ namespace     direct
    processor ─────────AMQP 1.0──▶ pairgate ──AMQP 1.0───▶ namespace     a pair's primary

and both ways, with a hundred messages in flight only, of @azure/service-bus for Node.js, of
azservicebus for Go and azure-messaging-servicebus for Java where they can be built, of batches of a
hundred messages, of ten sessions, and of locks that are renewed before the completion.

A namespace is a Pairgate with a durable store, which stands for the service. Clients are processes
of their own, send for some seconds, and then receive and complete all messages, at the secondary
those that were diverted: a message that is missing ends the run. Each round visits every cell once.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from benchmarks.amqp import (
    PYTHON_OF_SDK,
    QUEUE,
    Effort,
    Job,
    Measure,
    client,
    visit,
)
from benchmarks.amqp_figures import Cell, Rounds, cells_of
from benchmarks.amqp_idle import service_bus
from benchmarks.comparisons import Report, compare, run
from benchmarks.fleet import LABEL, client_of, open_fleet
from benchmarks.machine import facts
from benchmarks.targets import Target
from gateway.demo.machines import KEY, KEY_NAME, KEY_VARIABLE
from gateway.demo.ports import free_port
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from tests.interop.gateways import BUILD, HERE
from tests.interop.runners import GO

SDK_DIRECT: Final = "SDK, direct"
SDK: Final = "SDK, gateway"
DIRECT: Final = "adapter, direct"
GATEWAY: Final = "adapter, gateway"
DIVERTED: Final = "adapter, diverted"
PROCESSOR_DIRECT: Final = "processor, direct"
PROCESSOR: Final = "processor, gateway"
GO_SDK: Final = "Go SDK"
JAVA_SDK: Final = "Java SDK"
NODE_SDK: Final = "Node SDK"
OTHERS: Final = (NODE_SDK, GO_SDK, JAVA_SDK, "batches", "sessions", "renewals")
OTHER_WAYS: Final = tuple(f"{name}, {way}" for name in OTHERS for way in ("direct", "gateway"))
WAYS: Final = (
    *(SDK_DIRECT, SDK, DIRECT, GATEWAY, DIVERTED, PROCESSOR_DIRECT, PROCESSOR),
    *OTHER_WAYS,
)
COMPARED: Final = (
    *((f"{name}, gateway", f"{name}, direct") for name in OTHERS),
    (SDK, SDK_DIRECT),
    (GATEWAY, DIRECT),
    (DIVERTED, DIRECT),
    (PROCESSOR, PROCESSOR_DIRECT),
)

NODE_CLIENT: Final = Path(__file__).with_name("amqp_node.js")
GO_CLIENT: Final = BUILD / "go-benchmark"
JAVA_BUILD: Final = BUILD / "java"
JAVA_OPTIONS: Final = BUILD / "java-benchmark"  # a file with the options of `java`, and the class
BUILD_LIMIT: Final = 600.0  # seconds: Maven may wait long for a repository that doesn't answer
PROCESS: Final = "gateway"
JUDGED: Final = 100  # messages in flight
# Seconds of the gateway's processor time for a message.
_IN_SESSIONS: Final = "in-sessions"
_SESSIONS: Final = QueueProperties(requires_session=True)
MOST: Final[Mapping[str, float]] = {"send": 60e-6, "receive, complete": 80e-6}


@attrs.frozen
class SourceJob(Job):
    """A job of a client that isn't plain."""

    source: str = ""  # where messages that are diverted are received; empty: where they are sent
    source_port: int = 0
    batch: int = 1  # messages of a send
    sessions: int = 0  # that the messages belong to in turn
    renews: bool = False  # each lock, before the completion


async def measure(
    folder: Path, ways: Sequence[str], windows: Sequence[int], effort: Effort
) -> Report:
    """
    Raises:
        ClientFailed: a message is missing, or a client got an error.
    """
    about = dict(facts(folder))
    for client_name, build in BUILDS.items():
        if any(way.startswith(client_name) for way in ways) and (missing := build()):
            about[client_name] = f"not measured: {missing}"
            ways = [way for way in ways if not way.startswith(client_name)]
    async with _open_ways(folder) as measures:
        usual = {way: measures[way] for way in ways if way not in OTHER_WAYS}
        others = {way: measures[way] for way in ways if way in OTHER_WAYS}
        judged = [window for window in windows if window == JUDGED]
        rounds = {
            **await visit(usual, windows, effort),
            **await visit(others, judged, effort),
        }
    about["load"] = f"{about['load']}, {os.getloadavg()[0]:.2f} after the last"
    return report(about, rounds)


def report(about: Mapping[str, str], rounds: Rounds) -> Report:
    comparisons = compare(rounds, COMPARED)
    cells = cells_of(rounds)
    targets = [
        _target(each)
        for each in cells
        if each.way in (GATEWAY, PROCESSOR) and each.window == JUDGED
    ]
    return Report(facts=about, cells=cells, comparisons=comparisons, targets=targets)


def _target(cell: Cell) -> Target:
    most, found = MOST[cell.operation], cell.servers[PROCESS]
    return Target(
        text=f"{cell.way}, {cell.operation}: at most {1e6 * most:.0f} us of the gateway,"
        f" {JUDGED} in flight",
        reached=found <= most,
        found=f"{1e6 * found:.0f} us",
    )


def build_go_client(go: str = GO) -> str:
    """Compile the client, with the module that `tests.interop` has; return why that failed."""
    if not Path(go).exists():
        return "Go isn't installed"
    command = [go, "build", "-o", str(GO_CLIENT), "./benchmark"]
    done = subprocess.run(command, cwd=HERE / "go", check=False, capture_output=True, text=True)
    # A build that downloads says so there, too.
    return done.stderr.strip() if done.returncode else ""


def build_java_client(maven: str = "mvn", java: str = "java") -> str:
    """Compile the client, in the project that `tests.interop` has; return why that failed."""
    if missing := [each for each in (maven, java) if shutil.which(each) is None]:
        return f"{', '.join(missing)} isn't installed"
    libraries = JAVA_BUILD / "libraries"
    goals = ["compile", "dependency:build-classpath", "-DincludeScope=runtime"]
    places = [f"-Dinterop.build={JAVA_BUILD}", f"-Dmdep.outputFile={libraries}"]
    command = [maven, "-q", "-B", "-pl", "servicebus", *places, *goals]
    try:
        done = subprocess.run(
            command,
            cwd=HERE / "java",
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"Maven took longer than {BUILD_LIMIT:.0f} s"
    if done.returncode:
        # The first line has the reason, the others the ways to find out more.
        return next(filter(None, done.stdout.splitlines()), f"Maven ended with {done.returncode}")
    classes = f"{JAVA_BUILD / 'servicebus' / 'classes'}:{libraries.read_text().strip()}"
    options = [
        f'-classpath "{classes}"',
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
        # Reactor has ten threads for each core; a processor with 32 calls wants one for each call.
        "-Dreactor.schedulers.defaultBoundedElasticSize=64",
        "pairgate.Benchmark",
    ]
    JAVA_OPTIONS.write_text("\n".join(options))
    return ""


# The clients in other languages, by their commands, and those that must be compiled.
FOREIGN: Final[Mapping[str, Sequence[str]]] = {
    NODE_SDK: ("node", str(NODE_CLIENT)),
    GO_SDK: (str(GO_CLIENT),),
    JAVA_SDK: ("java", f"@{JAVA_OPTIONS}"),
}
BUILDS: Final[Mapping[str, Callable[[], str]]] = {
    GO_SDK: build_go_client,
    JAVA_SDK: build_java_client,
}


@asynccontextmanager
async def _open_ways(folder: Path) -> AsyncIterator[Mapping[str, Measure]]:
    """All servers run side by side; only one client has work at a time."""
    backlog_queue = backlog.queue_name(LABEL, 0).name
    async with open_fleet(folder) as fleet:
        namespace = await fleet.start("namespace", service_bus(QUEUE))
        secondary = await fleet.start("secondary", service_bus(backlog_queue))
        healthy = await fleet.start("healthy", pair_config(namespace.port, secondary.port))
        diverting = await fleet.start("diverting", pair_config(free_port(), secondary.port))
        direct = SourceJob(namespace.port, {"namespace": namespace.pid}, KEY_NAME, KEY, QUEUE, True)
        through = attrs.evolve(
            direct, port=healthy.port, servers={PROCESS: healthy.pid, **direct.servers}
        )
        diverted = attrs.evolve(
            direct,
            port=diverting.port,
            servers={PROCESS: diverting.pid, "secondary": secondary.pid},
            source=backlog_queue,
            source_port=secondary.port,
        )
        async with client_of(namespace.port) as broker:
            await broker.create_queue(EntityPath(_IN_SESSIONS), _SESSIONS)
        sdk, adapter = str(PYTHON_OF_SDK), sys.executable
        others = {
            "batches": {"batch": 100},
            "sessions": {"sessions": 10, "address": _IN_SESSIONS},
            "renewals": {"renews": True},
        }
        ways = (("direct", direct), ("gateway", through))
        yield {
            SDK_DIRECT: client(direct, sdk, "benchmarks.amqp_azure"),
            SDK: client(through, sdk, "benchmarks.amqp_azure"),
            DIRECT: client(direct, adapter, "benchmarks.amqp_adapter"),
            GATEWAY: client(through, adapter, "benchmarks.amqp_adapter"),
            DIVERTED: client(diverted, adapter, "benchmarks.amqp_adapter"),
            PROCESSOR_DIRECT: client(direct, adapter, "benchmarks.amqp_processor"),
            PROCESSOR: client(through, adapter, "benchmarks.amqp_processor"),
            **{
                f"{name}, {way}": client(job, *command, module=False)
                for name, command in FOREIGN.items()
                for way, job in ways
            },
            **{
                f"{name}, {way}": client(
                    attrs.evolve(job, **change), adapter, "benchmarks.amqp_adapter"
                )
                for name, change in others.items()
                for way, job in ways
            },
        }


def pair_config(primary: int, secondary: int) -> str:
    """The configuration of a gateway before the namespaces on these ports."""
    namespaces = "".join(
        f"""
[namespaces.{name}]
url = "servicebus:Endpoint=sb://127.0.0.1:{port};\
SharedAccessKeyName={KEY_NAME};UseDevelopmentEmulator=true"
key = {{ env = "{KEY_VARIABLE}" }}
"""
        for name, port in (("primary", primary), ("secondary", secondary))
    )
    return f"""{namespaces}
[pairing]
primary = "primary"
secondary = "secondary"
label = "{LABEL}"
backlog_queues = 1

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"
"""


def main() -> int:
    return run("The costs of the gateway before Service Bus.", WAYS, measure)


if __name__ == "__main__":
    sys.exit(main())
