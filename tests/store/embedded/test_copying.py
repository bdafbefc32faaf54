import re
import shutil

import pytest
from attrs import evolve

from gateway.domain.message import ReceiveMode
from gateway.store.embedded import copying
from gateway.store.embedded.copying import back_up, compact
from gateway.store.embedded.files import Disk, StoreError, StoreInUse
from gateway.store.embedded.schema import EPOCH
from tests.store.embedded.crashes import GOOD_DISK, break_index, content, send_and_die
from tests.store.embedded.stores import ORDERS, embedded, numbered, opened, stored_ids


def settings(path):
    names = ("application_id", "user_version", "auto_vacuum", "page_size")
    with opened(path) as connection:
        return {name: connection.pragma(name) for name in names}


async def test_a_backup_of_a_crashed_store_has_what_was_acknowledged(tmp_path):
    send_and_die(tmp_path / "a.db", "1", "2")
    before = content(tmp_path)
    target = tmp_path / "copy" / "a.db"
    target.parent.mkdir()
    copy = back_up(tmp_path / "a.db", target, 8, GOOD_DISK)

    assert copy.messages == 2
    assert content(tmp_path) == before
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(target.parent.iterdir()) == [target]
    assert settings(target) == settings(tmp_path / "a.db")


async def test_a_backup_is_a_store_of_its_own_and_numbers_do_not_come_twice(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered("after the backup"))
    (tmp_path / "restored").mkdir()
    shutil.copy(tmp_path / "copy.db", tmp_path / "restored" / "a.db")
    async with embedded(tmp_path / "restored") as broker:
        await broker.send(ORDERS, numbered("new"))
        [old, new] = await broker.peek(ORDERS, limit=9)

    assert (old.message.message_id, new.message.message_id) == ("1", "new")
    assert new.sequence_number > EPOCH


@pytest.mark.parametrize("name", ["copy.db", "copy.db.hwm", "copy.db-wal"])
async def test_a_backup_overwrites_nothing(tmp_path, name):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    (tmp_path / name).write_text("precious")

    with pytest.raises(StoreError, match=re.escape(f"{name}: already there")):
        back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    assert (tmp_path / name).read_text() == "precious"


async def test_no_copy_is_made_where_it_has_no_room(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    full = evolve(GOOD_DISK, free_bytes=lambda _path: 1000)
    before = content(tmp_path)

    with pytest.raises(StoreError, match="bytes needed, 1000 are free"):
        back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, full)
    with pytest.raises(StoreError, match="bytes needed, 1000 are free"):
        compact(tmp_path / "a.db", full)
    assert content(tmp_path) == before


@pytest.mark.parametrize("broken", ["message_order", "message"])
async def test_a_damaged_store_is_not_copied(tmp_path, broken):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(*range(50)))
    break_index(tmp_path / "a.db", broken)
    before = content(tmp_path)

    with pytest.raises(StoreError):
        back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    with pytest.raises(StoreError):
        compact(tmp_path / "a.db", GOOD_DISK)
    assert content(tmp_path) == before


async def test_a_copy_that_misses_something_is_thrown_away(tmp_path, monkeypatch):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    give_new_name = copying.give_new_name

    def lose_a_message(draft, new_id):
        give_new_name(draft, new_id)
        with opened(draft) as connection:
            connection.execute("DELETE FROM message")

    monkeypatch.setattr(copying, "give_new_name", lose_a_message)

    with pytest.raises(StoreError, match="the copy is incomplete"):
        back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("copy")]


async def test_a_store_that_is_served_is_not_copied(tmp_path):
    async with embedded(tmp_path):
        with pytest.raises(StoreInUse):
            back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, Disk())
        with pytest.raises(StoreInUse):
            compact(tmp_path / "a.db", Disk())


def test_no_store_is_made_by_copying_it(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    with pytest.raises(StoreError, match="there is no store"):
        compact(tmp_path / "a.db", GOOD_DISK)

    assert list(tmp_path.iterdir()) == []


async def test_compacting_gives_free_pages_back_and_keeps_the_rest(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(*range(1000)))
        async with broker.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            for _ in range(10):
                await receiver.receive(99)
    before = settings(tmp_path / "a.db")
    copy = compact(tmp_path / "a.db", GOOD_DISK)
    async with embedded(tmp_path) as broker:
        left = await stored_ids(broker)

    assert copy.bytes_after < copy.bytes_before / 2
    assert copy.messages == len(left) == 10
    assert left == [str(number) for number in range(990, 1000)]
    assert settings(tmp_path / "a.db") == before
    assert {path.name for path in tmp_path.iterdir()} == {"a.db", "a.db.hwm", "a.db.lock"}


async def test_compacting_takes_over_what_the_log_of_a_crash_holds(tmp_path):
    send_and_die(tmp_path / "a.db", "1", "2")
    copy = compact(tmp_path / "a.db", GOOD_DISK)
    async with embedded(tmp_path) as broker:
        left = await stored_ids(broker)

    assert copy.messages == 2
    assert left == ["1", "2"]
