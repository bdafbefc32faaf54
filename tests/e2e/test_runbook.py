"""The commands of the runbooks and how-to pages, typed as they stand against a running pair."""

import shlex
from functools import reduce
from typing import Final

import pytest
import trio
from click.testing import CliRunner

from gateway.app.failure import ExitCode
from gateway.cli import main
from tests.e2e.processes import Gateways, fork_server
from tests.e2e.test_drill import PAIR
from tests.harness.secret_files import write_secret
from tests.telemetry.test_alerts import PAGE
from tests.test_readme import blocks

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
    for block in blocks(page.read_text(), "sh")
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
            wrong[line] = (found.exit_code, found.output, found.exc_info)

    assert len(TYPED) > 30
    assert wrong == {}


# The pages, in an order in which each finds the entities that it needs.
PAGES: Final = (
    "entities-by-hand.md",
    "change-keys.md",
    "back-up-and-repair-a-store.md",
    "rehearse-an-outage.md",
    "redrive-dead-letters.md",
)
# The differences from the page: a folder for backups, a short drill, a label, and no terminal that
# asks.
HERE: Final = {
    "/backups/": "",
    "$(date +%F)": "today",
    "--for 90s": "--for 2s --rate 5 --yes",
    "purge LABEL/x-servicebus-transfer/0": (
        "purge east/x-servicebus-transfer/0 --confirm east/x-servicebus-transfer/0 --messages 0"
    ),
}
KEY: Final = """
[[access]]
name = "orders-sender"
key = { file = "orders.key" }
rights = ["Manage"]
"""


async def test_the_commands_of_how_to_pages_work_as_they_stand(gateways: Gateways) -> None:
    gateway = gateways.prepare(PAIR + KEY)
    gateway.folder.mkdir()
    write_secret(gateway.folder / "orders.key", "a key of more than sixteen bytes")
    await gateway.start()
    (gateway.folder / "pairgate.toml").write_text(gateway.config)
    ran, wrong = 0, {}
    for page in PAGES:
        for line in "".join(blocks(PAGE.with_name(page).read_text(), "sh")).splitlines():
            typed = reduce(lambda text, change: text.replace(*change), HERE.items(), line)
            name, *words = shlex.split(typed, comments=True)
            assert name == "pairgate"
            done = await fork_server().run(gateway.folder, words)
            ran += 1
            # The drill has ended by itself.
            if done.returncode and line != "pairgate drill --end":
                wrong[line] = (done.returncode, done.stdout, done.stderr)

    assert ran >= 11
    assert wrong == {}
