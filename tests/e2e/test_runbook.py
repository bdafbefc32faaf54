"""The commands of the runbooks and how-to pages, typed as they stand against a running pair."""

import re
import shlex
from collections.abc import Sequence
from functools import reduce
from typing import Final

import pytest
import trio
from click.testing import CliRunner

from gateway.app.failure import ExitCode
from gateway.cli import main
from tests.e2e.commands import ADMIN, pairgate_provision
from tests.e2e.processes import KEY_VARIABLE, Gateways, broker_config, fork_server, pair_config
from tests.e2e.rest import send, take
from tests.extensions.drill.drill import PAIR
from tests.harness.secret_files import write_secret
from tests.pages import blocks

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
    for block in (
        *blocks("docs/how-to/operate/answer-an-alert.md", "sh"),
        *blocks("docs/how-to/operate/steer-a-gateway.md", "sh"),
    )
    for line in block.splitlines()
    if line.startswith("pairgate ") and line not in ENDLESS
]
NOTHING: Final = "nothing to probe: no entity that has failed matches"
HEALTHY: Final = {
    'pairgate probe --all --reason "the disk is free again"': (ExitCode.FAILED, f"{NOTHING} *"),
    "pairgate probe orders": (ExitCode.FAILED, f"{NOTHING} orders"),
    "pairgate create queue orders": (ExitCode.FAILED, "exists already"),
    "pairgate status --process syphon": (ExitCode.TEMPORARY, "no "),
}


async def test_the_commands_of_the_runbooks_work_as_they_stand(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await gateways.start(PAIR.replace('"one", "two"', '"orders"') + SYPHON)
    (gateway.folder / "pairgate.toml").write_text(gateway.config)
    monkeypatch.chdir(gateway.folder)
    wrong = {}
    for line in dict.fromkeys(TYPED):
        words = shlex.split(line.replace(":9640", f":{gateway.ports[1]}"))[1:]
        found = await trio.to_thread.run_sync(CliRunner().invoke, main, words)
        code, text = HEALTHY.get(line, (ExitCode.DONE, ""))
        if found.exit_code != code or text not in found.output:
            wrong[line] = (found.exit_code, found.output, found.exc_info)

    assert len(TYPED) > 30
    assert wrong == {}


# The blocks, in an order in which each finds the entities that it needs.
IN_TURN: Final = (
    *blocks("docs/how-to/messages/entities-by-hand.md", "sh"),
    *blocks("docs/how-to/secure/change-keys.md", "sh"),
    *blocks("docs/how-to/operate/back-up-and-repair-a-store.md", "sh"),
    *blocks("docs/how-to/operate/rehearse-an-outage.md", "sh"),
    *blocks("docs/how-to/operate/redrive-dead-letters.md", "sh"),
)
# The differences from the page: a folder for backups, a short drill, a label, a queue of this pair,
# and no terminal that asks.
HERE: Final = {
    "/backups/": "",
    "$(date +%F)": "today",
    "dead-letters orders": "dead-letters one",
    "redrive orders": "redrive one",
    "--for 90s": "--for 2s --rate 5 --yes",
    "purge LABEL/x-servicebus-transfer/0": ("purge east/x-servicebus-transfer/0 --yes"),
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
    for line in "".join(IN_TURN).splitlines():
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


SPARE: Final = f"""
[namespaces.spare]
url = "servicebus+http://RootManageSharedAccessKey@%s"
key = {{ env = "{KEY_VARIABLE}" }}
"""


async def test_a_lost_primary_is_replaced_by_the_commands_of_its_runbook(
    gateways: Gateways,
) -> None:
    status, check, syphon, provision, serve = (
        shlex.split(line)[1:]
        for line in "".join(blocks("docs/how-to/operate/replace-a-primary.md", "sh")).splitlines()
    )
    former = await gateways.start(broker_config("orders"), name="former")
    new = await gateways.start(broker_config("orders"), name="new")
    spare = await gateways.start(broker_config("orders"), name="spare")
    secondary = await gateways.start(broker_config(), name="secondary")
    pair = pair_config(former.address, secondary.address, failover_interval="0s") + ADMIN
    pair += SPARE % spare.address
    await pairgate_provision(gateways, pair)
    gateway = await gateways.start(pair, name="gateway")
    await former.kill()

    assert await send(gateway.address, "orders", b"first") == (201, "backlog")
    seen = await fork_server().run(gateway.folder, status)
    checked = await fork_server().run(gateway.folder, check)
    named = re.search(r"fingerprint ([0-9a-f]{16})", checked.stdout.decode())
    assert named is not None, checked.stdout
    meanwhile = await gateways.start(
        pair, name="syphon", command=with_names(syphon, NAME="spare"), wait=False
    )
    assert await take(spare.address, "orders") == b"first"
    assert await meanwhile.stop() == 0

    assert await send(gateway.address, "orders", b"second") == (201, "backlog")
    assert await gateway.stop() == 0
    gateway.config_file.write_text(gateway.config.replace(former.address, new.address))
    made = await fork_server().run(gateway.folder, with_names(provision, FINGERPRINT=named[1]))
    after = await gateways.start(
        gateway.config_file.read_text(),
        name="gateway",
        command=with_names(serve, FINGERPRINT=named[1]),
    )
    assert await take(new.address, "orders") == b"second"
    healthy = await fork_server().run(after.folder, check)

    assert (seen.returncode, b"1 messages wait" in seen.stdout) == (1, True)
    assert (checked.returncode, made.returncode, healthy.returncode) == (1, 0, 0)


def with_names(words: Sequence[str], **names: str) -> list[str]:
    """The words of a command, with values in the place of the page's names for them."""
    return [names.get(word, word) for word in words]
