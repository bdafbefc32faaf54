"""
The side of the new process: asks the running process for its sockets, and tells it when to end.
"""

import os
import select
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.given import GivenSockets, by_bind
from gateway.extensions.take_over.events import TakenOver
from gateway.net.descriptors import DescriptorChannel, PeerProcess, close_all
from gateway.net.unix import short_path
from gateway.ports import Observer

VERSION: Final = 1  # of the messages between two gateways; each refuses another one
ANSWER_SECONDS: Final = (
    30.0  # until a running gateway answers; a starting gateway answers when it serves
)
GIVEN_UP: Final = "take_over: this process took so long to start that the running gateway serves on"


@attrs.define(eq=False, kw_only=True)
class Predecessor:
    """
    The running process, which serves until this process is ready. If this process ends earlier, the
    predecessor goes on serving.
    """

    channel: DescriptorChannel
    peer: PeerProcess
    process: int  # a descriptor of the process, which outlives its number
    given: GivenSockets
    # The running process has stores, and frees them before this process is ready.
    frees_stores: bool
    observer: Observer

    def check(self) -> None:
        """
        Check before this process accepts that the predecessor still waits for it: two processes
        must not serve.

        Raises:
            Failure: the predecessor serves on.
        """
        if self.channel.has_news and not self.has_ended:
            raise Failure(GIVEN_UP, ExitCode.TEMPORARY)

    @property
    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.process, select.POLLIN)
        return bool(poll.poll(0))

    async def wait_free(self) -> None:
        """
        Return when the predecessor's stores can be opened here: it has drained and closed them, or
        has ended.

        Raises:
            Failure: the predecessor can't free them.
        """
        if self.frees_stores and await _received(self.channel) is None:
            # The locks of its stores end with the process.
            await trio.lowlevel.wait_readable(self.process)


@attrs.frozen(eq=False)
class Arrival:
    """A `Service` that tells the predecessor to drain when this process accepts connections."""

    _predecessor: Predecessor
    _serving: trio.Event  # set when this process accepts
    _fail: Callable[[Failure], None]  # ends this process

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return when the predecessor is told."""
        task_status.started()
        before = self._predecessor
        await self._serving.wait()
        before.observer.report(TakenOver(pid=before.peer.pid))
        try:
            await before.channel.send({"ready": True})
        except trio.BrokenResourceError:
            if not before.has_ended:  # the predecessor gave up at the last moment
                self._fail(Failure(GIVEN_UP, ExitCode.TEMPORARY))


async def find_predecessor(
    stack: AsyncExitStack, path: Path, observer: Observer
) -> Predecessor | None:
    """
    The gateway that listens at that path, with its sockets, until the stack is closed; None: no
    gateway runs there.

    Raises:
        Failure: the gateway belongs to another user, or can't hand over its sockets now.
    """
    end = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = DescriptorChannel(end)
    stack.callback(channel.close)
    try:
        with short_path(path) as short:
            await end.connect(short)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise Failure(f"take_over: {path} can't be used: {error.strerror}") from error
    peer = channel.peer
    if peer.user != os.geteuid():
        raise Failure(
            f"take_over: the gateway at {path} runs as another user ({peer.user}, and this process"
            f" as {os.geteuid()}): start it as the same user",
            ExitCode.WRONG,
        )
    try:
        process = os.pidfd_open(peer.pid)
    except ProcessLookupError:
        return None
    stack.callback(os.close, process)
    answer = None
    with trio.move_on_after(ANSWER_SECONDS):
        await _say_hello(channel)
        answer = await _received(channel)
    if answer is None:
        _not_now(f"the gateway at {path} doesn't answer")
    message, descriptors = answer
    if "refused" in message:
        close_all(descriptors)
        _not_now(f"the gateway at {path} refuses: {message['refused']}")
    given = _sockets_of(message, descriptors)
    stack.callback(given.close)
    return Predecessor(
        channel=channel,
        peer=peer,
        process=process,
        given=given,
        frees_stores=bool(message["frees_stores"]),
        observer=observer,
    )


async def _say_hello(channel: DescriptorChannel) -> None:
    try:
        await channel.send({"version": VERSION})
    except trio.BrokenResourceError:
        return  # the missing answer shows the failure


async def _received(channel: DescriptorChannel) -> tuple[Mapping[str, Any], list[int]] | None:
    try:
        return await channel.receive()
    except ValueError as error:
        raise Failure(f"take_over: the running gateway sends something else: {error}") from error


def _sockets_of(message: Mapping[str, Any], descriptors: list[int]) -> GivenSockets:
    entries, rest = [], list(descriptors)
    for bind, count in message["endpoints"]:
        entries.append((str(bind), rest[:count]))
        del rest[:count]
    close_all(rest)
    return by_bind(entries)


def _not_now(text: str) -> NoReturn:
    raise Failure(f"take_over: {text}", ExitCode.TEMPORARY)
