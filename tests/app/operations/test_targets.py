"""The running gateway as a command finds it, and the key with which the command uses it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.targets import KNOCK_SECONDS, answers, policy_with
from gateway.config.file import parse
from gateway.config.options import Config
from gateway.domain.access import Right

HERE = '[namespaces.here]\nurl = "memory:"\n'
BY_CERTIFICATE = """
[[access]]
name = "orders-sender"
certificates = ["CN=orders"]
rights = ["Send"]
"""
WITH_KEY = """
[[access]]
name = "listener"
key = { env = "KEY" }
rights = ["Listen"]
"""


def config_of(text: str) -> Config:
    environ = {"KEY": "a key of sixteen"}
    return parse(HERE + text, source="x.toml", folder=Path("/nowhere"), environ=environ).config


def test_a_policy_without_a_key_that_has_the_right_is_named() -> None:
    config = config_of(BY_CERTIFICATE + WITH_KEY)

    with pytest.raises(Failure) as caught:
        policy_with(config, "localhost:5671", Right.SEND)

    assert str(caught.value) == (
        "no [[access]] with a key has the right Send, which this command needs at localhost:5671;"
        " add one, or give a key to 'orders-sender'"
    )
    assert caught.value.code is ExitCode.WRONG


def test_where_no_policy_has_the_right_none_is_named() -> None:
    with pytest.raises(Failure, match=r"at localhost:5671$"):
        policy_with(config_of(WITH_KEY), "localhost:5671", Right.SEND)


def test_the_policy_with_a_key_is_chosen() -> None:
    assert (
        policy_with(config_of(BY_CERTIFICATE + WITH_KEY), "here", Right.LISTEN).name == "listener"
    )


@contextmanager
def bound(*, listens: bool) -> Iterator[str]:
    """The address of a socket; nobody accepts its connections."""
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        if listens:
            here.listen(0)
        yield f"127.0.0.1:{here.getsockname()[1]}"


def answers_though_time_goes_by(address: str, seconds: float) -> bool:
    """Knock; each time that Trio looks at its clock again, so many seconds more are over."""
    clock = MockClock()
    found: list[bool] = []

    async def knock() -> None:
        found.append(await answers(address))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(knock)
            while not found:
                clock.jump(seconds)
                await trio.lowlevel.checkpoint()

    trio.run(main, clock=clock)
    return found[0]


@pytest.mark.parametrize("listens", [True, False])
def test_a_knock_during_which_the_machine_stalls_tells_whether_a_process_listens(
    listens: bool,
) -> None:
    with bound(listens=listens) as address:
        assert answers_though_time_goes_by(address, 5 * KNOCK_SECONDS) is listens


def test_a_listener_whose_queue_is_full_is_there() -> None:
    with bound(listens=True) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))):  # as many as its queue takes
            assert answers_though_time_goes_by(address, KNOCK_SECONDS / 1000)
