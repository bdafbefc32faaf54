"""
A program that works on a store and says "acked <n>" after each batch, until it's stopped or the
disk fails: "<folder> <synchronous> <batches>".
"""

import os
import random
import sys
from pathlib import Path

from tests.harness.store_work import Work, World, connection_of, open_committer, roomy
from tests.store.embedded.crash_states import STORE

SEED = 11


def worlds_of(folder: Path, batches: int) -> list[World]:
    """Return the content of the store after each batch, recorded on a healthy disk."""
    committer, store = open_committer(folder / STORE, roomy())
    connection_of(store).execute("PRAGMA synchronous = OFF")
    work = Work(committer, random.Random(SEED))
    for _ in range(batches):
        assert work.run_batch() == "done"
    store.forsake()
    return work.worlds


def main(folder: Path, synchronous: str, batches: int) -> None:
    committer, store = open_committer(folder / STORE, roomy())
    connection_of(store).execute(f"PRAGMA synchronous = {synchronous}")
    work = Work(committer, random.Random(SEED))
    for number in range(1, batches + 1):
        if work.run_batch() != "done":
            raise SystemExit(committer.failed)
        os.write(1, f"acked {number}\n".encode())
        if number % 10 == 0:
            committer.tidy()
    committer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
