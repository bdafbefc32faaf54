"""
The tests of RabbitMQ's own clients: each suite runs directly, then through a gateway. They are
those of each client's repository, or ours, in the Maven project of Java's clients. The former
expect the broker and its management at their usual ports, which are replaced. A test that fails
directly, too, is skipped. Producers of ours publish through a gateway while the broker is killed,
and while it's frozen.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.demo.ports import free_port
from tests.harness.rabbitmq import (
    INSTALLED,
    MANAGEMENT,
    RABBITMQ_4,
    LastingNode,
    Release,
    control_command,
    management_at,
)
from tests.interop.clones import Clone
from tests.interop.families.go import MODULE, version_in
from tests.interop.families.java import PROJECT, results_in, version_of
from tests.interop.family import FAILED, PASSED, SKIPPED, Family, Result, Suite, Wishes
from tests.interop.gateways import BUILD, HERE, ROOT, gateway
from tests.interop.runners import (
    GO,
    LIMIT,
    MODULES,
    run_go,
    run_jest,
    run_node,
    run_pytest,
    run_zunit,
)

PLACE: Final = BUILD / "rabbitmq"
OURS: Final = HERE / "rabbitmq"
USUAL_PORT: Final = 5672
USUAL_MANAGEMENT: Final = 15672
# Seconds from a producer's first message to the harm, and of the harm; the producer takes 40.
_BEFORE: Final = 8.0
_DOWN: Final = 10.0
_LOOK: Final = 0.2  # seconds
_REPLACED: Final = {".py", ".js", ".ts", ".go", ".java"}  # files in which the ports are
# The requirements of kombu; `make test` installs them for another of its tests.
_KOMBU: Final = sorted(ROOT.glob(".venv-azure/lib/python*/site-packages"))
PYTHON: Final = ROOT / ".venv-rabbitmq" / "bin" / "python"


@attrs.frozen
class Place:
    """Where the tests find a broker."""

    port: int
    management: int  # its HTTP API, past the gateway
    control: Path  # its `rabbitmqctl`

    def replaced(self, text: str) -> str:
        """A text of the client's, with these ports."""
        text = re.sub(rf"\b({USUAL_PORT}|AMQP\.PROTOCOL\.PORT)\b", str(self.port), text)
        # Java's client has a port already.
        made = r"(\w+) = new \w*ConnectionFactory\(\);"
        text = re.sub(made, rf"\g<0> \1.setPort({self.port});", text)
        return re.sub(rf"\b{USUAL_MANAGEMENT}\b", str(self.management), text)

    @property
    def environment(self) -> Mapping[str, str]:
        broker = f"guest:guest@127.0.0.1:{self.port}/"
        return {
            "INTEROP_PORT": str(self.port),
            "AMQP_URL": f"amqp://{broker}",  # amqp091-go
            "TEST_BROKER": f"pyamqp://{broker}/",  # Celery
            "TEST_BACKEND": "rpc",
            "INTEROP_CONTROL": str(self.control),
        }


@attrs.frozen(kw_only=True)
class Client:
    """A client, and how to run its tests, those of its repository in `folder`."""

    name: str
    version: str
    language: str
    clone: Clone | None = None  # None: the tests are ours
    what: str = "its own tests"
    run: Callable[..., Mapping[str, Result]]  # in the folder with its files
    # As `run`, less the tests that wait for ever for the broker's management.
    run_alone: Callable[..., Mapping[str, Result]] | None = None
    needs: Sequence[str | Path] = ()
    stand_ins: Mapping[str, Path] = attrs.field(factory=dict)  # instead of some of its files
    is_harmed: bool = False  # its broker is killed, and frozen, meanwhile

    def missing(self) -> str:
        lacking = [str(each) for each in self.needs if shutil.which(each) is None]
        return (self.clone and self.clone.missing()) or ", ".join(lacking)

    def unpacked(self, place: Place) -> Path:
        """A folder with the files of that commit, if any, for a broker at that place."""
        folder = PLACE / self.name
        if self.clone is None:
            return folder
        self.clone.unpack(folder)
        for file in folder.rglob("*"):
            if file.suffix in _REPLACED and file.is_file():
                text = file.read_text()
                if (replaced := place.replaced(text)) != text:
                    file.write_text(replaced)
        for name, ours in self.stand_ins.items():
            (folder / name).write_bytes(ours.read_bytes())
        return folder

    def tested(self, place: Place, wishes: Wishes) -> Mapping[str, Result]:
        os.environ.update(place.environment)
        return self.run(folder=self.unpacked(place), wishes=wishes)


