"""
Both sides of a hand-over in one process: which side has the sockets, when, and after a failure.
"""

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.given import GivenSockets
from gateway.domain.events.gateway import Doubtful, Event
from gateway.extensions.take_over.door import Door, HandOver, open_door, see_off
from gateway.extensions.take_over.events import TakenOver, TakeOverFailed
from gateway.extensions.take_over.predecessor import Arrival, Predecessor, find_predecessor
from gateway.net.descriptors import DescriptorChannel, close_all
from gateway.net.listeners import Listener, open_listener
from gateway.net.unix import short_path
from tests.harness.open_files import room_for_files
from tests.harness.patience import PATIENCE

BIND = "127.0.0.1:0"
ME = os.getpid()


@attrs.define(eq=False)
class Asked:
    """Notes why the gateway is to drain."""

    reasons: list[str] = attrs.field(factory=list)
    asked: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_asked(self) -> bool:
        return self.asked.is_set()

    def leave(self, reason: str) -> None:
        self.reasons.append(reason)
        self.asked.set()


@attrs.define(eq=False)
class Observed:
    events: list[Event] = attrs.field(factory=list)

    def report(self, event: Event) -> None:
        self.events.append(event)


@attrs.define(eq=False)
class Running:
    """A gateway that runs, and the parts of it that a hand-over needs."""

    door: Door
    listener: Listener
    path: Path
    observed: Observed
    ending: Asked
    services: trio.CancelScope

    async def successor(self, stack: AsyncExitStack) -> Predecessor:
        """The gateway as its successor finds it."""
        found = await find_predecessor(stack, self.path, self.observed)
        assert found is not None
        return found


def must_not_fail(failure: Failure) -> None:
    raise failure


def arrival(new: Predecessor, fail: Callable[[Failure], None] = must_not_fail) -> Arrival:
    """The service of a successor that accepts connections already."""
    serving = trio.Event()
    serving.set()
    return Arrival(new, serving, fail)


