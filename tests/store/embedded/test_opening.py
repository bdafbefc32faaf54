"""A store is refused where it isn't as it was left, and then nothing of it is changed."""

import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from gateway.domain.events.gateway import Doubtful
from gateway.store.embedded import opening, schema
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.embedded.copying import back_up
from gateway.store.embedded.files import Disk, StoreDamaged, StoreError
from gateway.store.embedded.opening import OpenStore, open_store
from gateway.store.local.hooks import LocalHooks
from tests.harness.links import give_link, needs_root
from tests.store.embedded.crashes import GOOD_DISK, break_index, content, send_and_die
from tests.store.embedded.stores import ORDERS, Events, embedded, numbered, real_date, stored_ids


def open_and_close(path: Path, disk: Disk = GOOD_DISK, **limits: int) -> OpenStore:
    found = open_store(path, lambda: 7, disk, **limits)
    found.connection.close()
    found.mark.close()
    found.lock.release()
    return found


def test_a_good_store_on_a_good_disk_raises_no_doubt(tmp_path):
    first = open_and_close(tmp_path / "a.db")
    second = open_and_close(tmp_path / "a.db")

    assert (first.doubts, second.doubts) == ((), ())
    assert second.next_sequence == first.next_sequence


async def test_doubts_about_the_place_are_events(tmp_path):
    events = Events()
    disk = Disk(file_system=lambda _path: "tmpfs")
    path = tmp_path / "a.db"
    hooks = LocalHooks(observer=events)
    async with EmbeddedBroker(path, real_date, random.Random(0), hooks=hooks, disk=disk):
        [event] = events.seen

    assert isinstance(event, Doubtful)
    assert "a.db is on tmpfs" in event.text


@pytest.mark.parametrize("is_relative", [False, True])
def test_the_own_link_to_a_folder_on_another_disk_is_followed(tmp_path, is_relative):
    (tmp_path / "disk" / "var").mkdir(parents=True)
    (tmp_path / "var").symlink_to("disk/var" if is_relative else tmp_path / "disk" / "var")

    first = open_and_close(tmp_path / "var" / "deep" / "a.db")

    assert first.doubts == ()
    assert (tmp_path / "disk" / "var" / "deep" / "a.db").exists()


@needs_root
@pytest.mark.parametrize("way", ["var/a.db", "var/deep/a.db", "own/a.db"])
def test_a_link_of_another_user_is_not_followed(tmp_path, way):
    (tmp_path / "disk").mkdir()
    give_link(tmp_path / "var", "disk")
    (tmp_path / "own").symlink_to(tmp_path / "var")

    with pytest.raises(StoreError, match=r"/var: this symbolic link belongs to .* \(12345\)"):
        open_and_close(tmp_path / way)

    assert not any((tmp_path / "disk").iterdir())


@needs_root
def test_a_folder_of_another_user_is_doubtful(tmp_path):
    os.chown(tmp_path, 12345, -1)

    (doubt,) = open_and_close(tmp_path / "a.db").doubts

    assert "belongs to another user (12345)" in doubt


def test_a_folder_that_every_user_can_change_is_doubtful(tmp_path):
    tmp_path.chmod(0o1777)

    (doubt,) = open_and_close(tmp_path / "a.db").doubts

    assert "every user of this machine can change this folder (mode 1777)" in doubt


@pytest.mark.parametrize("name", ["a.db.lock", "a.db.hwm"])
def test_a_link_in_place_of_a_file_beside_the_store_is_not_followed(tmp_path, name):
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / name).symlink_to(target)

    with pytest.raises(StoreError, match=name):
        open_and_close(tmp_path / "a.db")

    assert target.read_bytes() == b"precious"


def test_a_store_on_a_network_file_system_is_not_even_made(tmp_path):
    with pytest.raises(StoreError, match="network"):
        open_and_close(tmp_path / "a.db", Disk(file_system=lambda _path: "nfs4"))

    assert not (tmp_path / "a.db").exists()


async def test_the_log_of_another_store_is_refused_and_nothing_is_mixed(tmp_path):
    send_and_die(tmp_path / "a.db", "1")
    back_up(tmp_path / "a.db", tmp_path / "copy.db", 8, GOOD_DISK)
    send_and_die(tmp_path / "a.db", "2", "3")
    shutil.copy(tmp_path / "copy.db", tmp_path / "a.db")
    before = content(tmp_path)

    with pytest.raises(StoreDamaged, match=r"a\.db-wal is the log of another store"):
        open_and_close(tmp_path / "a.db")
    assert content(tmp_path) == before

    for ending in ("-wal", ".hwm"):
        (tmp_path / f"a.db{ending}").unlink()
    async with embedded(tmp_path) as broker:
        assert await stored_ids(broker) == ["1"]


