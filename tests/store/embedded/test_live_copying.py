"""
Backups of a store that is open. Both run in this thread: the store works between the chunks that
the backup copies, so each run is the same.
"""

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import attrs
import pytest

from gateway.store.embedded.counters import DeliveryCounts
from gateway.store.embedded.files import StoreError, StoreInUse
from gateway.store.embedded.inspection import inspect
from gateway.store.embedded.live_copying import Throttle, back_up_live
from gateway.store.embedded.schema import EPOCH
from gateway.store.embedded.upkeep import Upkeep
from gateway.store.engine.journal import Journal
from tests.harness.store_work import Work, connection_of, open_committer, read_world, roomy
from tests.store.embedded.crashes import GOOD_DISK, content

pytestmark = pytest.mark.slow

CHUNK = 4096  # so that there is something between
CLOCK_TICK = 0.02  # seconds, more than that of the kernel's clock for files


@attrs.define(eq=False)
class Served:
    """A store in `folder` that works."""

    folder: Path
    seed: int = 0
    work: Work = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        committer, self.store = open_committer(self.folder / "a.db", roomy())
        self.work = Work(committer, random.Random(self.seed))

    store: object = attrs.field(init=False)

    def run(self, batches: int) -> None:
        for _ in range(batches):
            assert self.work.run_batch() == "done"

    def checkpoint(self) -> None:
        """As after a long log."""
        self.work.committer.tidy()

    def back_up(self, between: Callable[[float], None] = lambda _seconds: None) -> Path:
        """Make a backup; call `between` after each chunk."""
        target = self.folder / "copy" / "a.db"
        target.parent.mkdir(exist_ok=True)

        def sleep(seconds: float) -> None:
            between(seconds)
            if seconds >= 1.0:  # the disk's clock must go on
                time.sleep(CLOCK_TICK)

        throttle = Throttle(1e9, sleep=sleep, clock=lambda: 0.0)
        back_up_live(self.folder / "a.db", target, 8, GOOD_DISK, throttle, chunk=CHUNK)
        return target


@pytest.fixture
def served(tmp_path: Path) -> Served:
    served = Served(tmp_path)
    served.run(30)
    return served


def read(path: Path):
    committer, store = open_committer(path, roomy())
    world = read_world(store)
    committer.close()
    return world


