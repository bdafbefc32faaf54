"""
A store has all acknowledged messages after any power cut and any end of its process. Acknowledged
messages are there, unchanged, and no settled message is back. The negative controls show that a
loss would be seen.
"""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.crash_disk import (
    Ailment,
    CrashDisk,
    Image,
    Replay,
    Synced,
    read_image,
    write_image,
)
from tests.harness.store_work import Work, World, open_committer, read_world, roomy
from tests.store.embedded.crash_states import FILES, STORE, Life, crash_disk, examine, one_crash

STATES = int(os.environ.get("CRASH_STATES", "10000"))  # `make test-long` examines more
STORES = 8


def begin(folder: Path, seed: int) -> Work:
    """An empty store, and work for it."""
    folder.mkdir()
    committer, store = open_committer(folder / STORE, roomy())
    store.forsake()
    return Work(committer, random.Random(seed))


def examine_lives(place: Path, seed: int) -> Counter[str]:
    """Examine the lives of a store, each of which begins with the state that a crash left."""
    folder, rng, verdicts = place / str(seed), random.Random(seed), Counter[str]()
    work, crash = begin(folder, seed), None
    with crash_disk(f"crash {seed}", folder) as disk:
        while verdicts.total() < STATES // STORES:
            recording = Life(folder=folder, disk=disk, work=work, rng=rng).record(8, crash)
            most = STATES // STORES - verdicts.total()
            verdicts += examine(place / "looked at", recording, rng, 4, most)
            crash = one_crash(recording, rng)
            work.worlds.append(world_in(place / "looked at", crash.image))
            write_image(folder, crash.image, FILES)
    return verdicts


def fail_a_commit(work: Work, disk: CrashDisk, folder: Path) -> None:
    """
    The last commit of a life is written, and its sync fails: the same is left by a process that is
    killed right before it.
    """
    committer, store = open_committer(folder / STORE, roomy(disk.name))
    work.go_on_with(committer, read_world(store))
    for _ in range(3):
        assert work.run_batch() == "done"
    disk.ailment = Ailment.SYNC
    assert work.run_batch() == "unknown"
    disk.ailment = None
    store.forsake()


def world_in(folder: Path, image: Image) -> World:
    write_image(folder, image, FILES)
    _, store = open_committer(folder / STORE, roomy())
    world = read_world(store)
    store.forsake()
    return world


def examine_one_life(place: Path, *, lies: bool = False, **settings: str) -> Counter[str]:
    folder, rng = place / "store", random.Random(0)
    work = begin(folder, 0)
    with crash_disk("control", folder, lies=lies) as disk:
        life = Life(folder=folder, disk=disk, work=work, rng=rng, **settings)
        return examine(place / "looked at", life.record(8), rng, 4)


@pytest.fixture(autouse=True)
def _looked_at(folder):
    (folder / "looked at").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(STORES))
def test_no_crash_loses_what_was_acknowledged(folder, seed):
    verdicts = examine_lives(folder, seed)
    print(f"states: {verdicts.total()}")  # noqa: T201 a figure, for -rP

    assert verdicts.keys() == {"kept"}


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_setting_that_syncs_less_is_seen_to_lose(folder, synchronous):
    verdicts = examine_one_life(folder, synchronous=synchronous)

    assert verdicts["lost"] > 10
    assert verdicts["behind"] > 10


@pytest.mark.slow
def test_a_disk_that_lies_about_its_syncs_is_seen_to_lose_and_mostly_refused(folder):
    verdicts = examine_one_life(folder, lies=True)

    assert verdicts["lost"] > 10
    assert verdicts["behind"] + verdicts["unreadable"] > verdicts["lost"]


def test_a_row_that_a_killed_process_never_synced_is_on_the_disk_before_it_is_shown(folder):
    home = folder / "store"
    work = begin(home, 0)
    with crash_disk("killed", home) as disk:
        replay = Replay.of(read_image(home, FILES))
        disk.restart()
        fail_a_commit(work, disk, home)
        _, store = open_committer(home / STORE, roomy(disk.name))
        shown = read_world(store)
        store.forsake()
        for change in disk.restart():
            replay.go_on(change)

    assert shown != work.worlds[-1]
    for seed in range(20):
        image = replay.after_power_cut(random.Random(seed))
        assert world_in(folder / "looked at", image) == shown


def test_a_row_that_follows_a_failed_sync_is_kept_though_the_log_before_it_never_was(folder):
    """Linux says of a failed write that it's done the next time, and a later sync succeeds."""
    home = folder / "store"
    work = begin(home, 0)
    with crash_disk("failed", home) as disk:
        replay = Replay.of(read_image(home, FILES))
        disk.restart()
        fail_a_commit(work, disk, home)
        log = list(disk.restart())
        while not isinstance(log[-1], Synced):
            log.pop()
        committer, store = open_committer(home / STORE, roomy(disk.name))
        work.go_on_with(committer, read_world(store))
        assert work.run_batch() == "done"
        store.forsake()
        for change in (*log, *disk.restart()):
            replay.go_on(change)

    assert world_in(folder / "looked at", replay.after_kill()) == work.worlds[-1]


def test_a_store_that_was_left_on_a_full_disk_is_opened(folder):
    home = folder / "store"
    work = begin(home, 0)
    with crash_disk("full", home) as disk:
        fail_a_commit(work, disk, home)
        disk.ailment = Ailment.FULL
        _, store = open_committer(home / STORE, roomy(disk.name))
        found = read_world(store)
        store.forsake()

    assert disk.strokes == 2  # the sync and a write
    assert found != work.worlds[-1]
