import pytest

from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.store.embedded.files import Disk, StoreDamaged, StoreError, StoreInUse
from gateway.store.embedded.inspection import Inspection, inspect
from gateway.store.embedded.schema import EPOCH
from tests.store.embedded.crashes import break_index, content, send_and_die
from tests.store.embedded.migration import make_store_1
from tests.store.embedded.stores import ORDERS, embedded, numbered, opened, seal, stored_ids

IN_A_LONG_TIME = to_date(4 * 10**15)


def look(folder, **options) -> Inspection:
    return inspect(folder / "a.db", Disk(), **options)


async def test_a_good_store_is_counted_by_queue_and_state(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, [*numbered(1, 2), Message(scheduled=IN_A_LONG_TIME)])
        await broker.send(EntityPath("other"), numbered(1))
    found = look(tmp_path)
    counts = {(each.queue, each.state): each.messages for each in found.contents}

    assert found.good
    assert counts == {("orders", "active"): 2, ("orders", "scheduled"): 1, ("other", "active"): 1}
    assert sum(each.bytes for each in found.contents) > 300
    assert (found.problems, found.doubts, found.loss) == ((), (), "")
    assert found.commits == found.marked > 0


def test_a_look_reads_the_log_of_a_crash_and_leaves_it(tmp_path):
    send_and_die(tmp_path / "a.db", "1", "2")
    before = content(tmp_path)

    found = look(tmp_path)
    assert found.good
    assert found.log_bytes > 0
    assert found.contents[0].messages == 2
    assert content(tmp_path) == before


def test_a_look_makes_no_store(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        look(tmp_path)

    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_is_served_is_not_looked_at(tmp_path):
    async with embedded(tmp_path):
        with pytest.raises(StoreInUse):
            look(tmp_path)


async def test_a_look_leaves_no_lock_behind(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    assert look(tmp_path).good

    async with embedded(tmp_path) as broker:
        assert await stored_ids(broker) == ["1"]


def test_another_file_is_no_store(tmp_path):
    (tmp_path / "a.db").write_bytes(b"something else" * 1000)

    with pytest.raises(StoreDamaged, match="not a store"):
        look(tmp_path)


SPOILED = {
    "UPDATE message SET content = zeroblob(size) WHERE sequence = 2": "1 messages are damaged: 2",
    "UPDATE message SET state = 77 WHERE sequence = 1": "1 messages in a state 77",
    "UPDATE message SET queue = 99": "3 messages of queues that aren't there",
    "UPDATE store SET next_sequence = 3": "numbers come twice",
    "UPDATE queue SET properties = '{'": "properties of orders",
    "UPDATE queue SET kind = 'box'": "properties of orders",
    "INSERT INTO rule VALUES (1, 'a', '{}', x'', x'', 0)": "a rule of orders",
    "DELETE FROM store": "number of commits",
}


@pytest.mark.parametrize("statement", SPOILED)
async def test_a_fault_of_a_store_is_found(tmp_path, statement):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1, 2, 3))
    with opened(tmp_path / "a.db") as connection:
        connection.execute(statement)
        seal(connection)
    found = look(tmp_path)

    assert not found.good
    assert SPOILED[statement] in "\n".join(found.problems)


ODD = {
    "INSERT INTO delivered VALUES (77, 1)": "1 rows of the table delivered",
    "INSERT INTO seen VALUES (77, 'a', 1, 0)": "1 rows of the table seen",
    "INSERT INTO quarantine VALUES (1, 1, 0, x'')": "1 damaged messages were put aside",
}


@pytest.mark.parametrize("statement", ODD)
async def test_an_oddity_leaves_a_store_good(tmp_path, statement):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1, 2, 3))
    with opened(tmp_path / "a.db") as connection:
        connection.execute(statement)
    found = look(tmp_path)

    assert found.good
    assert ODD[statement] in "\n".join(found.doubts)


@pytest.mark.parametrize("broken", ["message_order", "message", "queue", "store"])
async def test_a_spoiled_page_is_found_wherever_it_is(tmp_path, broken):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(*range(100)))
    break_index(tmp_path / "a.db", broken)

    found = look(tmp_path)
    assert not found.good
    assert any("btreeInitPage" in problem for problem in found.problems)


async def test_messages_of_a_deleted_queue_are_no_problem(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    with opened(tmp_path / "a.db") as connection:
        connection.execute("UPDATE queue SET key = NULL")
        seal(connection)
    found = look(tmp_path)

    assert found.good
    assert [(each.queue, each.messages) for each in found.contents] == [(None, 1)]


async def test_a_loss_is_accepted_by_the_operator_alone(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
        mark = (tmp_path / "a.db.hwm").read_bytes()
    (tmp_path / "a.db.hwm").write_bytes(mark[:8] + b"\0" * 7 + b"\x63")

    found = look(tmp_path)
    assert not found.good
    assert "says 99 commits" in found.loss
    assert look(tmp_path).loss == found.loss

    accepted = look(tmp_path, accept_loss=True)
    assert accepted.good
    assert accepted.accepted
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(2))
        [old, new] = await broker.peek(ORDERS, limit=2)
    assert (old.message.message_id, new.message.message_id) == ("1", "2")
    assert new.sequence_number > EPOCH


async def test_a_loss_in_a_store_that_is_damaged_is_not_accepted(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    (tmp_path / "a.db.hwm").write_bytes(b"\1" * 16)
    break_index(tmp_path / "a.db", "message_order")
    before = content(tmp_path)

    found = look(tmp_path, accept_loss=True)
    assert not found.good
    assert not found.accepted
    assert content(tmp_path) == before


def test_accepting_changes_nothing_where_nothing_is_lost(tmp_path):
    send_and_die(tmp_path / "a.db", "1")
    before = content(tmp_path)

    assert look(tmp_path, accept_loss=True).good
    assert content(tmp_path) == before


def test_a_store_of_an_earlier_version_stays_so(tmp_path):
    make_store_1(tmp_path / "a.db")
    before = content(tmp_path)

    found = look(tmp_path)
    assert found.good
    assert found.version == 1
    assert any("earlier version" in doubt for doubt in found.doubts)
    assert content(tmp_path) == before
