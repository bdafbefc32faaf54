"""Atom management of queues."""

from datetime import timedelta

import attrs
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.wire import atom
from tests.frontends.rest_client import ORDERS, Client


async def test_queue_is_created_told_listed_and_deleted(
    autojump_clock: MockClock, client: Client
) -> None:
    bills = EntityPath("eu/Bills")
    properties = QueueProperties(max_delivery_count=3, lock_duration=timedelta(seconds=30))

    created = await client.send(
        atom.build_request(atom.PutQueue(entity=bills, properties=properties))
    )
    told = await client.manage(atom.GetQueue(entity=bills))
    listed = await client.manage(atom.ListQueues())
    await client.manage(atom.DeleteQueue(entity=bills))

    assert created.status == 201
    assert told is not None
    assert not isinstance(told, str | tuple)
    assert (told.path.name, told.properties.max_delivery_count) == ("eu/Bills", 3)
    assert isinstance(listed, tuple)
    assert [info.path.name for info in listed] == ["eu/Bills", "orders"]
    assert await client.manage(atom.GetQueue(entity=bills)) is None


async def test_queue_that_exists_is_409_and_stays(
    autojump_clock: MockClock, client: Client
) -> None:
    request = atom.build_request(
        atom.PutQueue(entity=ORDERS, properties=QueueProperties(max_delivery_count=3))
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


async def test_update_that_changes_nothing_is_fine_and_any_other_is_refused(
    autojump_clock: MockClock, client: Client
) -> None:
    same = atom.PutQueue(entity=ORDERS, properties=QueueProperties(), update=True)
    other = attrs.evolve(same, properties=QueueProperties(max_delivery_count=3))
    missing = attrs.evolve(same, entity=EntityPath("missing"))

    statuses = [
        (await client.send(atom.build_request(operation))).status
        for operation in (same, other, missing)
    ]

    assert statuses == [200, 501, 404]


async def test_list_comes_in_pages(autojump_clock: MockClock, client: Client) -> None:
    for name in ("a", "b"):
        await client.broker.create_queue(EntityPath(name), QueueProperties())

    first = await client.ask("GET", "/$Resources/Queues?$skip=0&$top=2")
    second = await client.ask("GET", "/$Resources/Queues?$skip=2&$top=2")

    assert (first.body.count(b"<entry"), b'rel="next"' in first.body) == (2, True)
    assert (second.body.count(b"<entry"), b'rel="next"' in second.body) == (1, False)


async def test_namespace_tells_its_name(autojump_clock: MockClock, client: Client) -> None:
    assert await client.manage(atom.GetNamespace()) == "east"
