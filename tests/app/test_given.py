"""Sockets of systemd: which endpoint gets which, and which of them are errors."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gateway.app.endpoints import bind_endpoint
from gateway.app.failure import ExitCode, Failure
from gateway.app.given import by_bind, from_systemd
from gateway.app.runtime import Runtime
from gateway.config.file import parse
from gateway.config.options import Config
from gateway.frontends.refusals import Refusals
from gateway.net import unix
from gateway.net.listeners import Listener

FIRST = 500  # beyond the descriptors of this process
CONFIG = """
[namespaces.here]
url = "memory:"

[[endpoints]]
protocol = "amqp"
bind = "127.0.0.1:{0}"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:{1}"
"""


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Two listening sockets, whose descriptors are neighbours."""
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    for number, each in enumerate(made, FIRST):
        os.dup2(each.fileno(), number)
    copies = [socket.socket(fileno=FIRST + number) for number in range(2)]
    yield copies
    for each in (*made, *copies):
        each.close()


def config_of(sockets: list[socket.socket]) -> Config:
    text = CONFIG.format(*(each.getsockname()[1] for each in sockets))
    return parse(text, source="test", folder=Path(), environ={}).config


def variables(names: str, *, pid: int | None = None, count: int = 2) -> dict[str, str]:
    return {
        "LISTEN_PID": str(os.getpid() if pid is None else pid),
        "LISTEN_FDS": str(count),
        "LISTEN_FDNAMES": names,
        "PATH": "/bin",
    }


async def test_each_endpoint_gets_the_socket_with_its_address(sockets: list[socket.socket]) -> None:
    environ = variables("anything:admin")
    config = config_of(sockets)

    given = from_systemd(config, environ, first=sockets[0].fileno())

    assert given is not None
    assert environ == {"PATH": "/bin"}
    for endpoint, each in zip(config.endpoints, sockets, strict=True):
        taken = given.acquire(endpoint.bind)
        assert taken is not None
        (listener,) = taken.sockets
        assert listener.socket.fileno() == each.fileno()
        assert not os.get_inheritable(each.fileno())
        each.detach()
        await listener.aclose()
        assert given.acquire(endpoint.bind) is None


@pytest.mark.parametrize(("pid", "count"), [(1, 2), (None, 0)])
def test_variables_for_another_process_count_for_nothing(
    pid: int | None, count: int, sockets: list[socket.socket]
) -> None:
    environ = variables("", pid=pid, count=count)

    assert from_systemd(config_of(sockets), environ, first=sockets[0].fileno()) is None
    assert environ == {"PATH": "/bin"}


def test_a_socket_without_an_endpoint_is_an_error_that_names_both(
    sockets: list[socket.socket],
) -> None:
    binds = (sockets[0].getsockname()[1], 1)
    config = parse(CONFIG.format(*binds), source="test", folder=Path(), environ={}).config
    address = f"127.0.0.1:{sockets[1].getsockname()[1]}"

    with pytest.raises(Failure, match=rf"listens on {address}, and no endpoint") as caught:
        from_systemd(config, variables("a:b"), first=sockets[0].fileno())

    assert caught.value.code == ExitCode.WRONG
    assert config.endpoints[0].bind in str(caught.value)


def test_a_socket_that_is_named_after_another_protocol_is_an_error(
    sockets: list[socket.socket],
) -> None:
    with pytest.raises(Failure, match=r"endpoints\[1\], which is admin") as caught:
        from_systemd(config_of(sockets), variables("amqp:amqp"), first=sockets[0].fileno())

    assert caught.value.code == ExitCode.WRONG


def test_a_socket_that_does_not_listen_is_an_error(sockets: list[socket.socket]) -> None:
    with socket.socket() as client:
        config, number = config_of(sockets), client.fileno()

        with pytest.raises(Failure, match=f"descriptor {number}.* isn't a listening socket"):
            from_systemd(config, variables("web", count=1), first=number)


def test_a_descriptor_that_is_not_open_is_an_error(sockets: list[socket.socket]) -> None:
    number = FIRST - 1

    with pytest.raises(Failure, match="Bad file descriptor"):
        from_systemd(config_of(sockets), variables("", count=1), first=number)


async def test_endpoints_at_any_port_keep_theirs_by_their_order() -> None:
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [each.getsockname()[1] for each in made]
    numbers = [each.detach() for each in made]
    given = by_bind([("127.0.0.1:0", [number]) for number in numbers])

    found = [given.acquire("127.0.0.1:0") for _ in range(2)]
    taken = [each for bound in found if bound is not None for each in bound.sockets]
    given.close()

    assert [each.socket.getsockname()[1] for each in taken] == ports[:2]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[2])
    for each in taken:
        await each.aclose()


async def test_the_file_of_a_unix_socket_is_removed_by_a_successor_and_not_if_it_is_systemds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = trio.Path("admin.sock")
    bound, _ = unix.bind(Path(path), 0o600, 1)
    bind = f"unix:{path}"
    of_systemd = by_bind([(bind, [os.dup(bound.fileno())])], with_files=False)
    of_predecessor = by_bind([(bind, [bound.detach()])])

    for given, is_left in ((of_systemd, True), (of_predecessor, False)):
        taken = given.acquire(bind)
        assert taken is not None
        listener = Listener(taken.sockets, on_crash=lambda _peer, _error: None, file=taken.file)
        assert listener.address == bind
        await listener.aclose()
        assert await path.exists() is is_left


async def test_the_file_of_a_given_unix_socket_gets_its_mode_and_stays_until_the_process_serves(
    tmp_path: Path,
) -> None:
    path = trio.Path(tmp_path) / "admin.sock"
    bound, _ = unix.bind(Path(path), 0o666, 1)  # as systemd does
    endpoint = f'[[endpoints]]\nprotocol = "admin"\nbind = "unix:{path}"\n'
    text = f'[namespaces.here]\nurl = "memory:"\n{endpoint}'
    config = parse(text, source="test", folder=Path(), environ={}).config
    given, runtime = (
        by_bind([(f"unix:{path}", [os.dup(bound.fileno())]) for _ in range(2)]),
        Runtime(),
    )

    for owns, is_left in ((False, True), (True, False)):
        sockets = given.acquire(f"unix:{path}")
        refusals = Refusals(runtime.observer)
        listener = await bind_endpoint(config, 0, runtime, refusals, 0, given=sockets)
        assert (await path.stat()).st_mode & 0o777 == 0o600
        if owns:
            listener.own_file()
        await listener.aclose()
        assert await path.exists() is is_left
    bound.close()
