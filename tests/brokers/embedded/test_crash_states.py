"""
Whatever a power cut or the end of the process leaves of a store, what it acknowledged is there, as
it was, and nothing that was settled is back. The negative controls show that a loss would be seen.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from gateway.testing.crash_disk import write_image
from gateway.testing.store_work import Work, open_committer, read_world, roomy
from tests.brokers.embedded.crash_states import (
    FILES,
    STORE,
    Life,
    crash_disk,
    examine,
    one_crash_state,
)

STATES = 20_000
STORES = 8


def begin(folder: Path, seed: int) -> Work:
    """An empty store, and work for it."""
    folder.mkdir()
    committer, store = open_committer(folder / STORE, roomy())
    store.forsake()
    return Work(committer, random.Random(seed))


def examine_lives(tmp_path: Path, seed: int) -> Counter[str]:
    """Each of the lives of a store but the first begins with what a power cut left."""
    folder, rng, verdicts = tmp_path / str(seed), random.Random(seed), Counter[str]()
    work = begin(folder, seed)
    with crash_disk(f"crash {seed}", folder) as disk:
        while verdicts.total() < STATES // STORES:
            recording = Life(folder=folder, disk=disk, work=work, rng=rng).record(8)
            most = STATES // STORES - verdicts.total()
            verdicts += examine(tmp_path / "looked at", recording, rng, 4, most)
            write_image(folder, one_crash_state(recording, rng), FILES)
            committer, store = open_committer(folder / STORE, roomy())
            work.go_on_with(committer, read_world(store))
            store.forsake()
    return verdicts


def examine_one_life(tmp_path: Path, *, lies: bool = False, **settings: str) -> Counter[str]:
    folder, rng = tmp_path / "store", random.Random(0)
    work = begin(folder, 0)
    with crash_disk("control", folder, lies=lies) as disk:
        life = Life(folder=folder, disk=disk, work=work, rng=rng, **settings)
        return examine(tmp_path / "looked at", life.record(8), rng, 4)


@pytest.fixture(autouse=True)
def _looked_at(tmp_path):
    (tmp_path / "looked at").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(STORES))
def test_no_crash_loses_what_was_acknowledged(tmp_path, seed):
    verdicts = examine_lives(tmp_path, seed)
    print(f"states: {verdicts.total()}")  # noqa: T201 a figure, for -rP

    assert verdicts.keys() == {"kept"}


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_setting_that_syncs_less_is_seen_to_lose(tmp_path, synchronous):
    verdicts = examine_one_life(tmp_path, synchronous=synchronous)

    assert verdicts["lost"] > 10
    assert verdicts["behind"] > 10


@pytest.mark.slow
def test_a_disk_that_lies_about_its_syncs_is_seen_to_lose_and_mostly_refused(tmp_path):
    verdicts = examine_one_life(tmp_path, lies=True)

    assert verdicts["lost"] > 10
    assert verdicts["behind"] + verdicts["unreadable"] > verdicts["lost"]
