"""
The tests of RabbitMQ's own clients: each suite runs directly, then through a gateway. They are
those of each client's repository. They expect the broker at its usual port, which is replaced. A
test that fails directly, too, is skipped.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import attrs

from tests.harness.rabbitmq import INSTALLED, RABBITMQ_4, LastingNode, Release
from tests.interop.clones import Clone
from tests.interop.family import FAILED, PASSED, SKIPPED, Family, Result, Suite, Wishes
from tests.interop.gateways import BUILD, ROOT, gateway

PLACE: Final = BUILD / "rabbitmq"
USUAL_PORT: Final = "5672"
_AT_HAND: Final = "not (gevent or tornado)"  # both would have to be installed
# The requirements of kombu; `make test` installs them for another of its tests.
_MORE: Final = sorted(ROOT.glob(".venv-azure/lib/python*/site-packages"))
LIMIT: Final = 900.0  # seconds of one run of a suite


@attrs.frozen(kw_only=True)
class Client:
    """A client, and how to run the tests of its repository in `folder`."""

    name: str
    version: str
    language: str
    clone: Clone
    run: Callable[..., Mapping[str, Result]]  # in the folder with its files

    def missing(self) -> str:
        return self.clone.missing() or ("" if shutil.which("node") else "node")

    def unpacked(self, port: int) -> Path:
        """A folder with the files of that commit, for a broker at that port."""
        folder = PLACE / self.name
        self.clone.unpack(folder)
        for file in folder.rglob("*"):
            if file.suffix in {".py", ".js"} and USUAL_PORT in (text := file.read_text()):
                file.write_text(re.sub(rf"\b{USUAL_PORT}\b", str(port), text))
        return folder


def _pytest(*chosen: str, folder: Path, wishes: Wishes) -> dict[str, Result]:
    report, settings = folder / "report.xml", folder / "only.ini"
    settings.write_text("[pytest]\npython_classes = Test* test_*\n")  # not the client's own options
    options = ["-c", str(settings), f"--rootdir={folder}", "-p", "no:cacheprovider", "-q"]
    options += ["-W", "ignore", "--timeout=60", f"--junitxml={report}", "--tb=line"]
    options += ["-k", f"{_AT_HAND} and ({wishes.words})" if wishes.words else _AT_HAND]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *map(str, _MORE)])},
        timeout=LIMIT,
        check=False,
    )
    return dict(_cases(report))


def _node(*files: str, folder: Path, wishes: Wishes) -> dict[str, Result]:
    report, chosen = folder / "report.xml", [f"test/{each}.test.js" for each in files]
    words = ["--test-name-pattern", wishes.words] if wishes.words else []
    reporter = ["--test-reporter=junit", f"--test-reporter-destination={report}"]
    # The suite's own limit is a second, which a machine with more to do exceeds.
    options = ["--test", "--test-concurrency=1", "--test-timeout=120000", *reporter, *words]
    subprocess.run(["node", *options, *chosen], cwd=folder, timeout=LIMIT, check=False)
    return dict(_cases(report))


def _cases(report: Path) -> Iterator[tuple[str, Result]]:
    """The results in a report of JUnit's form, by class and name."""
    seen: dict[str, int] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        seen[name] = seen.get(name, 0) + 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        bad = case.find("failure") if case.find("error") is None else case.find("error")
        if bad is not None:
            text = bad.get("message") or bad.text or ""
            yield name, Result(FAILED, text.strip().partition("\n")[0])
        elif case.find("skipped") is not None:
            yield name, Result(SKIPPED)
        else:
            yield name, Result(PASSED)


@contextmanager
def _broker(release: Release) -> Iterator[int]:
    folder = PLACE / "broker"
    shutil.rmtree(folder, ignore_errors=True)
    node = LastingNode(folder=folder, release=release)
    node.begin()
    try:
        yield node.port
    finally:
        node.end()


def _run(client: Client, release: Release, wishes: Wishes) -> dict[str, Result]:
    os.environ["INTEROP_RABBITMQ"] = "guest"
    with _broker(release) as broker:  # one for each run: tests leave messages behind
        directly = client.run(folder=client.unpacked(broker), wishes=wishes)
    with (
        _broker(release) as broker,
        gateway("rabbitmq.toml", name="rabbitmq-gateway", broker=broker) as served,
    ):
        through = client.run(folder=client.unpacked(served.port), wishes=wishes)
    return {name: _compared(directly.get(name), each) for name, each in through.items()}


def _compared(directly: Result | None, through: Result) -> Result:
    if through.outcome == FAILED and directly is not None and directly.outcome == FAILED:
        return Result(SKIPPED, f"fails directly, too: {directly.reason}")
    return through


_PIKA: Final = (
    "async_adapter_tests",
    "blocking_adapter_test",
    "enforce_one_basicget_test",
    "thread_safe_bounded_queue_test",
    "thread_safe_connection_test",
)
CLIENTS: Final = (
    Client(
        name="pika",
        version="1.4.0",
        language="Python",
        clone=Clone("pika/pika", "2126d43a"),
        run=partial(_pytest, *(f"tests/acceptance/{each}.py" for each in _PIKA)),
    ),
    Client(
        name="kombu",
        version="5.6.2",
        language="Python",
        clone=Clone("celery/kombu", "9ee8595b"),
        run=partial(_pytest, "-E", "py-amqp", "t/integration/test_py_amqp.py"),
    ),
    Client(
        name="amqplib",
        version="2.0.1",
        language="Node.js",
        clone=Clone("amqp-node/amqplib", "f7503e5"),
        run=partial(_node, "callback_api", "channel_api", "connect"),
    ),
)


def _family(client: Client) -> Family:
    """A client's tests before each release: RabbitMQ 4, and the one that is installed."""
    releases = {"": ("RabbitMQ 4.0", RABBITMQ_4), "-3": ("RabbitMQ 3.10", INSTALLED)}
    return Family(
        name=f"rabbitmq-{client.name}",
        language=client.language,
        suites=tuple(
            Suite(
                name=client.name + suffix,
                client=client.name,
                version=client.version,
                what=f"its own tests, through the endpoint `rabbitmq` before {name}",
                run=partial(_run, client, release),
            )
            for suffix, (name, release) in releases.items()
        ),
        missing=client.missing,
    )


FAMILIES: Final = tuple(map(_family, CLIENTS))
