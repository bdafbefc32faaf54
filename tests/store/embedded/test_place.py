import pytest

from gateway.store.embedded.files import Disk, StoreError, StoreLock
from gateway.store.embedded.opening import place_doubts


def doubts(path, kind, seconds=1e-3):
    disk = Disk(file_system=lambda _path: kind, sync_seconds=lambda _file: seconds)
    lock = StoreLock.acquire(path)
    try:
        return list(place_doubts(path, lock, disk))
    finally:
        lock.release()


@pytest.mark.parametrize("mounted", ["ext4", "xfs", "btrfs", "zfs", ""])
def test_a_disk_is_no_matter(tmp_path, mounted):
    assert doubts(tmp_path / "a.db", mounted) == []


@pytest.mark.parametrize("mounted", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"])
def test_a_network_file_system_is_refused(tmp_path, mounted):
    with pytest.raises(StoreError, match=f"network file system .{mounted}.*disk of this machine"):
        doubts(tmp_path / "a.db", mounted)


@pytest.mark.parametrize(("mounted", "text"), [("tmpfs", "in memory"), ("overlay", "container")])
def test_a_place_that_ends_with_the_machine_is_doubtful(tmp_path, mounted, text):
    [doubt] = doubts(tmp_path / "a.db", mounted, seconds=1e-6)

    assert text in doubt


def test_a_sync_faster_than_any_disk_is_doubtful(tmp_path):
    [doubt] = doubts(tmp_path / "a.db", "ext4", seconds=1e-6)

    assert "a sync takes 1 µs" in doubt
    assert doubts(tmp_path / "a.db", "ext4", seconds=21e-6) == []
