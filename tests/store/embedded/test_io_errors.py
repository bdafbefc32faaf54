"""
If any call to the disk fails, all acknowledged messages are there; after a commit with an unknown
outcome nothing more is acknowledged.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import attrs
import pytest

from gateway.store.embedded.files import StoreError
from tests.harness.crash_disk import Image, read_image, write_image
from tests.harness.store_work import Work, World, connection_of, open_committer, read_world, roomy
from tests.store.embedded.crash_states import FILES, STORE

BATCHES = 4


@attrs.define
class Ailment:
    """The n-th call of a kind fails: once, or from then on."""

    kind: str
    number: int
    error: type[apsw.Error] = apsw.IOError
    short: bool = False  # half of it is done
    lasting: bool = False
    calls: Counter[str] = attrs.field(factory=Counter)
    struck: bool = False

    def strikes(self, kind: str) -> bool:
        self.calls[kind] += 1
        strikes = kind == self.kind and (
            self.calls[kind] == self.number or (self.lasting and self.calls[kind] > self.number)
        )
        self.struck = self.struck or strikes
        return strikes


class AilingFile(apsw.VFSFile):
    def __init__(self, ailment: Ailment, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.ailment = ailment

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self.ailment.strikes("read"):
            raise self.ailment.error("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        strikes = self.ailment.strikes("write")
        if self.ailment.short or not strikes:
            super().xWrite(data[: len(data) // 2] if strikes else data, offset)
        if strikes:
            raise self.ailment.error("write")

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self.ailment.strikes("sync"):
            raise self.ailment.error("sync")

    def xTruncate(self, size: int) -> None:  # noqa: N802
        if self.ailment.strikes("truncate"):
            raise self.ailment.error("truncate")
        super().xTruncate(size)


class AilingDisk(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("ailing", "")
        self.ailment = Ailment("", 0)

    def xOpen(self, name: Any, flags: list[int]) -> AilingFile:  # noqa: N802
        return AilingFile(self.ailment, name, flags)


@pytest.fixture
def disk() -> Iterator[AilingDisk]:
    disk = AilingDisk()
    yield disk
    disk.unregister()


@attrs.frozen
class Start:
    """A store in use, killed: with a log, and messages in its tables. What work makes of it."""

    image: Image
    worlds: Sequence[World]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder = tmp_path_factory.mktemp("start")
    committer, store = open_committer(folder / STORE, roomy())
    work = Work(committer, random.Random(1))
    for number in range(8):
        assert work.run_batch() == "done"
        if number == 5:
            committer.tidy()
    store.forsake()
    image = read_image(folder, FILES)
    committer, store = open_committer(folder / STORE, roomy())
    work = Work(committer, random.Random(2), [work.worlds[-1]])
    assert [work.run_batch() for _ in range(BATCHES)] == ["done"] * BATCHES
    store.forsake()
    return Start(image, work.worlds)


@attrs.frozen
class Life:
    """The outcomes of the batches, and the contents that the store may have afterwards."""

    outcomes: Sequence[str]
    allowed: Sequence[World]


def live(folder: Path, disk: AilingDisk, ailment: Ailment, start: Start) -> Life:
    """Work as the writer's thread does, until the store fails or is closed."""
    disk.ailment = ailment
    write_image(folder, start.image, FILES)
    try:
        committer, _store = open_committer(folder / STORE, roomy("ailing"))
    except StoreError:
        return Life(["not opened"], start.worlds[:1])
    work = Work(committer, random.Random(2), list(start.worlds[:1]))
    outcomes: list[str] = []
    while len(outcomes) < BATCHES and not committer.failed:
        outcomes.append(work.run_batch())
        if len(outcomes) == 2 and not committer.failed:
            committer.tidy()
    done = len(work.worlds)
    if outcomes[-1] == "unknown":
        assert outcomes[:-1] == ["done"] * (done - 1)
        allowed = start.worlds[done - 1 : done + 1]
    else:
        allowed = work.worlds[-1:]
    if committer.failed:
        assert work.run_batch() == "refused"
    committer.close()
    return Life(outcomes, allowed)


def survivors(folder: Path) -> World:
    _committer, store = open_committer(folder / STORE, roomy())
    try:
        assert connection_of(store).pragma("integrity_check") == "ok"
        return read_world(store)
    finally:
        store.forsake()


CASES = {
    "a read": {"kind": "read"},
    "a write": {"kind": "write"},
    "a write, and all after it": {"kind": "write", "lasting": True},
    "a write without room": {"kind": "write", "error": apsw.FullError},
    "a short write without room": {"kind": "write", "short": True, "error": apsw.FullError},
    "a sync": {"kind": "sync"},
    "a sync, and all after it": {"kind": "sync", "lasting": True},
    "a truncation": {"kind": "truncate"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_failing_call_loses_nothing(folder, disk, start, case):
    ailment = Ailment(number=0, **CASES[case])
    outcomes: Counter[str] = Counter()
    wrong: list[int] = []
    while ailment.struck or ailment.number == 0:
        ailment = attrs.evolve(ailment, number=ailment.number + 1, calls=Counter(), struck=False)
        life = live(folder, disk, ailment, start)
        outcomes.update(life.outcomes)
        if survivors(folder) not in life.allowed:
            wrong.append(ailment.number)
    print(f"errors: {ailment.number - 1}")  # noqa: T201 a figure, for -rP
    print(f"outcomes: {dict(outcomes)}")  # noqa: T201 a figure, for -rP

    assert wrong == []
    assert ailment.number > 1


@pytest.mark.parametrize("number", [1, 2], ids=["of the log", "of the store"])
def test_a_store_that_cant_sync_what_it_finds_isnt_opened(folder, disk, start, number):
    life = live(folder, disk, Ailment(kind="sync", number=number), start)

    assert life.outcomes == ["not opened"]


def test_a_failed_sync_of_a_commit_is_unknown_and_ends_the_store(folder, disk, start):
    life = live(folder, disk, Ailment(kind="sync", number=3), start)

    assert life.outcomes == ["unknown"]
