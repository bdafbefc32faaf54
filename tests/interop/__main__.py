"""
Runs the suites of azure-servicebus against a gateway of this checkout, and compares each outcome
with `expected.toml`: a failure that isn't in it ends the run with 1, and so does a test that is in
it and passes. The tests in its part `either` don't count.

    python -m tests.interop [management] [sync] [async] [-n 4] [-k NAME]
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Final

from gateway.demo.ports import free_port
from tests.harness.certificates import Authority

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
BUILD: Final = ROOT / "build" / "interop"
PYTHON: Final = ROOT / ".venv-interop" / "bin" / "python"
ARCHIVE: Final = ROOT / "locks" / "interop-source.txt"
KEY: Final = "SAS_KEY_VALUE"
HOST: Final = "fakeresource.servicebus.windows.net"
SUITES: Final[Mapping[str, Sequence[str]]] = {
    "management": ["mgmt_tests"],
    "sync": [
        f"test_{name}.py"
        for name in ("queues", "sessions", "topic", "subscriptions", "sb_client", "list_sessions")
    ],
    "async": ["async_tests"],
}
# Some tests sleep for as long as Service Bus keeps an idle link or connection.
TEST_TIMEOUT: Final = 480


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="default: " + " ".join(SUITES))
    parser.add_argument("-n", type=int, default=8, help="processes; most tests sleep")
    parser.add_argument("-k", default="", help="run only tests whose names contain this")
    asked = parser.parse_args()
    tests = _source()
    expected = tomllib.loads((HERE / "expected.toml").read_text())
    good = True
    for suite in asked.suites or SUITES:
        with _gateway() as port:
            found = _run(tests, suite, port, asked.n, asked.k)
        for name in expected["either"]:
            found.pop(name, None)
        good = _judge(suite, found, expected[suite], partly=bool(asked.k)) and good
    return 0 if good else 1


def _source() -> Path:
    """The tests of the locked source archive, unpacked."""
    BUILD.mkdir(parents=True, exist_ok=True)
    if not any(BUILD.glob("azure_servicebus-*/tests")):
        command = [PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        locked = ["--no-build-isolation", "--require-hashes", "--dest", BUILD, "-r", ARCHIVE]
        subprocess.run([*command, *locked], check=True)
        for archive in BUILD.glob("azure_servicebus-*.tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(BUILD, filter="data")
    (tests,) = BUILD.glob("azure_servicebus-*/tests")
    return tests


@contextmanager
def _gateway() -> Iterator[int]:
    """The port of a gateway with two new stores."""
    folder, port = BUILD / "gateway", free_port()
    shutil.rmtree(folder, ignore_errors=True)
    authority = Authority(folder)
    authority.issue("server", hosts=(HOST,))
    text = Template((HERE / "gateway.toml").read_text()).substitute(port=port)
    (folder / "pairgate.toml").write_text(text)
    keys = {"INTEROP_KEY": KEY, "INTEROP_OTHER_KEY": "another"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", folder / "pairgate.toml"],
            env={**os.environ, **keys, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            cwd=folder,
        )
        try:
            _wait_for(port, process)
            yield port
            if process.poll() is not None:
                sys.exit(f"the gateway has ended: {folder / 'log'}")
        finally:
            process.terminate()
            process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit(f"the gateway has ended: {BUILD / 'gateway' / 'log'}")


def _run(tests: Path, suite: str, port: int, workers: int, words: str) -> dict[str, str]:
    """The outcome of each test of a suite, by its name."""
    trusted, results = str(BUILD / "gateway" / "tests-ca.pem"), BUILD / f"{suite}.json"
    results.unlink(missing_ok=True)
    environment = {
        "INTEROP_PORT": str(port),
        "INTEROP_RESULTS": str(results),
        "PYTHONPATH": os.pathsep.join(
            map(str, (HERE / "plugin", tests, tests / "mgmt_tests", tests / "mgmt_tests" / "async"))
        ),
        "SSL_CERT_FILE": trusted,
        "REQUESTS_CA_BUNDLE": trusted,
        "WEBSOCKET_CLIENT_CA_BUNDLE": trusted,
    }
    settings = BUILD / "pytest.ini"  # otherwise the tests of this project
    settings.write_text("[pytest]\n")
    options = ["-c", str(settings), f"--rootdir={tests}"]
    options += ["-p", "interop_plugin", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-q"]
    options += ["-o", "log_cli=false", f"--timeout={TEST_TIMEOUT}", "--tb=short", "-W", "ignore"]
    # The tests of management list all entities, so they run one after another.
    options += ["-n", str(0 if suite == "management" else workers)]
    options += ["-k", words] if words else []
    subprocess.run(
        [PYTHON, "-m", "pytest", *options, *SUITES[suite]],
        cwd=tests,
        env={**os.environ, **environment},
        check=False,
    )
    found: dict[str, str] = json.loads(results.read_text())
    return found


def _judge(
    suite: str, found: Mapping[str, str], expected: Mapping[str, str], *, partly: bool
) -> bool:
    """Print how the outcomes differ from the expected ones; True if they don't."""
    counts = Counter(found.values())
    numbers = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{suite}: {numbers}; {len(expected)} failures expected")
    failed = {name for name, outcome in found.items() if outcome == "failed"}
    passed = {name for name, outcome in found.items() if outcome == "passed"}
    for name in sorted(failed - set(expected)):
        print(f"  failed: {name}")
    for name in sorted(passed & set(expected)):
        print(f"  passes, though expected to fail ({expected[name]}): {name}")
    unknown = set() if partly else set(expected) - set(found)
    for name in sorted(unknown):
        print(f"  isn't a test any more: {name}")
    return bool(found) and failed <= set(expected) and not passed & set(expected) and not unknown


if __name__ == "__main__":
    sys.exit(main())
