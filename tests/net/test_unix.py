"""Unix sockets: the owner of the file, its permissions, and the connected users."""

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gateway.net import unix
from gateway.net.listeners import CannotListen, Listener, open_listener
from gateway.net.visits import Visit, current_visit


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as path:
        yield Path(path)


async def listen(path: Path, mode: int = unix.MODE) -> Listener:
    return await open_listener(f"unix:{path}", on_crash=lambda peer, error: None, mode=mode)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
async def test_the_file_has_the_mode_whatever_the_umask(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        usual = await listen(folder / "a" / "usual")
        shared = await listen(folder / "shared", 0o660)
        found = mode_of(folder / "a" / "usual"), mode_of(folder / "shared")
    finally:
        os.umask(before)
    address = usual.address
    await usual.aclose()
    await shared.aclose()

    assert found == (0o600, 0o660)
    assert address == f"unix:{folder / 'a' / 'usual'}"
    assert not (folder / "shared").exists()


async def test_a_client_is_known_by_its_process_and_user(folder: Path) -> None:
    listener = await listen(folder / "s")
    visits: list[Visit] = []

    async def note(stream: trio.abc.Stream) -> None:
        visits.append(current_visit())
        await stream.send_all(b"!")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: listener.serve(note, connections=nursery))
        async with await trio.open_unix_socket(str(folder / "s")) as stream:
            assert await stream.receive_some() == b"!"
        nursery.cancel_scope.cancel()

    assert [(each.peer, each.user) for each in visits] == [(f"unix:{os.getpid()}", os.getuid())]
    assert not (folder / "s").exists()


async def test_the_file_of_a_dead_process_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "s"))

    listener = await listen(folder / "s")
    answered = unix.is_answered(folder / "s")
    await listener.aclose()

    assert answered
    assert not unix.is_answered(folder / "s")


async def test_a_socket_that_is_answered_is_left_alone(folder: Path) -> None:
    first = await listen(folder / "s")
    with pytest.raises(CannotListen, match="Address already in use"):
        await listen(folder / "s")

    assert unix.is_answered(folder / "s")
    await first.aclose()


async def test_a_file_that_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "s").write_text("mine")

    with pytest.raises(CannotListen, match="no socket"):
        await listen(folder / "s")

    assert (folder / "s").read_text() == "mine"


async def test_at_its_end_a_listener_leaves_the_file_of_another_one(folder: Path) -> None:
    first = await listen(folder / "s")
    (folder / "s").unlink()
    second = await listen(folder / "s")

    await first.aclose()

    assert unix.is_answered(folder / "s")
    await second.aclose()


async def test_a_path_may_be_107_bytes_long(folder: Path) -> None:
    longest = folder / ("x" * (unix.LONGEST - len(str(folder)) - 1))
    listener = await listen(longest)
    with pytest.raises(CannotListen, match="has 108 bytes, and the path of a Unix socket at most"):
        await listen(Path(f"{longest}x"))

    assert unix.is_answered(longest)
    await listener.aclose()


@pytest.mark.slow
async def test_a_folder_that_another_process_keeps_locked_is_an_error(folder: Path) -> None:
    """Every user who may read the folder can lock it."""
    locked = os.open(folder, os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)

    with pytest.raises(CannotListen, match="another process keeps its folder locked"):
        await listen(folder / "admin.sock")

    os.close(locked)
