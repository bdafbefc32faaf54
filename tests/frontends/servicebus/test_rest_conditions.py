"""Conditional requests of the management, and lists that continue while entities change."""

import re
from collections.abc import Sequence
from xml.sax.saxutils import unescape

import attrs
import pytest
from trio.testing import MockClock

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.local.memory import MemoryBroker
from gateway.wire.servicebus import atom
from gateway.wire.servicebus import atom_operations as management
from tests.frontends.rest_client import ORDERS, Client, detail
from tests.frontends.servicebus.rest_atom import QueuesOnly

NEWS = EntityPath("news")


@pytest.fixture
async def topic(client: Client) -> EntityPath:
    await client.broker.create_topic(NEWS, TopicProperties())
    await client.broker.create_subscription(NEWS, "s", SubscriptionProperties())
    return NEWS


def entry(max_delivery_count: int = 7) -> bytes:
    properties = QueueProperties(max_delivery_count=max_delivery_count)
    return atom.build_request(management.PutQueue(entity=ORDERS, properties=properties)).body


async def tag_of(client: Client, path: str) -> str:
    return (await client.ask("GET", path)).headers.get("ETag") or ""


async def put(client: Client, path: str = "/orders", **fields: str) -> int:
    return (await client.ask("PUT", path, entry(), **fields)).status


async def test_a_get_of_the_known_version_is_304_without_a_body(
    autojump_clock: MockClock, client: Client, topic: EntityPath
) -> None:
    for path in ("/orders", "/news", "/news/subscriptions/s"):
        tag = await tag_of(client, path)
        same = await client.ask("GET", path, If_None_Match=f'"77", {tag}')
        other = await client.ask("GET", path, If_None_Match='"77"')

        assert (same.status, same.body, same.headers.get("ETag")) == (304, b"", tag)
        assert other.status == 200


async def test_a_get_after_a_change_is_200_with_another_tag(
    autojump_clock: MockClock, client: Client
) -> None:
    old = await tag_of(client, "/orders")
    assert await put(client, If_Match=old) == 200

    answer = await client.ask("GET", "/orders", If_None_Match=old)

    assert answer.status == 200
    assert answer.headers.get("ETag") not in {old, None}


async def test_a_get_of_a_version_that_is_gone_is_412(
    autojump_clock: MockClock, client: Client
) -> None:
    assert (await client.ask("GET", "/orders", If_Match='"77"')).status == 412
    assert (await client.ask("GET", "/orders", If_Match="*")).status == 200


async def test_a_put_that_must_create_is_412_if_the_entity_exists(
    autojump_clock: MockClock, client: Client
) -> None:
    assert await put(client, If_None_Match="*") == 412
    assert (await client.broker.inspect(ORDERS)).properties.max_delivery_count == 10
    assert await put(client, "/other", If_None_Match="*") == 201
    assert await put(client) == 409


@pytest.mark.parametrize(
    "fields", [{"If_None_Match": '"1"'}, {"If_None_Match": "*", "If_Match": "*"}]
)
async def test_a_put_with_another_condition_is_refused_and_named(
    autojump_clock: MockClock, client: Client, fields: dict[str, str]
) -> None:
    answer = await client.ask("PUT", "/orders", entry(), **fields)

    assert answer.status == 400
    assert "If-None-Match: * without If-Match expected" in detail(answer)


async def test_a_delete_of_an_older_version_is_412_and_deletes_nothing(
    autojump_clock: MockClock, client: Client, topic: EntityPath
) -> None:
    paths = ("/orders", "/news/subscriptions/s", "/news")
    for path in paths:
        assert (await client.ask("DELETE", path, If_Match='"77"')).status == 412
    for path in paths:
        tag = await tag_of(client, path)
        assert (await client.ask("DELETE", path, If_Match=tag)).status == 200
        assert (await client.ask("DELETE", path, If_Match=tag)).status == 404


async def test_a_delete_of_any_version_and_of_a_rule_takes_a_star_only(
    autojump_clock: MockClock, client: Client, topic: EntityPath
) -> None:
    rule = "/news/subscriptions/s/rules/$Default"

    assert (await client.ask("DELETE", rule, If_Match='"0"')).status == 412
    assert (await client.ask("DELETE", rule, If_None_Match="*")).status == 400
    assert (await client.ask("DELETE", rule, If_Match="*")).status == 200
    assert (await client.ask("DELETE", "/orders", If_Match="*")).status == 200


async def test_a_namespace_without_versions_says_so(
    autojump_clock: MockClock, client: Client
) -> None:
    client.frontend.broker = QueuesOnly(client.broker)  # type: ignore[assignment]

    answer = await client.ask("DELETE", "/orders", If_Match='"0"')

    assert answer.status == 501
    assert "can't delete an entity by its version" in detail(answer)
    assert await client.broker.inspect(ORDERS)


async def listed(client: Client, target: str, between: list[tuple[str, str]]) -> list[str]:
    """All names that the pages of a list have; one change between two of them."""
    names: list[str] = []
    while target:
        body = (await client.ask("GET", target)).body.decode()
        names += re.findall(r'<entry .*?<title type="text">(.*?)</title>', body)
        found = re.search(r'rel="next" href="(.*?)"', body)
        target = unescape(found[1]).partition("localhost:8080")[2] if found else ""
        if between:
            verb, name = between.pop(0)
            assert (await client.ask(verb, f"/{name}", entry())).status in {200, 201}
    return names


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [("DELETE", "b1"), ("DELETE", "b2")],
        [("DELETE", "b0"), ("DELETE", "b1"), ("DELETE", "b4")],
        [("PUT", "a1"), ("PUT", "a2"), ("PUT", "a3")],
        [("PUT", "z"), ("DELETE", "b3")],
    ],
)
async def test_a_continued_list_has_each_entry_once_whatever_changes_meanwhile(
    autojump_clock: MockClock, client: Client, changes: list[tuple[str, str]]
) -> None:
    await client.broker.delete_queue(ORDERS)
    for number in range(8):
        await client.broker.create_queue(EntityPath(f"b{number}"), QueueProperties())
    gone = {name for verb, name in changes if verb == "DELETE"}

    names = await listed(client, "/$Resources/queues?$skip=0&$top=2", list(changes))

    assert len(names) == len(set(names))
    assert {f"b{number}" for number in range(8)} - gone <= set(names)


async def test_a_continued_list_ends_when_everything_behind_it_is_gone(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.broker.create_queue(EntityPath("zebra"), QueueProperties())

    assert await listed(client, "/$Resources/queues?$top=1", [("DELETE", "zebra")]) == ["orders"]


async def test_a_continued_list_is_found_with_few_reads_whatever_the_client_says(
    autojump_clock: MockClock, client: Client
) -> None:
    for number in range(8):
        await client.broker.create_queue(EntityPath(f"b{number}"), QueueProperties())
    counted = Counting(client.broker)
    client.frontend.broker = counted  # type: ignore[assignment]

    names = await listed(client, "/$Resources/queues?$skip=999999999&$top=9&$skiptoken=b4", [])

    assert names == ["b5", "b6", "b7", "orders"]
    assert counted.reads < 40


@attrs.define
class Counting:
    """A namespace that counts the pages that are read."""

    inner: MemoryBroker
    reads: int = 0

    async def list_queues(self, prefix: str, *, skip: int, top: int) -> Sequence[EntityInfo]:
        self.reads += 1
        return await self.inner.list_queues(prefix, skip=skip, top=top)