@pytest.mark.parametrize("seed", range(6))
def test_a_backup_beside_a_gateway_that_leaves_no_log_is_one_moment_or_nothing(tmp_path, seed):
    served, rng = Served(tmp_path, seed), random.Random(seed)
    served.run(20)
    chunks, busy = 0, rng.randint(1, 300)

    def between(_seconds: float) -> None:
        nonlocal chunks
        chunks += 1
        if chunks <= busy and chunks % 5 == 0:
            served.run(1)
            connection_of(served.store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    began = len(served.work.worlds) - 1
    connection_of(served.store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    try:
        target = served.back_up(between)
    except StoreInUse:
        assert not list((served.folder / "copy").iterdir())
    else:
        assert read(target) in served.work.worlds[began:]


@pytest.mark.parametrize("seed", range(12))
def test_a_backup_beside_work_is_the_store_at_one_moment_since_its_beginning(tmp_path, seed):
    served, rng = Served(tmp_path, seed), random.Random(seed)
    served.run(rng.randint(1, 60))
    began = len(served.work.worlds) - 1

    def between(_seconds: float) -> None:
        # Otherwise the store would grow as fast as its copy.
        if len(served.work.worlds) < began + 80:
            served.run(rng.choice((0, 0, 1, 3)))
        if rng.random() < 0.2:
            served.checkpoint()

    target = served.back_up(between)

    assert inspect(target, GOOD_DISK).good
    assert read(target) in served.work.worlds[began:]
    assert len(served.work.worlds) > began + 1


def test_a_backup_of_an_idle_store_changes_nothing(served):
    before = content(served.folder)
    target = served.back_up()

    assert content(served.folder) == before
    assert [each.name for each in target.parent.iterdir()] == ["a.db"]
    assert target.stat().st_mode & 0o777 == 0o600
    assert read(target) == served.work.worlds[-1]


def test_a_store_without_a_log_is_copied(served):
    connection_of(served.store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    assert read(served.back_up()) == served.work.worlds[-1]


def test_numbers_of_the_store_do_not_come_twice_in_the_copy(served):
    committer, store = open_committer(served.back_up(), roomy())
    number = store.next_sequence()
    committer.close()

    assert number > EPOCH


def test_the_log_waits_for_a_backup_and_is_moved_afterwards(served):
    log = served.folder / "a.db-wal"
    headers: list[bytes] = []

    def between(_seconds: float) -> None:
        if len(headers) < 200:
            served.run(1)
        served.checkpoint()
        headers.append(log.read_bytes()[:32])

    served.back_up(between)
    # The log began again and again while the file was copied; the last attempt had one log.
    assert len(set(headers)) > 2
    assert served.work.committer.untidy
    store = served.folder / "a.db"
    before = store.read_bytes()
    served.checkpoint()
    assert store.read_bytes() != before
    assert not served.work.committer.untidy


def test_a_log_that_begins_again_and_again_is_given_up(served):
    chunks = 0

    def between(_seconds: float) -> None:
        nonlocal chunks
        chunks += 1
        if chunks % 10 == 0:
            served.run(1)
            connection_of(served.store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    with pytest.raises(StoreInUse, match="began again during each of 5 attempts"):
        served.back_up(between)
    assert list((served.folder / "copy").iterdir()) == []


def test_a_log_that_has_become_long_does_not_wait_for_a_backup(tmp_path):
    connection = apsw.Connection(str(tmp_path / "a.db"))
    connection.pragma("journal_mode", "wal")
    upkeep = Upkeep(connection, DeliveryCounts(0, Journal()), most_held=2)
    connection.execute("CREATE TABLE a (b)")
    assert upkeep.can_be_held
    connection.execute("INSERT INTO a VALUES (zeroblob(10000))")
    assert not upkeep.can_be_held
    connection.close()


def test_a_gateway_that_ends_meanwhile_leaves_a_whole_copy(served):
    chunks = 0

    def between(_seconds: float) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 3:
            served.run(5)
            served.work.committer.close()

    assert read(served.back_up(between)) == served.work.worlds[-1]


def test_a_gateway_that_starts_again_meanwhile_does_not_mix_two_logs(served):
    chunks = 0

    def between(_seconds: float) -> None:
        nonlocal chunks
        chunks += 1
        if chunks % 7 == 0 and chunks < 60:
            served.work.committer.close()
            committer, served.store = open_committer(served.folder / "a.db", roomy())
            served.work.go_on_with(committer, served.work.worlds[-1])
        served.run(1 if chunks < 60 else 0)

    began = len(served.work.worlds) - 1
    assert read(served.back_up(between)) in served.work.worlds[began:]


@pytest.mark.parametrize("name", ["a.db", "a.db.hwm", "a.db-wal"])
def test_a_live_backup_overwrites_nothing(served, name):
    (served.folder / "copy").mkdir()
    (served.folder / "copy" / name).write_text("precious")

    with pytest.raises(StoreError, match=re.escape(f"{name}: already there")):
        served.back_up()
    assert (served.folder / "copy" / name).read_text() == "precious"


def test_a_live_backup_needs_room_for_the_file_and_its_log(served):
    size = sum((served.folder / name).stat().st_size for name in ("a.db", "a.db-wal"))
    full = attrs.evolve(GOOD_DISK, free_bytes=lambda _path: size - 1)

    with pytest.raises(StoreError, match=f"{size} bytes needed, {size - 1} are free"):
        back_up_live(served.folder / "a.db", served.folder / "copy.db", 8, full, Throttle(1.0))


def test_a_copy_that_lacks_acknowledged_commits_is_none(served):
    mark = served.folder / "a.db.hwm"
    written = bytearray(mark.read_bytes())
    written[15] += 1
    mark.write_bytes(written)

    with pytest.raises(StoreError, match=r"the copy is incomplete: .* messages are missing"):
        served.back_up()
    assert list((served.folder / "copy").iterdir()) == []


def test_a_throttle_keeps_its_rate_over_short_delays():
    slept, now = [], [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(100.0, sleep=sleep, clock=lambda: now[0])
    for _ in range(4):
        throttle.wait(50)
        now[0] += 0.2  # for the copying
    assert now[0] == pytest.approx(2.2)
