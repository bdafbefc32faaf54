"""The commands of the runbooks, typed as they stand against a running pair."""

import shlex
from typing import Final

import pytest
import trio
from click.testing import CliRunner

from gateway.app.failure import ExitCode
from gateway.cli import main
from tests.e2e.processes import Gateways
from tests.e2e.test_drill import PAIR
from tests.telemetry.test_alerts import BLOCK, PAGE

pytestmark = pytest.mark.slow

SYPHON: Final = """
[[endpoints]]
protocol = "admin"
process = "syphon"
bind = "127.0.0.1:0"
"""
ENDLESS: Final = {"pairgate syphon", "pairgate status --watch"}
TYPED: Final = [
    line
    for page in (PAGE, PAGE.with_name("steer-a-gateway.md"))
    for block in BLOCK.findall(page.read_text())
    for line in block.splitlines()
    if line.startswith("pairgate ") and line not in ENDLESS
]
NOTHING: Final = "nothing to probe: no entity that has failed matches"
HEALTHY: Final = {
    'pairgate probe --all --reason "the disk is free again"': (ExitCode.FAILED, f"{NOTHING} *"),
    "pairgate probe orders": (ExitCode.FAILED, f"{NOTHING} orders"),
    "pairgate status --process syphon": (ExitCode.TEMPORARY, "no "),
}


async def test_the_commands_of_the_runbooks_work_as_they_stand(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await gateways.start(PAIR + SYPHON)
    (gateway.folder / "pairgate.toml").write_text(gateway.config)
    monkeypatch.chdir(gateway.folder)
    wrong = {}
    for line in dict.fromkeys(TYPED):
        words = shlex.split(line)[1:]
        found = await trio.to_thread.run_sync(CliRunner().invoke, main, words)
        code, text = HEALTHY.get(line, (ExitCode.DONE, ""))
        if found.exit_code != code or text not in found.output:
            wrong[line] = (found.exit_code, found.output)

    assert len(TYPED) > 30
    assert wrong == {}
