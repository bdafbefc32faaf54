"""Atom management of queues."""

from datetime import timedelta

from trio.testing import MockClock

from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.wire.servicebus import atom
from gateway.wire.servicebus import atom_operations as management
from tests.frontends.rest_client import ORDERS, Client, detail
from tests.frontends.servicebus.rest_atom import QueuesOnly


async def test_queue_is_created_told_listed_and_deleted(
    autojump_clock: MockClock, client: Client
) -> None:
    bills = EntityPath("eu/Bills")
    properties = QueueProperties(max_delivery_count=3, lock_duration=timedelta(seconds=30))

    created = await client.send(
        atom.build_request(management.PutQueue(entity=bills, properties=properties))
    )
    told = await client.manage(management.GetEntity(entity=bills))
    listed = await client.manage(management.ListQueues())
    await client.manage(management.DeleteEntity(entity=bills))

    assert created.status == 201
    assert isinstance(told, EntityInfo)
    assert (told.path.name, told.properties.max_delivery_count) == ("eu/Bills", 3)
    assert isinstance(listed, tuple)
    assert [info.path.name for info in listed if isinstance(info, EntityInfo)] == [
        "eu/Bills",
        "orders",
    ]
    assert await client.manage(management.GetEntity(entity=bills)) is None


async def test_queue_that_exists_is_409_and_stays(
    autojump_clock: MockClock, client: Client
) -> None:
    request = atom.build_request(
        management.PutQueue(entity=ORDERS, properties=QueueProperties(max_delivery_count=3))
    )

    assert (await client.send(request)).status == 409
    assert (await client.broker.inspect(ORDERS)).properties.max_delivery_count == 10


async def test_missing_queue_is_an_empty_feed_to_tell_and_404_to_delete(
    autojump_clock: MockClock, client: Client
) -> None:
    told = await client.ask("GET", "/missing")
    deleted = await client.ask("DELETE", "/missing")

    assert (told.status, b"<feed" in told.body, b"<entry" in told.body) == (200, True, False)
    assert deleted.status == 404
    assert "there is no queue or topic missing" in detail(deleted)


async def test_namespace_without_topics_says_so(autojump_clock: MockClock, client: Client) -> None:
    client.frontend.broker = QueuesOnly(client.broker)  # type: ignore[assignment]
    update = management.PutQueue(entity=ORDERS, properties=QueueProperties(), update=True)

    answers = [
        await client.ask("GET", "/$Resources/Topics"),
        await client.ask("GET", "/t/subscriptions/s"),
        await client.send(atom.build_request(update)),
    ]

    assert [answer.status for answer in answers] == [501, 501, 501]
    assert "this namespace doesn't support topics" in detail(answers[0])


async def test_namespace_without_topics_still_has_its_queues(
    autojump_clock: MockClock, client: Client
) -> None:
    client.frontend.broker = QueuesOnly(client.broker)  # type: ignore[assignment]

    assert isinstance(await client.manage(management.GetEntity(entity=ORDERS)), EntityInfo)
    assert await client.manage(management.GetEntity(entity=EntityPath("missing"))) is None
    assert (await client.ask("DELETE", "/orders")).status == 200
    assert (await client.ask("DELETE", "/orders")).status == 404


async def test_list_comes_in_pages(autojump_clock: MockClock, client: Client) -> None:
    for name in ("a", "b"):
        await client.broker.create_queue(EntityPath(name), QueueProperties())

    first = await client.ask("GET", "/$Resources/Queues?$skip=0&$top=2")
    second = await client.ask("GET", "/$Resources/Queues?$skip=2&$top=2")

    assert (first.body.count(b"<entry"), b'rel="next"' in first.body) == (2, True)
    assert (second.body.count(b"<entry"), b'rel="next"' in second.body) == (1, False)


async def test_namespace_tells_its_name(autojump_clock: MockClock, client: Client) -> None:
    assert await client.manage(management.GetNamespace()) == management.NamespaceInfo(name="east")
