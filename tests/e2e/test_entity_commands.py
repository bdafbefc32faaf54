"""`pairgate list`, `create` and `delete`: through a gateway, and at each kind of namespace."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from tests.brokers.storage_queue.azurites import url_of
from tests.e2e.commands import run
from tests.e2e.installation import client
from tests.e2e.processes import Gateways, broker_config
from tests.e2e.rabbitmq_nodes import PASSWORD, VHOST, ExampleNodes
from tests.harness.azurite import KEY, azurite
from tests.harness.secret_files import write_secret
from tests.harness.terminal import at_terminal

pytestmark = pytest.mark.slow

NEWS = EntityPath("news")
PAIR = """
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]
[namespaces.west]
url = "embedded:west.db"
[pairing]
primary = "east"
secondary = "west"
backlog_queues = 2
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


async def listed(folder: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """The entities that the command lists, by name."""
    code, output, errors = await run(folder, "list", "--json", *arguments)
    assert code == 0, errors
    return {each["name"]: each for each in json.loads(output)["entities"]}


async def done(folder: Path, *arguments: str) -> dict[str, Any]:
    """The answer of a command that succeeds."""
    code, output, errors = await run(folder, *arguments, "--json")
    assert code == 0, errors
    answer: dict[str, Any] = json.loads(output)
    return answer


async def test_a_topic_is_made_seen_and_deleted_through_a_gateway(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR)
    folder = gateway.folder

    await done(folder, "create", "topic", "news")
    made = await done(folder, "create", "subscription", "news", "all")
    await done(folder, "create", "subscription", "news", "urgent", "--sql", "urgent = 'yes'")
    async with client(gateway) as broker:
        for urgent in ("yes", "no"):
            await broker.send(NEWS, [Message(body=b"hello", properties={"urgent": urgent})])
    found = await listed(folder)
    await done(folder, "delete", "subscription", "news", "urgent", "--yes")
    left = await listed(folder, "news")
    await done(folder, "delete", "topic", "news", "--yes")

    assert made["through_gateway"]
    assert (found["news"]["subscriptions"], found["news"]["active"]) == (2, 3)
    assert found["news/Subscriptions/all"]["active"] == 2
    assert found["news/Subscriptions/urgent"]["active"] == 1
    assert set(left) == {"news", "news/Subscriptions/all"}
    assert set(await listed(folder)) == {"orders"}


async def test_a_queue_is_made_once_and_deleted_through_a_gateway(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR)
    folder = gateway.folder

    await done(folder, "create", "queue", "tasks", "--sessions", "--ttl", "5m")
    again = await run(folder, "create", "queue", "tasks")
    kept = await done(folder, "create", "queue", "tasks", "--if-missing")
    found = await listed(folder)
    gone = await done(folder, "delete", "queue", "orders", "--yes")

    assert again[0] == 1
    assert "queue tasks exists already" in again[2]
    assert not kept["created"]
    assert found["tasks"]["requires_session"]
    assert gone["deleted"]
    assert set(await listed(folder)) == {"tasks"}


async def test_the_secondary_is_listed_by_its_name(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR)

    held = await run(gateway.folder, "list", "--namespace", "west")
    await gateway.stop()
    found = await listed(gateway.folder, "--namespace", "west", "east/")

    assert held[0] == 75, held
    backlogs = {f"east/x-servicebus-transfer/{index}" for index in range(2)}
    assert set(found) == {*backlogs, "east/x-pairgate-syphons"}


async def test_a_queue_is_deleted_at_a_terminal_by_typing_its_name(gateways: Gateways) -> None:
    gateway = await gateways.start(broker_config("orders", "bills"))
    async with client(gateway) as broker:
        await broker.send(EntityPath("orders"), [Message(body=b"one"), Message(body=b"two")])

    def delete(typed: str) -> tuple[int, str, str]:
        with at_terminal(gateway.folder, "delete", "queue", "orders") as terminal:
            loss = terminal.sees("Type orders to go on")
            terminal.types(typed)
            return *terminal.ends(), loss

    unattended = await run(gateway.folder, "delete", "queue", "orders")
    refused = await trio.to_thread.run_sync(delete, "yes")
    kept = await listed(gateway.folder)
    deleted = await trio.to_thread.run_sync(delete, "orders")

    assert unattended[0] == 2
    assert "add --yes" in unattended[2]
    assert refused[0] == 1
    assert "nothing was done" in refused[1]
    assert "queue orders will be deleted with 2 active messages" in refused[2]
    assert set(kept) == {"orders", "bills"}
    assert deleted[0] == 0
    assert "`serve` or `provision` creates it again" in deleted[1]
    assert set(await listed(gateway.folder)) == {"bills"}


async def test_a_wrong_name_is_an_error_in_words(gateways: Gateways) -> None:
    gateway = await gateways.start(broker_config("orders"))
    wrong = {
        ("create", "queue", "no queue"): (2, "segments of letters"),
        ("create", "queue", "news/subscriptions/all"): (2, "the name of a queue expected"),
        ("create", "subscription", "nope", "all"): (1, "there is no"),
        ("delete", "queue", "nope", "--yes"): (1, "there is no"),
        ("delete", "topic", "orders", "--yes"): (1, "delete topic orders"),
        ("list", "--namespace", "nope"): (2, "there is no namespace 'nope'"),
    }

    found = {arguments: await run(gateway.folder, *arguments) for arguments in wrong}

    for arguments, (code, text) in wrong.items():
        assert found[arguments][0] == code, found[arguments]
        assert text in found[arguments][2]
        assert "Traceback" not in found[arguments][2]
    assert set(await listed(gateway.folder)) == {"orders"}


@pytest.mark.live
async def test_azurites_queues_are_listed_made_and_deleted(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", KEY)
    async with azurite(tmp_path / "azurite") as (_, port):
        url = f"storage-queue:{url_of(port)}"
        (tmp_path / "pairgate.toml").write_text(
            f'[namespaces.here]\nurl = "{url}"\nkey = {{ file = "key" }}\n'
        )

        made = await done(tmp_path, "create", "queue", "orders")
        await done(tmp_path, "send", "orders", "hello")
        found = await listed(tmp_path)
        topic = await run(tmp_path, "create", "topic", "news")
        await done(tmp_path, "delete", "queue", "orders", "--yes")

        assert (made["through_gateway"], made["target"]) == (False, "namespace here")
        assert found["orders"]["active"] == 1
        assert found["orders"]["scheduled"] is None
        assert topic[0] == 1
        assert "support topics" in topic[2]
        assert await listed(tmp_path) == {}


@pytest.mark.live
async def test_a_count_that_azurite_has_not_is_unknown_through_a_gateway_too(
    gateways: Gateways, tmp_path: Path
) -> None:
    write_secret(tmp_path / "key", KEY)
    async with azurite(tmp_path / "azurite") as (_, port):
        gateway = await gateways.start(
            f'[namespaces.here]\nurl = "storage-queue:{url_of(port)}"\n'
            f'key = {{ file = "{tmp_path / "key"}" }}\n'
            '[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:0"\n'
        )

        made = await done(gateway.folder, "create", "queue", "orders")
        await done(gateway.folder, "send", "orders", "hello")
        found = await listed(gateway.folder)

        assert made["through_gateway"]
        assert (found["orders"]["active"], found["orders"]["scheduled"]) == (1, None)


@pytest.mark.live
async def test_a_rabbitmq_that_can_not_list_shows_the_configured_queues(
    rabbits: ExampleNodes, tmp_path: Path
) -> None:
    await rabbits.north.prepare("rabbitmq-definitions.json")
    port = await trio.to_thread.run_sync(lambda: rabbits.north.node.port)
    write_secret(tmp_path / "password", PASSWORD)
    (tmp_path / "pairgate.toml").write_text(
        f'[namespaces.here]\nurl = "rabbitmq://provision@127.0.0.1:{port}/{VHOST}"\n'
        'password = { file = "password" }\nqueues = ["orders", "bills"]\n'
    )
    gateway = (tmp_path / "gateway.toml").name
    text = (tmp_path / "pairgate.toml").read_text()
    (tmp_path / gateway).write_text(text.replace("provision@", "gateway@"))

    await done(tmp_path, "create", "queue", "orders")
    await done(tmp_path, "send", "orders", "hello", "--config", gateway)
    code, output, errors = await run(tmp_path, "list")
    found = await listed(tmp_path)
    refused = await run(tmp_path, "create", "queue", "bills", "--config", gateway)
    await done(tmp_path, "delete", "queue", "orders", "--yes")

    assert code == 0
    assert "can't list its queues" in errors
    assert "unknown" in output
    assert set(found) == {"orders"}
    assert (found["orders"]["active"], found["orders"]["dead_lettered"]) == (1, None)
    assert refused[0] == 2
    assert "permission" in refused[2]
    assert "Manage" not in refused[2]
