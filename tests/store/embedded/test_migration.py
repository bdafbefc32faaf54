"""A store of an earlier version is opened, and keeps its content."""

from pathlib import Path

import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Message
from gateway.domain.topics.filters import SqlFilter
from gateway.store.embedded import schema, tables
from gateway.store.embedded.inspection import inspect
from tests.store.embedded.crashes import GOOD_DISK
from tests.store.embedded.migration import MAKERS, make_store_2
from tests.store.embedded.stores import ORDERS, embedded, opened, stored_ids

VERSIONS = pytest.mark.parametrize("version", MAKERS)


def columns(path: Path) -> dict[str, set[str]]:
    with opened(path) as connection:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        names = [name for (name,) in tables if not name.startswith("sqlite_")]
        return {
            name: {
                f"{column} {kind} {required}"
                for _, column, kind, required, *_ in connection.execute(
                    f"PRAGMA table_info({name})"
                )
            }
            for name in names
        }


def indexes(path: Path) -> set[str]:
    with opened(path) as connection:
        found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")
        return {name for (name,) in found}


@VERSIONS
async def test_a_store_of_an_earlier_version_keeps_its_messages(tmp_path, version):
    MAKERS[version](tmp_path / "a.db")
    async with embedded(tmp_path) as broker:
        info = await broker.inspect(ORDERS)
        found = await stored_ids(broker)
        [dead] = await broker.peek(ORDERS.dead_letter)
        async with broker.open_receiver(ORDERS) as receiver:
            taken = await receiver.receive(2)
            await receiver.settle(taken[0], Complete())
        await broker.send(ORDERS, [Message(message_id="new", session_id="s")])
    async with embedded(tmp_path) as broker:
        left = await stored_ids(broker)

    assert found == ["1", "2"]
    assert [delivery.delivery_count for delivery in taken] == [1, 6]
    assert dead.message.properties["DeadLetterReason"] == "bad"
    assert (info.properties.max_delivery_count, info.version) == (7, 0)
    assert info.updated == info.created
    assert left == ["2", "new"]


async def test_a_store_of_version_2_keeps_what_is_beside_its_messages(tmp_path):
    make_store_2(tmp_path / "a.db")
    async with embedded(tmp_path) as broker:
        [rule] = await broker.list_rules(EntityPath("news"), "reader")
        async with broker.open_session(EntityPath("waiting"), "s") as session:
            state = await session.get_state()
        await broker.send(EntityPath("unique"), [Message(message_id="a")])
        left = await stored_ids(broker, EntityPath("unique"))

    assert (rule.name, rule.filter) == ("Some", SqlFilter(expression="a = 1"))
    assert state == b"\1\2"
    assert left == []
    found = inspect(tmp_path / "a.db", GOOD_DISK)
    assert found.good
    assert found.doubts == ()


@VERSIONS
async def test_a_migrated_store_is_as_a_new_one(tmp_path, version):
    MAKERS[version](tmp_path / "a.db")
    schema.create(tmp_path / "new.db", 7)
    async with embedded(tmp_path) as broker:
        await broker.send(EntityPath("other"), [Message()])

    assert columns(tmp_path / "a.db") == columns(tmp_path / "new.db")
    assert indexes(tmp_path / "a.db") == indexes(tmp_path / "new.db")


@VERSIONS
def test_a_migration_that_was_cut_short_begins_again(tmp_path, version):
    MAKERS[version](tmp_path / "a.db")
    with opened(tmp_path / "a.db") as connection:
        connection.execute("BEGIN")
        connection.execute(tables.MIGRATIONS[version])
        connection.execute("ROLLBACK")
    connection = schema.connect(tmp_path / "a.db")
    found = connection.pragma("user_version")
    connection.close()

    assert found == tables.VERSION