def test_a_log_that_was_removed_is_a_loss(tmp_path):
    send_and_die(tmp_path / "a.db", "1")
    (tmp_path / "a.db-wal").unlink()
    before = content(tmp_path)

    with pytest.raises(StoreDamaged, match="acknowledged messages are missing"):
        open_and_close(tmp_path / "a.db")
    assert content(tmp_path) == before


def test_a_refused_store_keeps_its_log(tmp_path):
    send_and_die(tmp_path / "a.db", "1", "2")
    (tmp_path / "a.db.hwm").write_bytes(b"\0" * 7 + b"\1" + b"\0" * 8)
    before = content(tmp_path)

    with pytest.raises(StoreDamaged, match="belongs to another store"):
        open_and_close(tmp_path / "a.db")
    assert content(tmp_path) == before


async def test_a_missing_mark_is_doubtful(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    (tmp_path / "a.db.hwm").unlink()

    [doubt] = open_and_close(tmp_path / "a.db").doubts
    assert "a.db.hwm is missing" in doubt


async def damage(folder: Path) -> None:
    """Break a page of an index."""
    async with embedded(folder) as broker:
        await broker.send(ORDERS, numbered(1, 2))
    break_index(folder / "a.db", "message_order")


async def test_damage_is_found_when_a_store_is_opened(tmp_path):
    await damage(tmp_path)

    with pytest.raises(StoreDamaged, match=r"damaged.*store check"):
        open_and_close(tmp_path / "a.db")


async def test_a_large_store_is_checked_only_after_an_unclean_end(tmp_path, monkeypatch):
    await damage(tmp_path)
    (tmp_path / "a.db.hwm").unlink()
    clean = open_and_close(tmp_path / "a.db", checked=0)
    monkeypatch.setattr(opening, "has_log", lambda _path: True)
    with pytest.raises(StoreDamaged, match="damaged"):
        open_and_close(tmp_path / "a.db", checked=0)
    huge = open_and_close(tmp_path / "a.db", checked=0, checked_if_unclean=0)

    assert not any("unclean end" in doubt for doubt in clean.doubts)
    assert any("unclean end" in doubt for doubt in huge.doubts)


def test_a_refusal_by_a_folder_is_said_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"/file: .*(exists|directory)"):
        open_and_close(tmp_path / "file" / "a.db")

    (tmp_path / "a.db").mkdir()
    with pytest.raises(StoreError, match=r"/a.db: Is a directory"):
        open_and_close(tmp_path / "a.db")


def test_a_store_without_the_right_to_write_is_refused_in_words(tmp_path, monkeypatch):
    open_and_close(tmp_path / "a.db")

    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    # Tests may run as root, whom no permission keeps out.
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"/a.db.lock: Permission denied"):
        open_and_close(tmp_path / "a.db")


def test_no_file_is_shared_with_other_processes(tmp_path):
    send_and_die(tmp_path / "a.db", "1")
    found = open_store(tmp_path / "a.db", lambda: 7, GOOD_DISK)
    names = {path.name for path in tmp_path.iterdir()}
    found.connection.close()
    found.mark.close()
    found.lock.release()

    assert names == {"a.db", "a.db-wal", "a.db.hwm", "a.db.lock"}


def test_a_store_whose_log_is_left_alone_is_not_begun_anew(tmp_path):
    send_and_die(tmp_path / "a.db", "1")
    for name in ("a.db", "a.db.hwm"):
        (tmp_path / name).unlink()

    with pytest.raises(StoreDamaged, match=r"a\.db is gone"):
        open_and_close(tmp_path / "a.db")


def test_reading_a_store_changes_nothing(tmp_path):
    send_and_die(tmp_path / "a.db", "1", "2")
    before = content(tmp_path)
    with schema.reading(tmp_path / "a.db") as connection:
        count = connection.execute("SELECT count(*) FROM message").get

    assert count == 2
    assert content(tmp_path) == before


async def test_a_store_without_a_thread_is_refused_in_words(tmp_path, monkeypatch):
    def no_thread(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)

    with pytest.raises(StoreError, match="can't start new thread"):
        async with embedded(tmp_path):
            pytest.fail("it serves")
