"""A direct stream behaves as Trio's stream of a socket does."""

import socket
import struct

import pytest
import trio
import trio.testing

from gateway.net.direct import SEND_SIZE, DirectStream, socket_of
from tests.harness.patience import PATIENCE

MUCH = bytes(range(256)) * 40_000  # more than the buffers of the kernel hold


@pytest.fixture
async def ends():
    """A direct stream, and the other end of its connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    theirs = await trio.open_tcp_stream(*listener.getsockname())
    ours, _ = listener.accept()
    listener.close()
    ours.setblocking(False)
    stream = DirectStream(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
    yield stream, theirs
    await stream.aclose()
    await theirs.aclose()


async def test_bytes_go_both_ways_until_the_end(ends):
    stream, theirs = ends

    await stream.send_all(b"question")
    assert await theirs.receive_some() == b"question"
    await theirs.send_all(b"answer")
    assert await stream.receive_some(4) == b"answ"
    assert await stream.receive_some() == b"er"
    await stream.send_eof()
    assert await theirs.receive_some() == b""
    await theirs.send_eof()
    assert await stream.receive_some() == b""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_more_than_the_kernel_takes_arrives_in_order(kind, ends):
    stream, theirs = ends
    received = bytearray()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, kind(MUCH))
        while len(received) < len(MUCH):
            received += await theirs.receive_some()

    assert received == MUCH


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_large_send_lets_others_run_between_its_pieces_though_the_kernel_takes_all(ends):
    stream, _ = ends
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    with trio.fail_after(PATIENCE):
        await stream.send_all(bytes(SEND_SIZE))
        small = steps.count
        await stream.send_all(bytes(SEND_SIZE + 1))
    trio.lowlevel.remove_instrument(steps)

    assert (small, steps.count) == (0, 1)


async def test_a_second_sender_is_refused_while_the_first_one_waits(ends):
    stream, _ = ends

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, MUCH)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            with pytest.raises(trio.BusyResourceError):
                await stream.send_all(b"in between")
        nursery.cancel_scope.cancel()


async def test_a_cancelled_send_sends_nothing(ends):
    stream, theirs = ends

    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.send_all(b"too late")
    await stream.send_all(b"in time")

    assert scope.cancelled_caught
    assert await theirs.receive_some() == b"in time"


async def test_receives_let_others_run_although_their_bytes_are_there(ends):
    stream, theirs = ends
    await theirs.send_all(b"there")
    ran = trio.Event()

    async def other() -> None:
        ran.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await stream.receive_some(1)  # Trio may run either task first
        await stream.receive_some(1)
        assert ran.is_set()


async def test_nothing_is_sent_after_the_end(ends):
    stream, _ = ends
    await stream.send_eof()

    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"more")


async def test_a_closed_stream_is_closed(ends):
    stream, _ = ends
    await stream.aclose()

    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"more")
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()


async def test_closing_ends_a_receive(ends):
    stream, _ = ends

    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()


async def test_a_reset_breaks_the_stream_and_its_cause_is_kept(ends):
    stream, theirs = ends
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await theirs.aclose()

    with pytest.raises(trio.BrokenResourceError) as received:
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError) as sent:
        await stream.send_all(b"more")

    assert isinstance(received.value.__cause__, ConnectionResetError)
    assert isinstance(sent.value.__cause__, BrokenPipeError)


async def test_the_socket_is_found_through_all_layers(ends):
    stream, theirs = ends

    assert socket_of(stream) is stream.transport_stream
    assert socket_of(theirs) is theirs
    assert socket_of(trio.testing.memory_stream_pair()[0]) is None
