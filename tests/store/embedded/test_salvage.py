import os

import pytest

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import StateDamaged
from gateway.domain.message import Abandon, Complete, Message
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.embedded.files import StoreError
from gateway.store.embedded.inspection import inspect
from gateway.store.embedded.salvage import Salvaged, salvage
from gateway.store.embedded.schema import EPOCH
from tests.store.embedded.checksums import NEWS, make
from tests.store.embedded.crashes import GOOD_DISK, break_index, content, send_and_die
from tests.store.embedded.migration import make_store_1
from tests.store.embedded.stores import ORDERS, embedded, numbered, opened, seal, stored_ids


def salvaged(folder) -> Salvaged:
    """Into a store `new/a.db`."""
    (folder / "new").mkdir()
    before = content(folder)
    found = salvage(folder / "a.db", folder / "new" / "a.db", 8, GOOD_DISK)
    assert content(folder) == before  # the damaged file stays in any case
    assert inspect(folder / "new" / "a.db", GOOD_DISK).good
    return found


@pytest.mark.parametrize(
    "broken",
    ["message_order", "message_due", "message_hidden", "session", "store", "delivered"],
)
async def test_damage_beside_the_messages_loses_none(tmp_path, broken):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(*range(300)))
    break_index(tmp_path / "a.db", broken)
    found = salvaged(tmp_path)
    async with embedded(tmp_path / "new") as broker:
        left = await stored_ids(broker)
        await broker.send(ORDERS, numbered("new"))
        newest = (await broker.peek(ORDERS, limit=400))[-1]

    assert (found.messages, found.lost_messages, found.quarantined) == (300, 0, 0)
    assert left == [str(number) for number in range(300)]
    assert newest.sequence_number > EPOCH


async def test_messages_of_a_lost_page_are_named_and_the_others_are_there(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(*range(300)))
    with opened(tmp_path / "a.db") as connection:
        page = "SELECT max(pageno) FROM dbstat WHERE name = 'message' AND pagetype = 'leaf'"
        numbers = "SELECT sum(ncell) FROM dbstat WHERE name = 'message' AND pageno = ?"
        number = connection.execute(page).get
        cells = connection.execute(numbers, (number,)).get
    file = os.open(tmp_path / "a.db", os.O_RDWR)
    os.pwrite(file, b"\xff" * 4096, (number - 1) * 4096)
    os.close(file)
    found = salvaged(tmp_path)
    async with embedded(tmp_path / "new") as broker:
        left = await stored_ids(broker)

    assert found.lost_messages == len(found.lost) == cells > 0
    assert found.messages == len(left) == 300 - cells
    assert {int(each) + 1 for each in left}.isdisjoint(found.lost)


async def test_a_message_that_is_not_what_was_sent_is_put_aside(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1, 2, 3))
    with opened(tmp_path / "a.db") as connection:
        connection.execute("UPDATE message SET content = zeroblob(size) WHERE sequence = 1")
        connection.execute("UPDATE message SET state = 77 WHERE sequence = 2")
    found = salvaged(tmp_path)
    async with embedded(tmp_path / "new") as broker:
        left = await stored_ids(broker)

    assert (found.messages, found.quarantined, left) == (1, 2, ["3"])


