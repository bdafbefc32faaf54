"""`pairgate check` and `pairgate provision` on RabbitMQ; both name the operations that it lacks."""

from pathlib import Path

import pytest

from gateway.app.operations.checking import CheckFinding, Grade, check
from gateway.app.operations.provisioning import provision_all
from gateway.app.runtime import Runtime
from gateway.brokers.rabbitmq.broker import CANNOT
from gateway.config.file import Loaded, parse
from gateway.config.kinds import cannot
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from tests.brokers.rabbitmq.nodes import Namespace, Nodes

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "namespaces.md"
WARNS = {Grade.WARNING, Grade.BAD}
WORDS = {"listing of queues": "listing", "changes of a queue": "changes"}


def test_the_docs_say_what_it_can_not_do() -> None:
    text = DOCS.read_text()

    assert cannot("rabbitmqs://x") is CANNOT
    assert [each for each in CANNOT if WORDS.get(each, each) not in text] == []


def loaded(
    rabbits: Nodes,
    namespace: Namespace,
    folder: Path,
    primary: str = "here",
    more: str = "",
    backlog_queues: int = 1,
) -> Loaded:
    text = f"""
[namespaces.rabbit]
url = "rabbitmq://guest@127.0.0.1:{rabbits.port("primary")}"
password = {{ env = "PASSWORD" }}
{more}
queues = ["{namespace.name}/orders"]
[namespaces.{primary}]
url = "memory:"
[pairing]
primary = "{primary}"
secondary = "rabbit"
label = "{namespace.name}"
backlog_queues = {backlog_queues}
envelope_keys = [{{ id = "1", key = {{ env = "ENVELOPE_KEY" }} }}]
"""
    environ = {"PASSWORD": "guest", "ENVELOPE_KEY": "a key of sixteen bytes"}
    return parse(text, source="here", folder=folder, environ=environ)


def warned(findings: list[CheckFinding]) -> list[tuple[str, str]]:
    return [(each.subject, each.text) for each in findings if each.grade in WARNS]


@pytest.mark.live
async def test_a_provisioned_namespace_is_good(rabbits: Nodes, tmp_path: Path) -> None:
    async with rabbits.namespace("primary") as namespace:
        config = loaded(rabbits, namespace, tmp_path)
        made, _ = await provision_all(config, Runtime())
        findings = await check(config, Runtime())
        for name in made.queues:
            await namespace.broker.delete_queue(EntityPath(name))

    assert len(made.queues) == 3  # with that of the records
    assert [each for each in warned(findings) if each[0] not in {"here", "endpoints"}] == []


@pytest.mark.live
async def test_queues_that_may_lose_messages_are_named(rabbits: Nodes, tmp_path: Path) -> None:
    async with rabbits.namespace("primary") as namespace:
        queue = backlog.queue_name(namespace.name, 0)
        limited = {"x-queue-type": "quorum", "x-delivery-limit": 5}
        await namespace.declare(EntityPath("orders"), {})
        await namespace.declare(EntityPath(queue.name.removeprefix(f"{namespace.name}/")), limited)

        findings = warned(await check(loaded(rabbits, namespace, tmp_path), Runtime()))

    assert (f"queue {namespace.name}/orders", "it is a classic queue, not quorum") in findings
    assert (f"backlog queue {queue}", "it gives a message up after 5 failed deliveries") in findings


@pytest.mark.live
async def test_a_finding_of_all_backlog_queues_is_said_once(rabbits: Nodes, tmp_path: Path) -> None:
    async with rabbits.namespace("primary") as namespace:
        config = loaded(rabbits, namespace, tmp_path, backlog_queues=10)
        findings = warned(await check(config, Runtime()))
        first, last = backlog.queue_name(namespace.name, 0), backlog.queue_name(namespace.name, 9)

    assert [each for each in findings if each[1] == "missing"] == [
        (f"10 backlog queues, {first} to {last}", "missing"),
    ]


def foreign(findings: list[CheckFinding]) -> list[CheckFinding]:
    return [each for each in findings if "pairing.label" in each.text]


@pytest.mark.live
async def test_a_backlog_of_another_pair_is_refused_until_it_is_adopted(
    rabbits: Nodes, tmp_path: Path
) -> None:
    async with rabbits.namespace("primary", management=rabbits.management("primary")) as namespace:
        more = f'management = "{rabbits.management("primary")}"'
        ours = loaded(rabbits, namespace, tmp_path / "ours", more=more)
        theirs = loaded(rabbits, namespace, tmp_path / "theirs", primary="there", more=more)
        made, _ = await provision_all(ours, Runtime())
        refused, _ = await provision_all(theirs, Runtime())
        [bad] = foreign(await check(theirs, Runtime()))
        fingerprint = bad.text.rpartition("--adopt ")[2].rstrip("`")
        adopted, _ = await provision_all(theirs, Runtime(), adopted=[fingerprint])
        after = foreign(await check(theirs, Runtime()))
        former, _ = await provision_all(ours, Runtime())
        for name in made.queues:
            await namespace.broker.delete_queue(EntityPath(name))
        prefix = backlog.marker_prefix(namespace.name)
        for info in await namespace.broker.list_queues(prefix):
            await namespace.broker.delete_queue(info.path)

    assert refused.failure is not None
    assert "pairing.label" in str(refused.failure)
    assert bad.subject == "namespace rabbit"
    assert (made.failure, adopted.failure) == (None, None)
    assert bad.grade is Grade.BAD
    assert after == []
    assert former.failure is not None