@contextmanager
def _broker(name: str, release: Release) -> Iterator[Place]:
    """A broker of its own for each run: tests leave messages behind."""
    with _node(name, release) as (node, management):
        yield _place(node, management)


def _place(node: LastingNode, management: int) -> Place:
    """Where the node is, once it's ready."""
    process, program = node.process, node.folder / "rabbitmqctl"
    environment = [f"{name}={value}" for name, value in process.environment.items()]
    command = shlex.join(["env", *environment, *control_command(process)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return Place(node.port, management, program)


@contextmanager
def _node(name: str, release: Release) -> Iterator[tuple[LastingNode, int]]:
    """A node, and the port of its management."""
    folder, management = PLACE / f"{name}-broker", free_port()
    shutil.rmtree(folder, ignore_errors=True)
    node = LastingNode(
        folder=folder,
        release=release,
        plugins=(MANAGEMENT,),
        # Some tests are older than the limit of RabbitMQ 4.
        settings=(*management_at(management), "max_message_size = 134217728"),
    )
    node.begin()
    try:
        yield node, management
    finally:
        node.end()


def _run(client: Client, release: Release, wishes: Wishes) -> dict[str, Result]:
    os.environ["INTEROP_RABBITMQ"] = "guest"
    with _broker(client.name, release) as broker:
        directly = client.tested(broker, wishes)
    with (
        _broker(client.name, release) as broker,
        gateway(
            "rabbitmq/gateway.toml", name=f"{client.name}-gateway", broker=broker.port
        ) as served,
    ):
        through = client.tested(attrs.evolve(broker, port=served.port), wishes)
    return {
        name: _compared(directly.get(name), through.get(name)) for name in {**directly, **through}
    }


def _run_harmed(client: Client, release: Release, wishes: Wishes) -> Mapping[str, Result]:
    """Through a gateway whose broker is killed when the producer asks for it, and frozen."""
    os.environ["INTEROP_RABBITMQ"] = "guest"
    with (
        _node(client.name, release) as (node, management),
        gateway("rabbitmq/gateway.toml", name=f"{client.name}-gateway", broker=node.port) as served,
        _harming(node, served.folder / "harms"),
    ):
        return client.tested(attrs.evolve(_place(node, management), port=served.port), wishes)


@contextmanager
def _harming(node: LastingNode, folder: Path) -> Iterator[None]:
    """
    Do for a while what a file in `folder` is named after, once it's there: `killed`, `frozen`. In
    the end print what the producers have left there.
    """
    folder.mkdir()
    os.environ["INTEROP_HARMS"] = str(folder)
    over, harms = threading.Event(), {"killed": _kill, "frozen": _freeze}

    def watch() -> None:
        left = dict(harms)
        while not over.wait(_LOOK):
            for name in [each for each in left if (folder / each).exists()]:
                over.wait(_BEFORE)
                left.pop(name)(node, over)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    for file in sorted(folder.glob("*.figures")):
        sys.stdout.write(f"{file.stem}: {file.read_text()}\n")


def _kill(node: LastingNode, over: threading.Event) -> None:
    trio.run(node.kill)
    over.wait(_DOWN)
    trio.run(node.start)


def _freeze(node: LastingNode, over: threading.Event) -> None:
    os.kill(node.process.pid, signal.SIGSTOP)
    over.wait(_DOWN)
    os.kill(node.process.pid, signal.SIGCONT)


def _run_embedded(client: Client, wishes: Wishes) -> dict[str, Result]:
    """Through a gateway without a RabbitMQ, whose management isn't there."""
    os.environ["INTEROP_RABBITMQ"] = "guest"
    with _broker(client.name, RABBITMQ_4) as broker:
        directly = client.tested(broker, wishes)
        with gateway("rabbitmq/embedded.toml", name=f"{client.name}-gateway") as served:
            alone = attrs.evolve(client, run=client.run_alone or client.run)
            through = alone.tested(attrs.evolve(broker, port=served.port), wishes)
    return {
        name: _compared(directly.get(name), through.get(name)) for name in {**directly, **through}
    }


def _run_module(*, folder: Path, wishes: Wishes) -> dict[str, Result]:
    """A package of ours in the module of Go's clients."""
    return run_go(folder=MODULE / "rabbitmq", wishes=wishes)


def _run_java_suite(*less: str, folder: Path, wishes: Wishes) -> dict[str, Result]:
    """The classes of the functional suite in the client's repository, less some of their tests."""
    tests = folder / "src" / "test"
    os.environ["INTEROP_TESTS"] = str(tests)
    [suite] = tests.rglob("FunctionalTestSuite.java")
    classes = re.findall(r"(\w+)\.class", suite.read_text())
    kept = [each for each in classes if each not in less]
    return _run_maven(*kept, less=less, module="amqp-client", folder=folder, wishes=wishes)


def _run_maven(
    *tests: str,
    less: Sequence[str] = (),
    module: str = "rabbitmq",
    folder: Path,
    wishes: Wishes,
) -> dict[str, Result]:
    """Wishes choose among their methods."""
    reports = BUILD / "java" / f"{module}-reports"
    shutil.rmtree(reports, ignore_errors=True)
    words = f"#*{wishes.words}*" if wishes.words else ""
    chosen = ",".join([*(each + words for each in tests), *(f"!{each}" for each in less)])
    options = [f"-Dinterop.build={BUILD / 'java'}", "-pl", module, f"-Dtest={chosen}"]
    subprocess.run(
        ["mvn", "-q", "-B", *options, "test"],
        cwd=PROJECT,
        env={**os.environ, "INTEROP_TRUST": "", "INTEROP_LOG": "off"},
        timeout=LIMIT,
        check=False,
    )
    return dict(results_in(reports))


def _compared(directly: Result | None, through: Result | None) -> Result:
    if directly is not None and directly.outcome == FAILED:
        return Result(SKIPPED, f"fails directly, too: {directly.reason}")
    if through is None:
        return Result(FAILED, "isn't run, though it is directly")
    if directly is not None and directly.outcome == PASSED and through.outcome == SKIPPED:
        return Result(FAILED, f"is skipped, though it passes directly: {through.reason}")
    return through


_PIKA: Final = (
    "async_adapter_tests",
    "blocking_adapter_test",
    "enforce_one_basicget_test",
    "thread_safe_bounded_queue_test",
    "thread_safe_connection_test",
)
# `amqps` needs the image's certificates, `memory_leak` no broker.
_AIO_PIKA: Final = ("amqp", "amqp_robust", "amqp_robust_proxy", "master", "pool", "rpc")
_CELERY: Final = (
    "canvas",
    "connection_recovery",
    "inspect",
    "loader",
    "security",
    "serialization",
    "tasks",
    "worker",
)
# The first needs packages for traces that Maven doesn't find, the next no broker, the last minutes.
_NOT_RUN: Final = (
    "MicrometerObservationCollectorMetrics",
    "WorkPoolTests",
    "ConnectionRecovery#declarationOfMany*",
)
# The tests of these wait for what `rabbitmqctl` does to the broker.
_CONTROLLING: Final = ("ConnectionRecovery", "TopologyRecoveryRetry", "Policies")
CLIENTS: Final = (
    Client(
        name="pika",
        version="1.4.0",
        language="Python",
        clone=Clone("pika/pika", "2126d43a"),
        run=partial(
            run_pytest,
            *(f"tests/acceptance/{each}.py" for each in _PIKA),
            packages=_KOMBU,
            words="not (gevent or tornado)",  # both would have to be installed
        ),
    ),
    Client(
        name="aio-pika",
        version="9.6.0",
        language="Python",
        clone=Clone("mosquito/aio-pika", "0a9f24c9"),
        run=partial(run_pytest, *(f"tests/test_{each}.py" for each in _AIO_PIKA), python=PYTHON),
        needs=(PYTHON,),
        stand_ins={"tests/docker_client.py": OURS / "docker_client.py"},
    ),
    Client(
        name="kombu",
        version="5.6.2",
        language="Python",
        clone=Clone("celery/kombu", "9ee8595b"),
        run=partial(run_pytest, "-E", "py-amqp", "t/integration/test_py_amqp.py", packages=_KOMBU),
    ),
    Client(
        name="celery",
        version="5.6.2",
        language="Python",
        clone=Clone("celery/celery", "5dc781f0"),
        # A test that is run again is another one in the report.
        run=partial(
            run_pytest,
            *("-p", "celery.contrib.pytest", "-p", "no:rerunfailures"),
            *(f"t/integration/test_{each}.py" for each in _CELERY),
            python=PYTHON,
        ),
        needs=(PYTHON,),
    ),
    Client(
        name="amqplib",
        version="2.0.1",
        language="Node.js",
        clone=Clone("amqp-node/amqplib", "f7503e5"),
        run=partial(run_node, "callback_api", "channel_api", "connect"),
        needs=("node",),
    ),
    Client(
        name="amqp-connection-manager",
        version="5.0.0",
        language="Node.js",
        clone=Clone("jwalton/node-amqp-connection-manager", "1f26c31"),
        run=partial(run_jest, "integrationTest"),
        needs=("node", MODULES / "jest" / "bin" / "jest.js"),
    ),
    Client(
        name="rascal",
        version="21.0.1",
        language="Node.js",
        clone=Clone("onebeyond/rascal", "22017c3"),
        run=run_zunit,
        needs=("node", MODULES / "jest" / "bin" / "jest.js"),
    ),
    Client(
        name="amqp091-go",
        version="1.14.0",
        language="Go",
        clone=Clone("rabbitmq/amqp091-go", "28da80d"),
        run=partial(run_go, "-tags=integration"),
        run_alone=partial(run_go, "-tags=integration", "-skip=Recovery"),
        needs=(GO,),
    ),
    Client(
        name="amqp-client",
        version=version_of("rabbitmq", "amqp-client"),
        language="Java",
        what="confirms, consumers, returns, transactions, replies, exchanges, errors",
        run=partial(_run_maven, "ClientTest"),
        needs=("java", "mvn"),
    ),
    Client(
        name="amqp-client-suite",
        version=version_of("amqp-client", "amqp-client"),
        language="Java",
        clone=Clone("rabbitmq/rabbitmq-java-client", "v5.35.0"),
        what="the functional suite of its own tests",
        run=partial(_run_java_suite, *_NOT_RUN),
        run_alone=partial(_run_java_suite, *_NOT_RUN, *_CONTROLLING),
        needs=("java", "mvn"),
    ),
    Client(
        name="spring-rabbit",
        version=version_of("rabbitmq", "spring-rabbit"),
        language="Java",
        what="templates, confirms, replies, containers of listeners, dead letters, transactions, "
        "administration",
        run=partial(_run_maven, "SpringTest"),
        needs=("java", "mvn"),
    ),
    Client(
        name="amqp091-go-outage",
        version=version_in("amqp091-go"),
        language="Go",
        what="10,000 publishes with confirms while the broker is killed, and while it's frozen",
        run=_run_module,
        needs=(GO,),
        is_harmed=True,
    ),
    Client(
        name="spring-rabbit-outage",
        version=version_of("rabbitmq", "spring-rabbit"),
        language="Java",
        what="10,000 publishes of a template while the broker is killed, and while it's frozen",
        run=partial(_run_maven, "OutageTest"),
        needs=("java", "mvn"),
        is_harmed=True,
    ),
)


def _family(client: Client) -> Family:
    """A client's tests before each release: RabbitMQ 4, and the one that is installed."""
    run = _run_harmed if client.is_harmed else _run
    ways = {
        "": ("RabbitMQ 4.0", partial(run, client, RABBITMQ_4)),
        "-3": ("RabbitMQ 3.10", partial(run, client, INSTALLED)),
    }
    if not client.is_harmed:
        ways["-embedded"] = (
            "embedded stores, without RabbitMQ",
            partial(_run_embedded, client),
        )
    return Family(
        name=f"rabbitmq-{client.name}",
        language=client.language,
        suites=tuple(
            Suite(
                name=client.name + suffix,
                client=re.sub("-(outage|suite)$", "", client.name),
                version=client.version,
                what=f"{client.what}, through the endpoint `rabbitmq` before {name}",
                run=run,
            )
            for suffix, (name, run) in ways.items()
        ),
        missing=client.missing,
    )


FAMILIES: Final = tuple(map(_family, CLIENTS))