async def no_process(pid: int) -> None:
    """Both sides are one process here, which must not be killed."""
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def running(
    path: Path, *, has_stores: bool, ready_seconds: float = PATIENCE
) -> AsyncIterator[Running]:
    observed, ending = Observed(), Asked()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        door = await open_door(stack, path, observed)
        door.see_off, door.ready_seconds = no_process, ready_seconds
        listener = await open_listener(BIND, on_crash=lambda _peer, _error: None)
        stack.push_async_callback(listener.aclose)
        serving = trio.Event()
        hand_over = HandOver(
            door=door,
            listeners=[(BIND, listener)],
            state=None,
            has_stores=has_stores,
            ending=ending,
            serving=serving,
        )
        await nursery.start(hand_over.run)
        serving.set()
        with trio.fail_after(PATIENCE):
            while not await trio.Path(path).exists():
                await trio.lowlevel.checkpoint()
        yield Running(door, listener, path, observed, ending, nursery.cancel_scope)
        nursery.cancel_scope.cancel()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path that is longer than that of a Unix socket may be."""
    return tmp_path / ("x" * 100) / "take-over.sock"


async def test_a_successor_gets_the_sockets_and_the_gateway_drains_when_it_is_ready(
    path: Path, nursery: trio.Nursery
) -> None:
    async with running(path, has_stores=False) as old, AsyncExitStack() as stack:
        new = await old.successor(stack)
        await new.wait_free()
        bound = new.given.acquire(BIND)
        assert bound is not None
        (taken,) = bound.sockets
        assert taken.socket.getsockname()[1] == old.listener.port
        assert not old.ending.is_asked
        new.check()

        nursery.start_soon(arrival(new).run)
        await old.ending.asked.wait()

        assert old.ending.reasons == [f"process {ME} has taken over"]
        assert old.observed.events == [TakenOver(pid=ME)]
        await old.listener.aclose()
        client = await trio.open_tcp_stream("127.0.0.1", taken.socket.getsockname()[1])
        await client.aclose()
        await taken.aclose()
        nursery.cancel_scope.cancel()


async def test_a_successor_that_ends_before_it_is_ready_changes_nothing(path: Path) -> None:
    async with running(path, has_stores=False) as old:
        for _ in range(2):
            async with AsyncExitStack() as stack:
                await old.successor(stack)
            failed = TakeOverFailed(pid=ME, reason="it ended before it was ready")
            with trio.fail_after(PATIENCE):
                while failed not in old.observed.events:
                    await trio.lowlevel.checkpoint()
            old.observed.events.clear()

        assert not old.ending.is_asked


async def test_stores_are_free_when_the_parts_are_closed_and_a_ready_successor_ends_it(
    path: Path, nursery: trio.Nursery
) -> None:
    async with running(path, has_stores=True) as old, AsyncExitStack() as stack:
        new = await old.successor(stack)
        await old.ending.asked.wait()
        assert old.ending.reasons == [f"process {ME} takes over, and waits for the stores"]
        kept = list[GivenSockets | None]()

        async def end() -> None:
            kept.append(await old.door.freed())

        nursery.start_soon(end)
        await new.wait_free()
        nursery.start_soon(arrival(new).run)
        with trio.fail_after(PATIENCE):
            while not kept:
                await trio.lowlevel.checkpoint()

        assert kept == [None]


async def test_sockets_outlive_a_successor_that_fails_after_the_stores_are_free(path: Path) -> None:
    async with running(path, has_stores=True) as old:
        async with AsyncExitStack() as stack:
            await old.successor(stack)
            await old.ending.asked.wait()
            await old.listener.aclose()
        kept = await old.door.freed()

        assert kept is not None
        bound = kept.acquire(BIND)
        assert bound is not None
        (again,) = bound.sockets
        client = await trio.open_tcp_stream("127.0.0.1", again.socket.getsockname()[1])
        await client.aclose()
        await again.aclose()
        failed = TakeOverFailed(pid=ME, reason="it ended before it was ready")
        assert old.observed.events == [failed]


LATE = 0.05  # seconds
TOO_LATE = TakeOverFailed(pid=ME, reason=f"it wasn't ready within {LATE:g} s")


async def test_a_successor_that_hangs_blocks_no_other_and_may_not_serve_later(
    path: Path, nursery: trio.Nursery
) -> None:
    async with (
        running(path, has_stores=False, ready_seconds=LATE) as old,
        AsyncExitStack() as stack,
    ):
        hanging = await old.successor(stack)
        with trio.fail_after(PATIENCE):
            while TOO_LATE not in old.observed.events:
                await trio.lowlevel.checkpoint()
        assert not old.ending.is_asked
        with pytest.raises(Failure, match="the running gateway serves on") as caught:
            hanging.check()
        assert caught.value.code is ExitCode.TEMPORARY
        failures = list[Failure]()
        # The successor was too late by so little that it accepts already.
        await arrival(hanging, failures.append).run()
        assert [str(each) for each in failures] == [str(caught.value)]

        old.door.ready_seconds = PATIENCE
        other = await old.successor(stack)
        nursery.start_soon(arrival(other).run)
        await old.ending.asked.wait()
        assert old.ending.reasons == [f"process {ME} has taken over"]
        nursery.cancel_scope.cancel()


async def test_a_successor_that_hangs_with_the_stores_is_ended_and_the_sockets_serve_again(
    path: Path,
) -> None:
    ended = list[int]()

    async def end(process: int) -> None:
        await trio.lowlevel.checkpoint()
        ended.append(pid_of(process))

    async with running(path, has_stores=True) as old, AsyncExitStack() as stack:
        old.door.see_off, old.door.ready_seconds = end, LATE
        await old.successor(stack)
        await old.ending.asked.wait()
        await old.listener.aclose()
        kept = await old.door.freed()

        assert kept is not None
        kept.close()
        assert (ended, old.observed.events) == ([ME], [TOO_LATE])


def test_a_process_that_was_given_up_is_killed_if_it_does_not_end() -> None:
    with subprocess.Popen(["sleep", "1000"]) as frozen:
        frozen.send_signal(signal.SIGSTOP)
        process = os.pidfd_open(frozen.pid)
        trio.run(partial(see_off, process, seconds=LATE))
        assert frozen.wait() == -signal.SIGKILL
    trio.run(see_off, process)  # the process has ended
    os.close(process)


def pid_of(process: int) -> int:
    """The id of the process of such a descriptor: see proc_pid_fdinfo(5)."""
    [line] = [
        line
        for line in Path(f"/proc/self/fdinfo/{process}").read_text().splitlines()
        if line.startswith("Pid:")
    ]
    return int(line.split()[1])


async def test_a_process_without_room_for_another_file_lets_a_successor_wait(path: Path) -> None:
    async with running(path, has_stores=True) as old:
        end = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(path) as short, room_for_files(0):
            await end.connect(short)
            with trio.fail_after(PATIENCE):
                while not old.observed.events:
                    await trio.lowlevel.checkpoint()
        text = "take_over: a process that asks must wait: Too many open files"
        assert old.observed.events[0] == Doubtful(text=text)
        channel = DescriptorChannel(end)
        await channel.send({"version": 1})
        answer = await channel.receive()
        channel.close()

    assert answer is not None
    assert answer[0]["frees_stores"] is True
    close_all(answer[1])


async def test_one_successor_at_a_time_and_none_of_a_gateway_that_drains(path: Path) -> None:
    async with running(path, has_stores=False) as old, AsyncExitStack() as stack:
        await old.successor(stack)
        with pytest.raises(Failure, match="another process takes over") as caught:
            await find_predecessor(stack, path, old.observed)
        old.ending.leave("SIGTERM")
        with pytest.raises(Failure, match="it drains already"):
            await find_predecessor(stack, path, old.observed)

    assert caught.value.code == ExitCode.TEMPORARY


async def test_a_process_of_another_user_gets_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(path, has_stores=False) as old, AsyncExitStack() as stack:
        with monkeypatch.context() as patched:
            # Both ends are this process: the kernel reports another process as the peer of each.
            patched.setattr("os.geteuid", lambda: os.getuid() + 1)
            with pytest.raises(Failure, match="runs as another user") as caught:
                await find_predecessor(stack, path, old.observed)
            end = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            channel = DescriptorChannel(end)
            stack.callback(channel.close)
            monkeypatch.chdir(path.parent)
            await end.connect(path.name)
            await channel.send({"version": 1})
            answer = await channel.receive()

        assert answer == ({"refused": "it runs as another user"}, [])
        assert caught.value.code == ExitCode.WRONG
        assert {type(event) for event in old.observed.events} == {Doubtful}


@pytest.mark.parametrize("hello", [{"version": 2}, {}, {"version": "1"}])
async def test_another_version_is_told_to_restart(
    hello: dict[str, object], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(path, has_stores=False), AsyncExitStack() as stack:
        end = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = DescriptorChannel(end)
        stack.callback(channel.close)
        monkeypatch.chdir(path.parent)
        await end.connect(path.name)
        await channel.send(hello)
        answer = await channel.receive()

    assert answer is not None
    assert "another version" in answer[0]["refused"]


async def test_nobody_at_the_path_is_no_predecessor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        assert await find_predecessor(stack, path, Observed()) is None
        async with AsyncExitStack() as door:
            await open_door(door, path, Observed())
        assert list(path.parent.iterdir()) == []
        left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        monkeypatch.chdir(path.parent)
        left.bind(path.name)
        left.close()  # as a killed gateway leaves it
        assert await find_predecessor(stack, path, Observed()) is None


async def test_descriptors_arrive_with_their_message_however_it_is_cut() -> None:
    ours, theirs = trio.socket.socketpair()
    sender, receiver = DescriptorChannel(ours), DescriptorChannel(theirs)
    read, write = os.pipe()
    large = {"text": "x" * 300_000}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send, large, [write])
        first = await receiver.receive()
    await sender.send({"second": True})
    assert first is not None
    message, descriptors = first
    os.close(write)
    os.write(descriptors[0], b"hello")

    assert message == large
    assert os.read(read, 10) == b"hello"
    assert await receiver.receive() == ({"second": True}, [])
    os.close(descriptors[0])
    os.close(read)
    sender.close()
    assert await receiver.receive() is None
    receiver.close()
