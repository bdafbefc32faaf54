"""The tests in the source archive of azure-servicebus, unmodified."""

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.interop.family import Family, Result, Suite, Wishes
from tests.interop.gateways import BUILD, HERE, ROOT, Gateway, gateway

PYTHON: Final = ROOT / ".venv-interop" / "bin" / "python"
ARCHIVE: Final = ROOT / "locks" / "interop-source.txt"
FILES: Final[Mapping[str, Sequence[str]]] = {
    "management": ["mgmt_tests"],
    "sync": [
        f"test_{name}.py"
        for name in ("queues", "sessions", "topic", "subscriptions", "sb_client", "list_sessions")
    ],
    "async": ["async_tests"],
}
# Some tests sleep for as long as Service Bus keeps an idle link or connection.
TEST_TIMEOUT: Final = 480


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


def _run(suite: str, wishes: Wishes) -> dict[str, Result]:
    tests = _source()
    with gateway() as served:
        return _pytest(tests, suite, served, wishes)


def _pytest(tests: Path, suite: str, served: Gateway, wishes: Wishes) -> dict[str, Result]:
    trusted, outcomes = str(served.authority), BUILD / f"{suite}-outcomes.json"
    outcomes.unlink(missing_ok=True)
    environment = {
        "INTEROP_PORT": str(served.port),
        "INTEROP_RESULTS": str(outcomes),
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
    options += ["-n", str(0 if suite == "management" else wishes.workers)]
    options += ["-k", wishes.words] if wishes.words else []
    subprocess.run(
        [PYTHON, "-m", "pytest", *options, *FILES[suite]],
        cwd=tests,
        env={**os.environ, **environment},
        check=False,
    )
    return {name: Result(outcome) for name, outcome in json.loads(outcomes.read_text()).items()}


def _version() -> str:
    (version,) = re.findall(r"^azure-servicebus==(\S+)", ARCHIVE.read_text(), re.MULTILINE)
    return str(version)


FAMILY: Final = Family(
    name="python",
    language="Python",
    suites=tuple(
        Suite(
            name=name,
            client="azure-servicebus",
            version=_version(),
            what=f"its own tests: {name}",
            run=partial(_run, name),
        )
        for name in FILES
    ),
    missing=lambda: "" if PYTHON.exists() else "the environment .venv-interop, which make builds",
)
