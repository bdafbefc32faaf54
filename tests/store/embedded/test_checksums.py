"""The data that is stored beside messages is as it was written, or the damage is reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import StateDamaged
from gateway.domain.events.stores import Quarantined, SessionStateDamaged
from gateway.domain.message import Complete, DeadLetter, Message
from gateway.domain.topics.filters import Rule, SqlFilter
from gateway.store.embedded import schema
from gateway.store.embedded.checksums import SEALED, fitting, row_checksum
from gateway.store.embedded.files import StoreDamaged
from gateway.store.embedded.inspection import inspect
from tests.store.embedded.checksums import NEWS, make
from tests.store.embedded.crashes import GOOD_DISK
from tests.store.embedded.stores import ORDERS, Events, embedded, numbered, opened, stored_ids

SESSIONS = QueueProperties(requires_session=True)
UNIQUE = QueueProperties(requires_duplicate_detection=True)
NO_TEXT = "CAST(x'6cff7465' AS TEXT)"
VALUES = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary())


@given(VALUES, VALUES)
def test_other_values_have_another_checksum(left, right):
    same = [(type(value), value) for value in left] == [(type(value), value) for value in right]

    assert (row_checksum(*left) == row_checksum(*right)) is same


@pytest.mark.parametrize("table", SEALED)
def test_every_column_counts(tmp_path, table):
    schema.create(tmp_path / "a.db", 7)
    connection = schema.connect(tmp_path / "a.db")
    columns = {
        name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    }
    covered = set(fitting(table).removeprefix("row_checksum(").removesuffix(")").split(", "))
    connection.close()

    only_one = {"id"} if table == "store" else set()
    assert covered == columns - {"checksum"} - only_one


SPOILED = {
    "UPDATE queue SET properties = replace(properties, '10', '11')": "entity 'news'",
    "UPDATE queue SET created = created + 1 WHERE key = 'orders'": "entity 'orders'",
    "UPDATE queue SET key = NULL WHERE key = 'orders'": "entity 'orders'",
    "UPDATE queue SET version = 3 WHERE key IS NULL": "entity 'gone'",
    "UPDATE rule SET rule = replace(rule, '= 1', '= 3')": "rule 'some'",
    "UPDATE rule SET key = 'other'": "rule 'other'",
    "UPDATE store SET next_sequence = 1": "the row of its table `store`",
    "UPDATE store SET survivors = 7": "the row of its table `store`",
}


@pytest.mark.parametrize("statement", SPOILED)
async def test_a_damaged_row_of_an_entity_a_rule_or_the_store_is_refused(tmp_path, statement):
    await make(tmp_path)
    with opened(tmp_path / "a.db") as connection:
        connection.execute(statement)

    with pytest.raises(StoreDamaged, match=f"{SPOILED[statement]}.*damaged.*check.*--salvage"):
        async with embedded(tmp_path):
            pytest.fail("opened")
    assert not inspect(tmp_path / "a.db", GOOD_DISK).good


async def test_rows_that_change_fit_again(tmp_path):
    await make(tmp_path)
    async with embedded(tmp_path) as broker:
        await broker.update_queue(ORDERS, QueueProperties(max_delivery_count=3))
        await broker.create_rule(
            NEWS, "reader", Rule(name="more", filter=SqlFilter(expression="b = 2"))
        )
        await broker.delete_rule(NEWS, "reader", "some")
        await broker.delete_queue(ORDERS)
        await broker.send(EntityPath("later"), numbered(2))
    async with embedded(tmp_path) as broker:
        left = await stored_ids(broker, EntityPath("later"))

    assert left == ["2"]
    assert inspect(tmp_path / "a.db", GOOD_DISK).problems == ()


async def test_a_damaged_session_state_is_never_served_and_told_once(tmp_path):
    events = Events()
    async with embedded(tmp_path) as broker:
        await broker.create_queue(ORDERS, SESSIONS)
        await broker.send(ORDERS, [Message(message_id=n, session_id="s") for n in "12"])
        async with broker.open_session(ORDERS, "s") as session:
            await session.set_state(b"state")
    with opened(tmp_path / "a.db") as connection:
        connection.execute("UPDATE session SET state = x'00', first = 1000")
    before = inspect(tmp_path / "a.db", GOOD_DISK)
    for number in "12":
        async with (
            embedded(tmp_path, observer=events) as broker,
            broker.open_session(ORDERS, None) as session,
        ):
            for _ in range(2):
                with pytest.raises(StateDamaged, match="'s'"):
                    await session.get_state()
            [delivery] = await session.receive(1)
            await session.settle(delivery, Complete())
        assert delivery.message.message_id == number
    known = inspect(tmp_path / "a.db", GOOD_DISK)
    async with embedded(tmp_path) as broker, broker.open_session(ORDERS, "s") as session:
        await session.set_state(b"new")
        state = await session.get_state()

    told = [event for event in events.seen if isinstance(event, SessionStateDamaged)]
    assert told == [SessionStateDamaged(queue=ORDERS, session_id="s")]
    assert "1 session row is damaged: s" in before.problems
    assert known.good
    assert any("unreadable state" in doubt for doubt in known.doubts)
    assert state == b"new"
    assert inspect(tmp_path / "a.db", GOOD_DISK).doubts == ()


@pytest.mark.parametrize("change", ["id = 'b'", "until = until + 1"])
async def test_a_damaged_id_takes_no_message_for_a_duplicate(tmp_path, change):
    async with embedded(tmp_path) as broker:
        await broker.create_queue(ORDERS, UNIQUE)
        await broker.send(ORDERS, [Message(message_id="a")])
    with opened(tmp_path / "a.db") as connection:
        connection.execute(f"UPDATE seen SET {change}")
    found = inspect(tmp_path / "a.db", GOOD_DISK)
    async with embedded(tmp_path) as broker:
        for name in "abab":
            await broker.send(ORDERS, [Message(message_id=name)])
        left = await stored_ids(broker)

    assert left == ["a", "a", "b"]
    assert found.good
    assert any("1 ids are damaged" in doubt for doubt in found.doubts)


async def test_a_message_whose_reason_is_no_text_any_more_is_put_aside(tmp_path):
    events = Events()
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, [Message(message_id=n) for n in "12"])
        async with broker.open_receiver(ORDERS) as receiver:
            for delivery in await receiver.receive(2):
                await receiver.settle(delivery, DeadLetter(reason="late", description=""))
    with opened(tmp_path / "a.db") as connection:
        connection.execute(f"UPDATE message SET reason = {NO_TEXT} WHERE sequence = 3")
    async with (
        embedded(tmp_path, observer=events) as broker,
        broker.open_receiver(ORDERS.dead_letter) as receiver,
    ):
        served = [delivery.message.message_id for delivery in await receiver.receive(2)]
        await broker.inspect(ORDERS)

    assert served == ["2"]
    assert events.seen == [Quarantined(queue=ORDERS, sequence_number=1)]


async def test_a_name_of_a_session_that_is_no_text_any_more_stops_nobody(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.create_queue(ORDERS, SESSIONS)
        await broker.send(ORDERS, [Message(session_id=name) for name in ("one", "two")])
    with opened(tmp_path / "a.db") as connection:
        connection.execute(f"UPDATE session SET id = {NO_TEXT} WHERE id = 'one'")
    async with embedded(tmp_path) as broker:
        names = await broker.list_sessions(ORDERS)
        async with broker.open_session(ORDERS, None) as session:
            found = session.session_id

    assert names == ["l\ufffdte", "two"]
    assert found == "two"


async def test_a_seen_id_that_is_no_text_any_more_comes_to_its_end(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.create_queue(ORDERS, UNIQUE)
        await broker.send(ORDERS, [Message(message_id="a")])
    with opened(tmp_path / "a.db") as connection:
        connection.execute(f"UPDATE seen SET id = {NO_TEXT}, until = 1")
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, [Message(message_id="b")])
    with opened(tmp_path / "a.db") as connection:
        left = connection.execute("SELECT id FROM seen").fetchall()

    assert left == [("b",)]
