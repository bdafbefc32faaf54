"""
A gateway for an application's own tests, with faults on demand: a context manager, and fixtures of
pytest.

    # conftest.py
    pytest_plugins = ["gateway.extensions.faults.testing"]

    # test_shop.py
    def test_an_order_survives_a_busy_broker(pairgate):
        queue = pairgate.new_queue()
        pairgate.fault("busy", entity=queue, operation="send", count=2)
        place_order(pairgate.connection_string, queue)

Nothing here needs Trio: a test may use threads, asyncio, or processes of another language.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from gateway.extensions.faults.running import KEY, POLICY, GatewayFailed, GatewayForTests

START_SECONDS: Final = 60.0  # on a machine that runs other tests, too
STOP_SECONDS: Final = 20.0  # its clients are gone, so that nothing is to be drained
PAUSE: Final = 0.02  # seconds between two looks at the log
TAIL: Final = 2000  # characters of the log in an error
_CONFIG: Final = """
[namespaces.test]
url = "memory:"
queues = {queues}

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"

[faults]
allowed = true
"""
_ACCESS: Final = """
[[access]]
name = "{name}"
key = {{ env = "{variable}" }}
rights = ["Manage"]
"""


@contextmanager
def start_gateway(
    folder: Path, *, queues: Sequence[str] = (), clients: Sequence[str] = ()
) -> Iterator[GatewayForTests]:
    """
    A gateway on free ports, ready at the begin of the context and ended with it. It keeps
    everything in memory. `folder` gets its configuration and its log; `queues` are created;
    `clients` are names of access policies with keys of their own.

    Raises:
        GatewayFailed: it doesn't start.
    """
    keys = {POLICY: KEY, **{name: secrets.token_urlsafe(32) for name in clients}}
    variables = {f"PAIRGATE_KEY_{number}": key for number, key in enumerate(keys.values())}
    text = _CONFIG.format(queues=json.dumps(list(queues)))
    for name, variable in zip(keys, variables, strict=True):
        text += _ACCESS.format(name=name, variable=variable)
    config, log = folder / "pairgate.toml", folder / "pairgate.log"
    config.write_text(text)
    command = [sys.executable, "-m", "gateway", "serve", "--json", "--config", str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt from the keyboard is for the tests
        )
    try:
        found = _addresses(process, log)
        yield GatewayForTests(
            address=found["service-bus"],
            storage_address=found["storage-queue"],
            admin_address=found["admin"],
            log=log,
            keys=keys,
        )
    finally:
        _stop(process)


def _addresses(process: "subprocess.Popen[bytes]", log: Path) -> Mapping[str, str]:
    """The addresses of its endpoints by their protocols, once it has started."""
    for _ in range(int(START_SECONDS / PAUSE)):
        if process.poll() is not None:
            break
        lines = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
        if any(line["event"] == "started" for line in lines):
            heard = [line for line in lines if line["event"] == "listening"]
            return {line["protocol"]: line["address"] for line in heard}
        time.sleep(PAUSE)  # polled: another process decides
    raise GatewayFailed(f"the gateway doesn't start: {log.read_text()[-TAIL:]}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def pairgate_queues() -> Sequence[str]:
    """Queues that the gateway begins with. An application's conftest.py may override it."""
    return ()


@pytest.fixture(scope="session")
def pairgate_clients() -> Sequence[str]:
    """Names of clients with keys of their own. An application's conftest.py may override it."""
    return ()


@pytest.fixture(scope="session")
def pairgate_process(
    tmp_path_factory: pytest.TempPathFactory,
    pairgate_queues: Sequence[str],
    pairgate_clients: Sequence[str],
) -> Iterator[GatewayForTests]:
    """The gateway of all tests of a session."""
    folder = tmp_path_factory.mktemp("pairgate")
    with start_gateway(folder, queues=pairgate_queues, clients=pairgate_clients) as gateway:
        yield gateway


@pytest.fixture
def pairgate(pairgate_process: GatewayForTests) -> Iterator[GatewayForTests]:
    """The gateway of the session; the test begins without faults, and its faults end with it."""
    pairgate_process.clear_faults()
    yield pairgate_process
    pairgate_process.clear_faults()
