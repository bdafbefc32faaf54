import os
from pathlib import Path

import pytest

from gateway.store.embedded.files import (
    HighWaterMark,
    Mark,
    StoreInUse,
    StoreLock,
    file_system,
    free_bytes,
    lost,
    read_mark,
    sync_seconds,
)

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:30 / /srv rw,relatime - nfs4 server:/srv rw
31 30 0:31 / /srv/with\\040space rw,relatime master:1 - xfs /dev/vdb rw
32 27 0:32 / /over rw - ext4 /dev/vdc rw
33 27 0:33 / /over rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/a.db", "ext4"),
        ("/srv/a.db", "nfs4"),
        ("/srvx/a.db", "ext4"),
        ("/srv/with space/deep/a.db", "xfs"),
        ("/over/a.db", "tmpfs"),
    ],
)
def test_the_innermost_and_last_mount_holds_a_path(tmp_path, path, expected):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)

    assert file_system(Path(path), mounts) == expected


def test_where_nobody_names_mounts_the_kind_is_unknown(tmp_path):
    assert file_system(tmp_path, tmp_path / "missing") == ""


def test_linux_names_the_file_system_of_a_real_path(tmp_path):
    assert file_system(tmp_path)
    assert free_bytes(tmp_path) > 0


def test_a_sync_takes_time(tmp_path):
    file = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    try:
        assert 0 < sync_seconds(file) < 10
    finally:
        os.close(file)


def test_a_lock_is_for_one_and_can_be_taken_again(tmp_path):
    lock = StoreLock.acquire(tmp_path / "a.db")
    with pytest.raises(StoreInUse, match="another process"):
        StoreLock.acquire(tmp_path / "a.db")
    lock.release()

    StoreLock.acquire(tmp_path / "a.db").release()


def test_a_mark_is_read_as_it_was_written(tmp_path):
    mark = HighWaterMark.begin(tmp_path / "a", Mark(store_id=2**63 - 1, commits=1))
    mark.set(7)
    mark.close()

    assert read_mark(tmp_path / "a") == Mark(store_id=2**63 - 1, commits=7)


def test_a_mark_that_was_never_written_in_full_says_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"\0" * 15)

    assert read_mark(tmp_path / "a") is None
    assert read_mark(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (None, ""),
        (Mark(store_id=1, commits=4), ""),
        (Mark(store_id=1, commits=5), ""),
        (Mark(store_id=1, commits=6), "missing"),
        (Mark(store_id=2, commits=5), "another store"),
    ],
)
def test_a_store_behind_its_mark_has_lost_something(tmp_path, mark, text):
    found = lost(tmp_path, mark, Mark(store_id=1, commits=5))

    assert text in found
    assert bool(found) is bool(text)
