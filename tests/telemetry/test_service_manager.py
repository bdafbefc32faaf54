"""The messages of a process to systemd, and their times: read from the other end of the socket."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing

from gateway.app.process import service_manager
from gateway.app.runtime import Silence
from gateway.domain.events.gateway import Draining, Event, Started
from gateway.telemetry.service_manager import ServiceManager


@attrs.define
class Told:
    """The end of systemd."""

    theirs: socket.socket
    events: list[Event] = attrs.field(factory=list)

    def report(self, event: Event) -> None:
        self.events.append(event)

    def lines(self) -> list[str]:
        """The assignments since the last call."""
        found = list[str]()
        while True:
            try:
                found += self.theirs.recv(4096).decode().splitlines()
            except BlockingIOError:
                return found


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Told]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, Told(theirs)


def test_the_start_and_the_end_are_told_and_passed_on(pair: tuple[socket.socket, Told]) -> None:
    ours, told = pair
    manager = ServiceManager(told, ours)

    manager.report(Started(configuration="x.toml"))
    assert told.lines() == ["READY=1", "STATUS=serving"]
    manager.report(Draining(reason="by ana: two\nlines", seconds=10.0))
    assert told.lines() == ["STOPPING=1", "STATUS=draining: by ana: two lines"]

    assert [type(event) for event in told.events] == [Started, Draining]


def test_a_reload_has_its_date_and_ends_with_readiness(pair: tuple[socket.socket, Told]) -> None:
    ours, told = pair
    manager = ServiceManager(told, ours)
    manager.report(Started(configuration="x.toml"))
    told.lines()

    with manager.reloading():
        first, date = told.lines()

    assert first == "RELOADING=1"
    assert date.removeprefix("MONOTONIC_USEC=").isdecimal()
    assert told.lines() == ["READY=1"]


def test_a_reload_makes_no_process_ready_that_starts_or_ends(
    pair: tuple[socket.socket, Told],
) -> None:
    ours, told = pair
    manager = ServiceManager(told, ours)

    with manager.reloading():
        pass
    assert told.lines() == []
    manager.report(Started(configuration="x.toml"))
    with manager.reloading():
        manager.report(Draining(reason="SIGTERM", seconds=10.0))
    assert told.lines()[-2:] == ["STOPPING=1", "STATUS=draining: SIGTERM"]
    with manager.reloading():
        pass
    assert told.lines() == []


async def test_the_event_loop_gives_three_signs_of_life_in_the_time_of_the_watchdog(
    pair: tuple[socket.socket, Told], autojump_clock: trio.testing.MockClock
) -> None:
    ours, told = pair
    manager = ServiceManager(told, ours, watchdog=30.0)

    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        await trio.sleep(95.0)
        nursery.cancel_scope.cancel()

    assert told.lines() == ["WATCHDOG=1"] * 10


async def test_without_a_watchdog_nothing_runs(
    pair: tuple[socket.socket, Told], autojump_clock: trio.testing.MockClock
) -> None:
    ours, told = pair

    async with trio.open_nursery() as nursery:
        await nursery.start(ServiceManager(told, ours).run)

    assert told.lines() == []


async def test_a_state_that_finds_no_room_is_told_with_the_next_sign_of_life(
    pair: tuple[socket.socket, Told], autojump_clock: trio.testing.MockClock
) -> None:
    ours, told = pair
    manager = ServiceManager(told, ours, watchdog=30.0)
    with suppress(BlockingIOError):
        while True:
            ours.send(b"X=1")

    manager.report(Started(configuration="x.toml"))
    assert set(told.lines()) == {"X=1"}
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        await trio.sleep(15.0)
        nursery.cancel_scope.cancel()

    assert told.lines() == ["READY=1", "STATUS=serving", "WATCHDOG=1", "WATCHDOG=1"]


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "/nowhere/notify", "@pairgate-nobody"])
def test_without_a_socket_nothing_is_told(address: str) -> None:
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000"}

    with service_manager(Silence(), environ) as manager:
        manager.report(Started(configuration="x.toml"))

    assert manager.watchdog is None
    assert environ == {}


def test_a_watchdog_of_no_time_is_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    address = str(tmp_path_factory.mktemp("n") / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(address)
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "0"}
        with service_manager(Silence(), environ) as manager:
            assert manager.watchdog is None


@pytest.mark.parametrize("name", ["@pairgate-{}", "{}/notify"])
def test_the_environment_names_the_socket(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("n")
    address = name.format(folder if "/" in name else folder.name + str(os.getpid()))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(address.replace("@", "\0"))
        # Of another process: no watchdog for this one.
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}

        with service_manager(Silence(), environ) as manager:
            manager.report(Started(configuration="x.toml"))

        assert theirs.recv(100) == b"READY=1\nSTATUS=serving"
    assert manager.watchdog is None
    assert environ == {}
