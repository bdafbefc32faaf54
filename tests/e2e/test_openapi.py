"""A running gateway answers as its own description says, to good requests and to bad ones."""

import re
import subprocess

import pytest
import trio

from gateway.app.status.sections import SECTIONS
from gateway.frontends.admin.openapi import description
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from tests.e2e.commands import ADMIN
from tests.e2e.processes import ROOT, Gateways, environment

pytestmark = pytest.mark.slow

SCHEMATHESIS = ROOT / ".venv-openapi" / "bin" / "schemathesis"
# Two streams never end, and a drain ends the gateway: these have tests of their own.
NOT_ASKED = ("/events", "/triggers", "/v1/drain")
CHECKS = (
    "status_code_conformance",  # 501 is described, and no other error of the gateway's own is
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
)
PAIR = """
[namespaces.east]
url = "memory:"
queues = ["orders"]

[namespaces.west]
url = "memory:"

[pairing]
primary = "east"
secondary = "west"
label = "east"
enable_syphon = true

[drill]
allowed = true

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


async def test_every_answer_is_as_the_description_says(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR + ADMIN)
    result = await trio.run_process(
        [
            *(str(SCHEMATHESIS), "run", f"http://127.0.0.1:{gateway.ports[1]}/openapi.json"),
            *(f"--exclude-path={path}" for path in NOT_ASKED),
            *("--phases=coverage,fuzzing", "--max-examples=5", "--seed=1"),
            *(f"--checks={','.join(CHECKS)}", "--suppress-health-check=all", "--no-color"),
            "--request-timeout=60",
        ],
        cwd=gateway.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_stdout=True,
        check=False,
    )
    told = result.stdout.decode()

    counts = re.search(r"Selected: (\d+)/.*\n +Tested: (\d+)\n", told)
    paths = description(CONTROL_CALLS, SECTIONS)["paths"]
    most = sum(len(paths[path]) for path in paths if path not in NOT_ASKED)

    assert result.returncode == 0, told
    assert counts is not None
    # The description counts /v1/drill once.
    assert most - 1 <= int(counts[1]) == int(counts[2]) <= most
    assert gateway.count("connection_crashed") == 0
    assert await gateway.stop() == 0
