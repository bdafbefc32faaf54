"""Programs of ours with the clients for Node.js, as its own test runner runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from gateway.demo.ports import free_port
from tests.harness.openid import OpenIdProvider
from tests.interop.family import FAILED, PASSED, SKIPPED, Family, Result, Suite, Wishes
from tests.interop.gateways import HERE, ROOT, Gateway, gateway

PROGRAMS: Final = HERE / "node"
MODULES: Final = ROOT / ".node" / "node_modules"
LOCK: Final = ROOT / "locks" / "node" / "package-lock.json"
QUEUE: Final = "amqp"  # of the tests with rhea
_PROVIDER: Final = OpenIdProvider("https://sts.example.net/tenant/")
_LINE: Final = re.compile(r"(not )?ok \d+ - (.*?)( # (SKIP|TODO).*)?$")


def _run(program: str, wishes: Wishes) -> Mapping[str, Result]:
    places = {"plain": free_port(), "storage": free_port()}
    with gateway(
        "node.toml",
        name=f"node-{program}",
        hosts=("localhost",),
        files={"keys.json": _PROVIDER.jwks()},
        issuer=_PROVIDER.issuer,
        queue=QUEUE,
        **places,
    ) as served:
        return _tested(program, served, wishes, places)


def _tested(
    program: str, served: Gateway, wishes: Wishes, places: Mapping[str, int]
) -> dict[str, Result]:
    """The result of each test, and what it said if it failed."""
    words = [f"--test-name-pattern={wishes.words}"] if wishes.words else []
    environment = {
        "INTEROP_PORT": str(served.port),
        "INTEROP_PLAIN_PORT": str(places["plain"]),
        "INTEROP_STORAGE_PORT": str(places["storage"]),
        "INTEROP_QUEUE": QUEUE,
        "INTEROP_BUS_TOKEN": _token("https://servicebus.azure.net"),
        "INTEROP_STORAGE_TOKEN": _token("https://storage.azure.com"),
        "NODE_EXTRA_CA_CERTS": str(served.authority),
        "NODE_PATH": str(MODULES),
    }
    done = subprocess.run(
        ["node", "--test-reporter=tap", *words, f"{program}.js"],
        cwd=PROGRAMS,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if found := dict(_results(done.stdout)):
        return found
    sys.exit(f"{done.stdout}{done.stderr}")  # it can't be read


def _token(audience: str) -> str:
    return _PROVIDER.token(time.time(), aud=audience, roles=["Owner"])


def _results(report: str) -> Iterator[tuple[str, Result]]:
    """The results in a report of the Test Anything Protocol, without those of parts of tests."""
    lines = report.splitlines()
    for number, line in enumerate(lines):
        if (told := _LINE.match(line)) is None:
            continue
        if told[4] == "SKIP":
            yield told[2], Result(SKIPPED)
        elif told[1]:
            yield told[2], Result(FAILED, _reason(lines[number + 1 :]))
        else:
            yield told[2], Result(PASSED)


def _reason(lines: list[str]) -> str:
    """The error in the block below a test's line."""
    block = lines[: lines.index("  ...")] if "  ..." in lines else []
    at = next((n for n, each in enumerate(block) if each.startswith("  error:")), len(block))
    return " ".join(each.strip() for each in block[at : at + 4])


def _version(package: str) -> str:
    locked = json.loads(LOCK.read_text())["packages"]
    return str(locked[f"node_modules/{package}"]["version"])


def _missing() -> str:
    if shutil.which("node") is None:
        return "Node.js 18 or newer, as `node` on the PATH"
    return "" if Path(MODULES).exists() else "the packages in .node, which make installs"


def _suite(name: str, program: str, client: str, what: str) -> Suite:
    run = partial(_run, program)
    return Suite(name=name, client=client, version=_version(client), what=what, run=run)


FAMILY: Final = Family(
    name="node",
    language="Node.js",
    suites=(
        _suite(
            "node-servicebus",
            "servicebus",
            "@azure/service-bus",
            "messages, handlers, sessions, rules, administration, WebSocket, signatures, "
            "identities",
        ),
        _suite(
            "node-storage",
            "storage",
            "@azure/storage-queue",
            "queues, messages, signatures, policies, identities",
        ),
        _suite("rhea", "rhea", "rhea", "sections and types, footers, TLS, WebSocket, tokens"),
    ),
    missing=_missing,
)
