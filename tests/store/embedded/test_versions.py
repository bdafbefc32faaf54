"""
Stores that each version of the schema has written itself: `versions/N.db.xz`, made by the last
commit of version N with the same calls. They open in this version, with all their content.

With a new version, add the file of the last one: a queue `Orders` with its messages, and since
version 2 sessions, detection of duplicates and a topic.
"""

import lzma
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.message import Message, ValueBody
from gateway.domain.topics.filters import SqlFilter
from gateway.store.embedded.inspection import inspect
from gateway.store.embedded.tables import VERSION
from tests.store.embedded.crashes import GOOD_DISK
from tests.store.embedded.stores import ORDERS, embedded, stored_ids

FILES = Path(__file__).with_name("versions")
WITH_SESSIONS = range(2, VERSION + 1)


def unpack(version: int, folder: Path) -> None:
    packed = (FILES / f"{version}.db.xz").read_bytes()
    (folder / "a.db").write_bytes(lzma.decompress(packed))


def test_each_version_has_its_store() -> None:
    names = {path.name for path in FILES.iterdir()}

    assert names == {f"{number}.db.xz" for number in range(1, VERSION + 1)}


@pytest.mark.parametrize("version", range(1, VERSION + 1))
async def test_a_queue_of_each_version_has_its_messages(version: int, tmp_path: Path) -> None:
    unpack(version, tmp_path)
    async with embedded(tmp_path) as broker:
        info = await broker.inspect(ORDERS)
        [dead] = await broker.peek(ORDERS.dead_letter)
        shown = {each.message.message_id: each for each in await broker.peek(ORDERS, limit=9)}
        async with broker.open_receiver(ORDERS) as receiver:
            taken = await receiver.receive(9)

    assert (info.path.name, info.active, info.scheduled) == ("Orders", 3, 1)
    assert info.properties.max_delivery_count == 7
    assert info.properties.lock_duration == timedelta(seconds=45)
    assert dead.message.message_id == "dead"
    assert dead.message.properties["DeadLetterReason"] == "bad"
    assert {each.message.message_id: each.delivery_count for each in taken} == {
        "again": 2,
        "rich": 1,
        "value": 1,
    }
    assert shown["later"].message.scheduled == datetime(2100, 1, 1, tzinfo=UTC)
    assert shown["value"].message.body == ValueBody([1, "two", {"three": 3.0}])
    rich = shown["rich"].message
    assert (rich.subject, rich.correlation_id, rich.content_type) == ("s", "c", "text/plain")
    assert dict(rich.properties) == {
        "text": "ä",
        "number": 1,
        "float": 1.5,
        "yes": True,
        "none": None,
        "id": UUID(int=7),
        "bytes": b"\x00\xff",
        "date": datetime(2026, 1, 2, tzinfo=UTC),
    }


@pytest.mark.parametrize("version", WITH_SESSIONS)
async def test_sessions_topics_and_ids_of_each_version_are_kept(
    version: int, tmp_path: Path
) -> None:
    unpack(version, tmp_path)
    sessions, once, news = EntityPath("sessions"), EntityPath("once"), EntityPath("news")
    async with embedded(tmp_path) as broker:
        async with broker.open_session(sessions, "a") as session:
            state = await session.get_state()
            [first] = await session.receive(9)
        properties = (await broker.inspect(once)).properties
        [rule] = await broker.list_rules(news, "high")
        await broker.send(news, [Message(message_id="n3", properties={"priority": 4})])
        found = await stored_ids(broker, EntityPath("news/subscriptions/high"))

    assert (state, first.message.message_id) == (b"state of a", "s1")
    assert properties.requires_duplicate_detection
    assert (rule.name, rule.filter) == ("high", SqlFilter(expression="priority > 3"))
    assert found == ["n1", "n3"]


@pytest.mark.parametrize("version", range(1, VERSION + 1))
async def test_a_store_of_each_version_has_no_fault_once_it_was_opened(
    version: int, tmp_path: Path
) -> None:
    unpack(version, tmp_path)
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, [Message(message_id="new")])
    found = inspect(tmp_path / "a.db", GOOD_DISK)

    assert (found.good, found.doubts) == (True, ())
