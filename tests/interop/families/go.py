"""
Programs of ours with the clients for Go, as Go's own tests, and Dapr's conformance tests with the
clients that Dapr has; the versions are in each module's `go.mod`.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from gateway.demo.ports import free_port
from tests.interop.family import Family, Result, Suite, Wishes
from tests.interop.gateways import HERE, Gateway, gateway
from tests.interop.runners import GO, go_results

MODULE: Final = HERE / "go"
TEMPLATES: Final = {
    "azservicebus": "gateway.toml",
    "azqueue": "storage.toml",
    "go-amqp": "primary.toml",
}
# Seconds until a primary that was killed runs again: longer than the pair needs to notice.
_DOWN: Final = 5.0
QUEUE: Final = "amqp"  # in `primary.toml`


def _run(package: str, client: str, wishes: Wishes) -> Mapping[str, Result]:
    with gateway(TEMPLATES[client]) as served:
        return _tested(MODULE / package, served, wishes, {"INTEROP_QUEUE": QUEUE})


def _run_dapr(wishes: Wishes) -> Mapping[str, Result]:
    storage = free_port()
    with gateway("dapr.toml", hosts=("localhost",), storage=storage) as served:
        more = {"INTEROP_STORAGE_PORT": str(storage), "SSL_CERT_FILE": str(served.authority)}
        return _tested(MODULE / "dapr", served, wishes, more)


def _run_outage(wishes: Wishes) -> Mapping[str, Result]:
    """Against a pair whose primary is a process of its own, which the tests freeze and kill."""
    with (
        gateway("primary.toml", name="primary") as primary,
        gateway("pair.toml", primary=primary.port) as served,
        _kept_running(primary) as pid,
    ):
        return _tested(MODULE / "outage", served, wishes, {"INTEROP_PRIMARY_PID": str(pid)})


@contextmanager
def _kept_running(primary: Gateway) -> Iterator[Path]:
    """Start the process again some seconds after it was killed; yield the file with its pid."""
    file, over = primary.folder / "pid", threading.Event()
    file.write_text(str(primary.process.pid))

    def watch() -> None:
        while not over.wait(0.2):
            if primary.process.poll() is not None and not over.wait(_DOWN):
                primary.start()
                file.write_text(str(primary.process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield file
    finally:
        over.set()
        watcher.join()


def _tested(
    package: Path, served: Gateway, wishes: Wishes, more: Mapping[str, str]
) -> dict[str, Result]:
    """The result of each test, and what it printed if it failed."""
    words = ["-run", wishes.words] if wishes.words else []
    # One package a run, one test after another: some kill the primary.
    command = [GO, "test", "-json", "-count=1", "-timeout=10m", *words]
    places = {"INTEROP_PORT": str(served.port), "INTEROP_AUTHORITY": str(served.authority)}
    done = subprocess.run(
        command,
        cwd=package,
        env={**os.environ, **places, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    if not (found := dict(go_results(done.stdout))):  # it doesn't compile
        sys.exit(f"{done.stdout}{done.stderr}")
    return found


def version_in(module: str, within: Path = MODULE) -> str:
    found = re.search(rf"\s\S*{module} v(\S+)", (within / "go.mod").read_text())
    assert found is not None, f"{module} isn't in go.mod"
    return found[1]


def _missing() -> str:
    return "" if Path(GO).exists() else "Go 1.25 or newer, as `go` on the PATH"


def _suite(name: str, package: str, module: str, what: str) -> Suite:
    run = _run_outage if package == "outage" else partial(_run, package, name)
    client = module.partition("/")[0]
    return Suite(name=name, client=client, version=version_in(module), what=what, run=run)


FAMILY: Final = Family(
    name="go",
    language="Go",
    suites=(
        _suite(
            "azservicebus",
            "servicebus",
            "azservicebus",
            "messages, sessions, subscriptions, administration, WebSocket, signatures",
        ),
        _suite(
            "azservicebus-outage",
            "outage",
            "azservicebus",
            "producers while the primary freezes, and is killed and started again",
        ),
        _suite("azqueue", "queue", "azqueue/v2", "queues, messages, signatures, policies"),
        _suite("go-amqp", "amqp", "go-amqp", "sections and types, settlement, many frames"),
        Suite(
            name="dapr",
            client="github.com/dapr/components-contrib",
            version=version_in("components-contrib", MODULE / "dapr"),
            what="its conformance tests: pub/sub of queues and topics, bindings of both queues",
            run=_run_dapr,
        ),
    ),
    missing=_missing,
)
