"""
The sequence numbers of each entity of a store are given once: also after a crash, after the queue
was empty, and in a store whose earlier version has numbered all messages together.
"""

import random
import shutil
from pathlib import Path

import apsw
import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, DeadLetter, Defer, Message
from gateway.store.embedded.checksums import sealing, teach
from gateway.store.embedded.copying import back_up
from gateway.store.embedded.counters import CATCH_UP, Counters
from gateway.store.embedded.files import StoreDamaged
from gateway.store.embedded.inspection import inspect
from gateway.store.embedded.salvage import salvage
from gateway.store.embedded.schema import EPOCH
from gateway.store.embedded.tables import TABLES
from gateway.store.engine.journal import Journal
from gateway.store.engine.records import State
from tests.store.embedded.crashes import GOOD_DISK
from tests.store.embedded.migration import make_store_5
from tests.store.embedded.stores import ORDERS, embedded, numbered, opened

OTHER = EntityPath("other")
DAMAGED = {
    "UPDATE counter SET dead = 7 WHERE queue = 1": "counter of 'orders'",
    "UPDATE drawn SET counters = replace(counters, '4', '3') WHERE id = 1": "drawn numbers 1",
}


async def emptied(folder: Path, count: int) -> list[int]:
    """Send and complete that many messages in that store; return their numbers."""
    async with embedded(folder) as broker, broker.open_receiver(ORDERS) as receiver:
        await broker.send(ORDERS, numbered(*range(count)))
        taken = await receiver.receive(count)
        for each in taken:
            await receiver.settle(each, Complete())
    return [each.sequence_number for each in taken]


async def next_number(folder: Path, queue: EntityPath = ORDERS) -> int:
    async with embedded(folder) as broker:
        await broker.send(queue, [Message(message_id="next")])
        return (await broker.peek(queue, limit=99))[-1].sequence_number


async def test_a_restart_goes_on_though_the_queue_was_empty(tmp_path: Path) -> None:
    assert await emptied(tmp_path, 3) == [1, 2, 3]
    assert await emptied(tmp_path, 2) == [4, 5]


async def test_a_crash_goes_on_though_the_queue_was_empty(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    async with embedded(tmp_path / "living") as broker, broker.open_receiver(ORDERS) as receiver:
        await broker.send(ORDERS, numbered(1, 2, 3))
        for each in await receiver.receive(3):
            await receiver.settle(each, Complete())
        shutil.copytree(tmp_path / "living", crashed)

    assert await next_number(crashed) == 4


async def test_a_queue_that_is_created_again_begins_again_after_a_restart(tmp_path: Path) -> None:
    await emptied(tmp_path, 3)
    async with embedded(tmp_path) as broker:
        await broker.delete_queue(ORDERS)

    assert await next_number(tmp_path) == 1


async def test_a_queue_of_version_5_goes_on_above_all_numbers_of_its_store(tmp_path: Path) -> None:
    make_store_5(tmp_path / "a.db")  # with the messages 1 and 2, and the dead letter 3
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, [Message(message_id="new")])
        await broker.send(OTHER, [Message(message_id="new")])
        shown = await broker.peek(ORDERS, limit=9)
        from_2 = await broker.peek(ORDERS, from_sequence=2, limit=9)
        from_3 = await broker.peek(ORDERS, from_sequence=3, limit=9)
        [dead] = await broker.peek(ORDERS.dead_letter, from_sequence=3)
        [other] = await broker.peek(OTHER)

    assert [each.sequence_number for each in shown] == [1, 2, 4]
    assert [each.sequence_number for each in from_2] == [2, 4]
    assert [each.sequence_number for each in from_3] == [4]
    assert (dead.sequence_number, other.sequence_number) == (3, 1)
    assert inspect(tmp_path / "a.db", GOOD_DISK).good


async def test_messages_of_version_5_keep_their_numbers_when_they_are_settled(
    tmp_path: Path,
) -> None:
    make_store_5(tmp_path / "a.db")
    async with embedded(tmp_path) as broker, broker.open_receiver(ORDERS) as receiver:
        one, two = await receiver.receive(2)
        await receiver.settle(one, Defer(properties={"why": "later"}))
        await receiver.settle(two, DeadLetter(reason="bad", description=""))
    async with embedded(tmp_path) as broker, broker.open_receiver(ORDERS) as receiver:
        [deferred] = await receiver.receive_deferred([1])
        dead = await broker.peek(ORDERS.dead_letter, limit=9)

    assert (deferred.sequence_number, deferred.message.properties["why"]) == (1, "later")
    assert [each.sequence_number for each in dead] == [3, 4]
    assert [each.enqueued_sequence_number for each in dead] == [None, 2]


@pytest.mark.parametrize("statement", DAMAGED)
async def test_damaged_numbers_are_refused_and_a_salvage_counts_on(
    tmp_path: Path, statement: str
) -> None:
    await emptied(tmp_path, 3)
    with opened(tmp_path / "a.db") as connection:
        connection.execute(statement)
    with pytest.raises(StoreDamaged, match=DAMAGED[statement]):
        await next_number(tmp_path)
    [problem] = inspect(tmp_path / "a.db", GOOD_DISK).problems
    (tmp_path / "new").mkdir()
    salvage(tmp_path / "a.db", tmp_path / "new" / "a.db", 9, GOOD_DISK)

    assert "1 " in problem
    assert "row is damaged" in problem
    assert await next_number(tmp_path / "new") > EPOCH


async def test_numbers_that_would_be_given_twice_are_a_problem(tmp_path: Path) -> None:
    await next_number(tmp_path)
    with opened(tmp_path / "a.db") as connection:
        connection.execute("DELETE FROM drawn")

    [problem] = inspect(tmp_path / "a.db", GOOD_DISK).problems
    assert problem == "orders: there is a message 1, and 1 is next: numbers come twice"


def test_numbers_go_on_after_each_commit_and_are_kept_in_few_rows() -> None:
    rng, journal = random.Random(1), Journal()
    connection = apsw.Connection(":memory:")
    teach(connection)
    connection.execute(TABLES)
    counters = Counters(connection, journal)
    numbers = {queue: counters.begin(queue) for queue in range(1, 5001)}
    expected = dict.fromkeys(numbers, 1)
    rows, lately = list[int](), list[int]()
    for each in range(900):
        journal.forget()
        drawn = rng.sample(range(1, 5001), k=4)
        assert [numbers[queue].next(State.DEAD, 2) for queue in drawn] == [
            expected[queue] for queue in drawn
        ]
        if each % 5 == 0:
            journal.rewind()
            continue
        expected.update({queue: expected[queue] + 2 for queue in drawn})
        counters.save()
        counters.saved()
        opened_again = Counters(connection, Journal())
        opened_again.load()
        lately += drawn
        for queue in {*lately[-600::3]}:
            assert opened_again.of(queue).next(State.DEAD) == expected[queue]
        rows.append(connection.execute("SELECT count(*) FROM drawn").get)
    connection.execute(f"{CATCH_UP}; {sealing('counter')}")

    assert max(rows) < 2 * 256
    assert dict(connection.execute("SELECT queue, dead FROM counter")) == expected


async def test_a_copy_skips_numbers_of_each_entity(tmp_path: Path) -> None:
    await emptied(tmp_path, 3)
    (tmp_path / "copy").mkdir()
    back_up(tmp_path / "a.db", tmp_path / "copy" / "a.db", 9, GOOD_DISK)

    assert await next_number(tmp_path / "copy") == EPOCH + 4
    assert await next_number(tmp_path / "copy", OTHER) == 1
