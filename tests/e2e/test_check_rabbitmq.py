"""`check`, `provision` and `create queue` before RabbitMQ: each fault with its own remedy, once."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from click.testing import Result

from gateway.demo.ports import free_port
from tests.command_line import pairgate
from tests.harness.rabbitmq import USER, USERS, add_user, make, rabbitmq, set_rights

pytestmark = [pytest.mark.slow, pytest.mark.live]

CONFIG: Final = """
[namespaces.east]
url = "rabbitmq://USER@127.0.0.1:PORT"
password = { env = "PASSWORD" }
queues = ["orders", "invoices", "bills"]

[namespaces.west]
url = "rabbitmq://USER@127.0.0.1:PORT/west"
password = { env = "PASSWORD" }

[pairing]
primary = "east"
secondary = "west"
label = "east"
envelope_keys = [{ id = "1", key = { env = "KEY" } }]

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"
"""
SPACES: Final = ("namespace east", "namespace west")
ADDRESS: Final = "127.0.0.1:"
REFUSED: Final = (
    "Connection refused; check whether the namespace runs, and check its address, DNS and firewalls"
)


class Pair:
    """The configuration before that node, and what commands say of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.environment = folder / "pairgate.toml", monkeypatch
        monkeypatch.setenv("KEY", "k" * 32)

    def configure(self, port: int, user: str = "guest", password: str = "guest") -> None:
        self.environment.setenv("PASSWORD", password)
        self.file.write_text(CONFIG.replace("USER", user).replace("PORT", str(port)))

    async def run(self, *arguments: str) -> Result:
        return await trio.to_thread.run_sync(lambda: pairgate(*arguments, "--config", self.file))

    async def check(self) -> list[tuple[str, str, str]]:
        checked = await self.run("check", "--json")
        assert checked.exit_code in (0, 1), checked.stderr
        found: dict[str, Any] = json.loads(checked.stdout)
        return [(each["subject"], each["grade"], each["text"]) for each in found["findings"]]


async def test_each_fault_of_a_rabbitmq_pair_has_its_own_remedy_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path, monkeypatch)
    pair.configure(free_port())
    silent = await pair.check(), await pair.run("provision")
    async with rabbitmq(tmp_path / "rabbit") as (node, port):
        await make(node, "rabbit_vhost:add", "west", USER)
        await set_rights(node, USER, ".*", ".*", ".*", vhost="west")
        pair.configure(port, password="wrong")
        refused = await pair.check(), await pair.run("provision")
        created = await pair.run("create", "queue", "orders", "--namespace", "east")
        pair.configure(port)
        missing = await pair.check()
        await add_user(node, "reader", "reader", "^$", "^$", ".*")
        await set_rights(node, "reader", "^$", "^$", ".*", vhost="west")
        pair.configure(port, user="reader", password="reader")
        without_rights = await pair.run("provision")
        await make(node, f"{USERS}:clear_permissions", "reader", "/", USER)
        without_vhost = await pair.check()

    assert bad(silent[0]) == [f"{space}: {REFUSED}" for space in SPACES]
    assert silent[1].output.count(REFUSED) == 2
    assert [each.count("check the user in") for each in bad(refused[0])] == [1, 1]
    assert refused[1].output.count("check the user in namespaces.") == 2
    assert created.stderr.count("; check user and password") == 1
    for each in (silent[1], refused[1], created):
        assert "permission" not in each.output
        assert "Manage" not in each.output
    for found in (silent[0], refused[0]):
        assert "pairgate provision" not in str(found)
        assert not [text for _, grade, text in found if grade == "note"]
    told = [text for _, grade, text in missing if grade in ("warning", "bad")]
    assert told[1:] == [
        "queues orders, invoices, bills are missing; `pairgate provision` creates them",
        "missing",  # of the ten backlog queues together
        "0 of 10 backlog queues are usable; run `pairgate provision`",
        "stream east/x-pairgate-syphons is missing, in which the pair's processes leave their"
        " records: until then they don't know each other, and an order holds where it was given;"
        " `pairgate provision` creates it",
    ]
    assert without_rights.output.count("the user's permissions configure, write and read") == 2
    assert "in the vhost, which namespaces.east.url names" in bad(without_vhost)[0]
    assert missing == [*dict.fromkeys(missing)]


def bad(found: list[tuple[str, str, str]]) -> list[str]:
    return [
        f"{subject}: {text[text.index(ADDRESS) :].partition(' ')[2]}"
        if ADDRESS in text
        else f"{subject}: {text}"
        for subject, grade, text in found
        if grade == "bad"
    ]
