"""`pairgate check` and `pairgate provision` on RabbitMQ; what it can't do is said everywhere."""

from pathlib import Path

import pytest

from gateway.app.checking import Finding, Grade, check, provision_all
from gateway.app.outside import Outside
from gateway.brokers.rabbitmq import CANNOT
from gateway.brokers.registry import cannot
from gateway.config.file import Loaded, parse
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from tests.brokers.rabbitmq.nodes import Nodes, Room

DOCS = Path(__file__).parents[3] / "docs" / "semantics.md"
WORDS = {"listing of queues": "listing", "changes of a queue": "changes"}


def test_the_docs_say_what_it_can_not_do() -> None:
    text = DOCS.read_text()

    assert cannot("rabbitmqs://x") is CANNOT
    assert [each for each in CANNOT if WORDS.get(each, each) not in text] == []


def loaded(rabbits: Nodes, room: Room, folder: Path) -> Loaded:
    text = f"""
[namespaces.rabbit]
url = "rabbitmq://guest@127.0.0.1:{rabbits.port("primary")}"
password = {{ env = "PASSWORD" }}
queues = ["{room.name}/orders"]
[namespaces.here]
url = "memory:"
[pairing]
primary = "here"
secondary = "rabbit"
label = "{room.name}"
backlog_queues = 1
envelope_keys = [{{ id = "1", key = {{ env = "ENVELOPE_KEY" }} }}]
"""
    environ = {"PASSWORD": "guest", "ENVELOPE_KEY": "a key of sixteen bytes"}
    return parse(text, source="here", folder=folder, environ=environ)


def warned(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.subject, each.text) for each in findings if each.grade is not Grade.GOOD]


@pytest.mark.live
async def test_what_was_provisioned_is_good(rabbits: Nodes, tmp_path: Path) -> None:
    async with rabbits.room("primary") as room:
        config = loaded(rabbits, room, tmp_path)
        made, _ = await provision_all(config, Outside())
        findings = await check(config, Outside())
        for name in made.queues:
            await room.broker.delete_queue(EntityPath(name))

    assert len(made.queues) == 2
    assert [each for each in warned(findings) if each[0] != "here"] == []


@pytest.mark.live
async def test_queues_that_may_lose_messages_are_named(rabbits: Nodes, tmp_path: Path) -> None:
    async with rabbits.room("primary") as room:
        queue = backlog.queue_name(room.name, 0)
        limited = {"x-queue-type": "quorum", "x-delivery-limit": 5}
        await room.declare(EntityPath("orders"), {})
        await room.declare(EntityPath(queue.name.removeprefix(f"{room.name}/")), limited)

        findings = warned(await check(loaded(rabbits, room, tmp_path), Outside()))

    assert (f"queue {room.name}/orders", "it is a classic queue, not quorum") in findings
    assert (f"backlog queue {queue}", "it gives a message up after 5 failed deliveries") in findings