async def test_messages_of_a_lost_queue_get_a_queue(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
        await broker.send(EntityPath("other"), numbered(2))
    break_index(tmp_path / "a.db", "queue")
    found = salvaged(tmp_path)
    async with embedded(tmp_path / "new") as broker:
        left = [await stored_ids(broker, EntityPath(f"salvaged-{number}")) for number in (1, 2)]

    assert left == [["1"], ["2"]]
    assert "rows of the table queue can't be read" in found.remarks
    assert "the messages of a lost queue are in salvaged-1" in found.remarks


async def test_properties_and_rules_that_say_nothing_are_replaced(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    with opened(tmp_path / "a.db") as connection:
        connection.execute("UPDATE queue SET properties = '{'")
        connection.execute("INSERT INTO rule VALUES (1, 'a', '{}', x'', x'', 0)")
        seal(connection)
    found = salvaged(tmp_path)
    async with embedded(tmp_path / "new") as broker:
        left = await stored_ids(broker)

    assert left == ["1"]
    assert found.remarks == (
        "orders is a queue with default properties now",
        "the rule a of the subscription 1 is gone",
    )


async def test_damaged_rows_are_kept_as_they_were_found(tmp_path):
    await make(tmp_path)
    async with embedded(tmp_path) as broker:
        await broker.create_queue(EntityPath("waiting"), QueueProperties(requires_session=True))
        await broker.send(EntityPath("waiting"), [Message(message_id="2", session_id="s")])
    with opened(tmp_path / "a.db") as connection:
        connection.execute("UPDATE queue SET updated = 7 WHERE key IN ('orders', 'news')")
        connection.execute("UPDATE rule SET rule = replace(rule, '= 1', '= 3')")
        connection.execute("UPDATE session SET state = x'77'")
        connection.execute("UPDATE store SET next_sequence = next_sequence + (1 << 62)")
    found = salvaged(tmp_path)
    with opened(tmp_path / "new" / "a.db") as connection:
        kept = connection.execute("SELECT origin, content FROM damaged").fetchall()
        [next_sequence] = connection.execute("SELECT next_sequence FROM store").fetchone()
    async with embedded(tmp_path / "new") as broker:
        left = await stored_ids(broker)
        rules = await broker.list_rules(NEWS, "reader")
        async with broker.open_session(EntityPath("waiting"), None) as session:
            with pytest.raises(StateDamaged):
                await session.get_state()
            [delivery] = await session.receive(1)

    assert found.remarks == (
        "the row of news was damaged: compare its properties (table damaged)",
        "the row of orders was damaged: compare its properties (table damaged)",
        "the rule some of the subscription 2 was damaged, and is gone (table damaged)",
        "the states of 1 sessions are damaged",
    )
    assert [origin for origin, _ in kept] == ["queue", "queue", "rule"]
    assert "'orders'" in kept[1][1]
    assert "a = 3" in kept[2][1]
    assert EPOCH < next_sequence < 2 * EPOCH
    assert (left, rules, delivery.message.message_id) == (["1"], [], "2")


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("key = NULL", "orders"),  # as if it had been deleted
        ("name = 'ordess'", "ordess"),
        ("name = 'news'", "salvaged-4"),  # another has that
        ("""properties = '{"max_delivery_count": "?"}'""", "orders"),
    ],
)
async def test_a_damaged_entity_has_its_messages_under_a_name(tmp_path, damage, name):
    await make(tmp_path)
    with opened(tmp_path / "a.db") as connection:
        connection.execute(f"UPDATE queue SET {damage} WHERE key = 'orders'")
    assert not inspect(tmp_path / "a.db", GOOD_DISK).good
    salvaged(tmp_path)
    async with embedded(tmp_path / "new") as broker:
        left = await stored_ids(broker, EntityPath(name))
        await broker.update_queue(EntityPath(name), QueueProperties(max_delivery_count=7))
    async with embedded(tmp_path / "new") as broker:
        info = await broker.inspect(EntityPath(name))

    assert left == ["1"]
    assert info.properties.max_delivery_count == 7


async def test_sessions_and_counts_of_deliveries_are_kept(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, [Message(message_id="1", session_id="s")])
        await broker.send(ORDERS, numbered(2))
        async with broker.open_receiver(ORDERS) as receiver:
            for delivery in await receiver.receive(2):
                await receiver.settle(delivery, Abandon())
    break_index(tmp_path / "a.db", "session")
    salvaged(tmp_path)
    with opened(tmp_path / "new" / "a.db") as connection:
        sessions = connection.execute("SELECT id, first FROM session").fetchall()
    async with embedded(tmp_path / "new") as broker, broker.open_receiver(ORDERS) as receiver:
        taken = await receiver.receive(2)
        for delivery in taken:
            await receiver.settle(delivery, Complete())

    assert sessions == [("s", 1)]
    assert {delivery.delivery_count for delivery in taken} == {2}


async def test_a_log_and_an_earlier_version_are_salvaged_too(tmp_path):
    send_and_die(tmp_path / "a.db", "1", "2")
    make_store_1(tmp_path / "old.db")
    new = salvage(tmp_path / "a.db", tmp_path / "new.db", 8, GOOD_DISK)
    old = salvage(tmp_path / "old.db", tmp_path / "new-old.db", 8, GOOD_DISK)

    assert (new.messages, old.messages) == (2, 3)
    assert old.remarks == ()  # tables that its version doesn't have are no loss


@pytest.mark.parametrize(
    "loss",
    [
        "UPDATE queue SET properties = '{' WHERE key = 'news'",
        "DELETE FROM queue WHERE key = 'news'",
    ],
)
async def test_a_subscription_that_lost_its_topic_is_a_queue(tmp_path, loss):
    news = EntityPath("news")
    async with embedded(tmp_path) as broker:
        await broker.create_topic(news, TopicProperties())
        await broker.create_subscription(news, "reader", SubscriptionProperties())
        await broker.send(news, numbered(1))
    with opened(tmp_path / "a.db") as connection:
        connection.execute(loss)
        seal(connection)
    found = salvaged(tmp_path)
    async with embedded(tmp_path / "new") as broker:
        [queue] = await broker.list_queues("salvaged-")

    assert (found.messages, queue.active) == (1, 1)
    assert any("lost its topic" in remark for remark in found.remarks)


async def test_a_file_that_is_no_store_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.db").write_bytes(b"\xff" * 8192)

    with pytest.raises(StoreError):
        salvage(tmp_path / "a.db", tmp_path / "new.db", 8, GOOD_DISK)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("new")]


async def test_a_message_whose_reason_is_no_text_any_more_is_put_aside(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered("whole", "flipped"))
    with opened(tmp_path / "a.db") as connection:
        connection.execute("UPDATE message SET reason = CAST(x'ff' AS TEXT) WHERE sequence = 2")
    found = salvaged(tmp_path)
    with opened(tmp_path / "new" / "a.db") as connection:
        aside = connection.execute("SELECT sequence, length(content) > 100 FROM quarantine").get

    assert (found.messages, found.quarantined, found.lost) == (1, 1, ())
    assert aside == (2, 1)
