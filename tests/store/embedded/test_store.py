"""A store is idle, or has little room left on its disk."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from gateway.domain.clocks.times import Now
from gateway.domain.errors import StorageFull
from gateway.domain.message import Message, ReceiveMode
from gateway.store.embedded.files import Disk
from gateway.store.embedded.schema import WAL_CAP
from gateway.store.embedded.store import CRITICAL, LOW_WATER, Store
from tests.harness.patience import PATIENCE
from tests.harness.store_work import connection_of
from tests.store.embedded.stores import ORDERS, embedded, numbered, opened, stored_ids

MIB = 1024 * 1024


@attrs.define
class FreeSpace:
    """A disk with as many free bytes as a test says."""

    free: int = 10**12

    def disk(self) -> Disk:
        return Disk(free_bytes=lambda _path: self.free)


@pytest.fixture
def space() -> FreeSpace:
    return FreeSpace()


@pytest.fixture
def store(tmp_path: Path, space: FreeSpace) -> Iterator[Store]:
    store = Store.open(tmp_path / "a.db", lambda: 7, space.disk())
    yield store
    store.close()


def write(store: Store, size: int, monotonic: float = 1.0) -> None:
    store.begin(Now(0, monotonic))
    row = (store.next_sequence(), size)
    connection_of(store).execute("INSERT INTO quarantine VALUES (?, 1, 0, zeroblob(?))", row)
    store.commit()


def delete_all(store: Store) -> None:
    store.begin(Now(0, 1.0))
    connection_of(store).execute("DELETE FROM quarantine")
    store.commit()
    store.checkpoint()


def log_bytes(folder: Path) -> int:
    return (folder / "a.db-wal").stat().st_size


def test_a_log_moves_into_the_store_when_it_is_long(tmp_path, store):
    write(store, 2 * MIB)
    early = store.wants_checkpoint
    write(store, 3 * MIB)
    late = store.wants_checkpoint
    store.checkpoint()

    assert (early, late, store.wants_checkpoint) == (False, True, False)
    assert (tmp_path / "a.db").stat().st_size > 5 * MIB
    assert log_bytes(tmp_path) > 5 * MIB  # to be written over: a file that grows syncs slowly

    write(store, MIB)
    assert log_bytes(tmp_path) < 6 * MIB


def test_a_log_beyond_its_cap_gives_back_its_room(tmp_path, store):
    write(store, WAL_CAP + MIB)
    store.checkpoint()

    assert log_bytes(tmp_path) == 0


def test_below_low_water_nothing_is_taken_in_and_the_log_is_as_long_as_ever(store, space):
    space.free = LOW_WATER - 1
    write(store, 1000)

    with pytest.raises(StorageFull):
        store.check_room()
    assert not store.wants_checkpoint


def test_at_the_critical_level_every_batch_ends_without_a_log(tmp_path, store, space):
    space.free = CRITICAL - 1
    write(store, 1000)

    assert store.wants_checkpoint
    store.checkpoint()
    assert log_bytes(tmp_path) == 0
    assert not store.wants_checkpoint


def test_a_disk_that_has_room_again_is_noticed(store, space):
    space.free = CRITICAL - 1
    write(store, 1000, monotonic=1.0)
    space.free = LOW_WATER
    write(store, 1000, monotonic=2.0)
    store.check_room()
    store.checkpoint()
    write(store, 1000, monotonic=2.1)

    assert not store.wants_checkpoint


def test_a_drained_store_shrinks_in_slices(tmp_path, store):
    for _ in range(10):
        write(store, 4 * MIB)
    delete_all(store)
    before = (tmp_path / "a.db").stat().st_size
    sizes = [before]
    while store.tidy():
        store.checkpoint()
        sizes.append((tmp_path / "a.db").stat().st_size)

    assert before > 40 * MIB
    assert sizes[-1] < 5 * MIB
    steps = [larger - smaller for larger, smaller in itertools.pairwise(sizes)]
    assert all(0 < step <= 5 * MIB for step in steps)
    assert connection_of(store).pragma("integrity_check") == "ok"


def test_a_few_free_pages_stay_for_the_messages_to_come(tmp_path, store):
    write(store, 3 * MIB)
    delete_all(store)
    before = (tmp_path / "a.db").stat().st_size

    assert not store.tidy()
    assert (tmp_path / "a.db").stat().st_size == before


async def test_a_drained_namespace_gives_back_its_room_while_it_is_open(tmp_path):
    messages = [Message(body=b"x" * 250_000) for _ in range(60)]
    async with embedded(tmp_path) as broker:
        for message in messages:
            await broker.send(ORDERS, [message])
        async with broker.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            for _ in messages:
                await receiver.receive(1)
        with trio.fail_after(PATIENCE):
            while True:
                if (tmp_path / "a.db").stat().st_size < 6 * MIB:
                    break
                await trio.sleep(0.05)  # the thread of the store has its own time
        await broker.send(ORDERS, numbered("next"))
        left = await stored_ids(broker)
    with opened(tmp_path / "a.db") as connection:
        good = connection.pragma("integrity_check")

    assert left == ["next"]
    assert good == "ok"
