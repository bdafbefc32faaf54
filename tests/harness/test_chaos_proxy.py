"""Each fault has the effect of its name, and no other."""

import random

import pytest
import trio

from tests.harness.chaos_proxy import (
    BlackHole,
    ChaosProxy,
    Corrupt,
    HalfOpen,
    Hold,
    Late,
    Pass,
    Refuse,
    ResetAfter,
    ResetBefore,
    ResetDuring,
    Slow,
    Sometimes,
    SwallowResponse,
    Truncate,
)
from tests.harness.patience import PATIENCE


class Echo:
    """Answers each chunk with `<chunk>`, and keeps the chunks."""

    def __init__(self):
        self.received = b""

    async def serve(self, stream):
        try:
            async for data in stream:
                self.received += data
                await stream.send_all(b"<" + data + b">")
        except trio.BrokenResourceError:
            self.received += b"!"


@pytest.fixture
def server():
    return Echo()


@pytest.fixture
async def proxy(server, nursery):
    listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
    port = listeners[0].socket.getsockname()[1]
    proxy = ChaosProxy("127.0.0.1", port, rng=random.Random(7))
    await nursery.start(proxy.serve)
    return proxy


async def connect(proxy):
    return await trio.open_tcp_stream("127.0.0.1", proxy.port)


async def ask(stream, data=b"hello", size=100):
    """The answer until it is `size` long or ends; None when the connection was reset."""
    received = b""
    try:
        with trio.fail_after(PATIENCE):
            await stream.send_all(data)
            while len(received) < size and (more := await stream.receive_some()):
                received += more
                if received.endswith(b">"):
                    return received
    except trio.BrokenResourceError:
        return None
    return received


async def settle():
    await trio.sleep(0.05)


async def test_without_a_fault_bytes_and_ends_pass(proxy, server):
    async with await connect(proxy) as stream:
        assert await ask(stream) == b"<hello>"
        await stream.send_eof()
        assert await stream.receive_some() == b""


@pytest.mark.parametrize(
    ("fault", "answer", "received"),
    [
        (ResetBefore(), None, b""),
        (ResetDuring(2), None, b"he"),
        (SwallowResponse(), None, b"hello"),
        (Truncate(3), b"<he", b"hello"),
        (ResetAfter(), b"<hello>", b"hello"),
        (Slow(size=2, delay=0.005, jitter=0.005), b"<he><ll><o>", b"hello"),
    ],
)
async def test_a_fault_hits_where_it_says(fault, answer, received, proxy, server):
    proxy.fault = fault

    async with await connect(proxy) as stream:
        assert (await ask(stream) or None) in (answer, b"<he>")
        await settle()

    assert server.received.strip(b"!") == received


async def test_a_new_fault_hits_open_connections_too(proxy):
    async with await connect(proxy) as stream:
        assert await ask(stream) == b"<hello>"
        proxy.fault = SwallowResponse()

        assert await ask(stream) is None


async def test_refuse_closes_the_port_and_the_same_port_opens_again(proxy):
    proxy.fault = Refuse()
    await settle()
    with pytest.raises(OSError, match="all attempts to connect"):
        await connect(proxy)

    proxy.fault = Pass()
    await settle()

    async with await connect(proxy) as stream:
        assert await ask(stream) == b"<hello>"


async def test_a_black_hole_takes_bytes_and_gives_none(proxy, server):
    proxy.fault = BlackHole()

    async with await connect(proxy) as stream:
        await stream.send_all(b"lost")
        with trio.move_on_after(0.05) as waiting:
            await stream.receive_some()

    assert waiting.cancelled_caught
    assert server.received == b""


async def test_held_bytes_arrive_later(proxy, server):
    proxy.fault = Hold()

    async with await connect(proxy) as stream:
        await stream.send_all(b"late")
        await settle()
        held = server.received
        proxy.fault = Pass()
        answer = await stream.receive_some()

    assert (held, answer) == (b"", b"<late>")


async def test_bytes_on_a_slow_way_arrive_when_that_is_slow_no_more(proxy, server):
    async with await connect(proxy) as stream:
        assert await ask(stream) == b"<hello>"
        proxy.fault = Slow(size=1, delay=3600.0)
        await stream.send_all(b"late")
        await settle()
        came = server.received
        proxy.fault = Pass()
        with trio.fail_after(PATIENCE):
            answer = await stream.receive_some()

    assert (came, answer) == (b"hello", b"<late>")


async def test_all_can_be_reset_at_once(proxy):
    streams = [await connect(proxy) for _ in range(3)]
    for stream in streams:
        await ask(stream)

    proxy.reset_all()

    assert [await ask(stream) for stream in streams] == [None] * 3
    for stream in streams:
        await stream.aclose()


async def test_a_server_that_is_down_resets(nursery, server):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    proxy = ChaosProxy("127.0.0.1", port, rng=random.Random(7))
    await nursery.start(proxy.serve)

    async with await connect(proxy) as stream:
        assert await ask(stream) is None


async def fates(nursery, seed):
    server = Echo()
    listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
    port = listeners[0].socket.getsockname()[1]
    proxy = ChaosProxy("127.0.0.1", port, rng=random.Random(seed))
    await nursery.start(proxy.serve)
    proxy.fault = Sometimes(fault=ResetBefore(), probability=0.4)
    answers = []
    for _ in range(12):
        async with await connect(proxy) as stream:
            answers.append(await ask(stream))
    return answers


async def test_the_same_seed_makes_the_same_faults(nursery):
    first, again = await fates(nursery, 5), await fates(nursery, 5)

    assert first == again
    assert set(first) == {None, b"<hello>"}


async def test_half_open_lets_requests_pass_and_no_answer(proxy, server):
    async with await connect(proxy) as stream:
        assert await ask(stream) == b"<hello>"
        proxy.fault = HalfOpen()
        await stream.send_all(b"there")
        with trio.fail_after(PATIENCE):
            while not server.received.endswith(b"there"):
                await settle()

        with trio.move_on_after(0.1) as waited:
            await stream.receive_some()

    assert waited.cancelled_caught


async def test_corrupt_changes_one_bit_of_an_answer(proxy, server):
    proxy.fault = Corrupt()
    async with await connect(proxy) as stream:
        await stream.send_all(b"hello")
        with trio.fail_after(PATIENCE):
            answer = await stream.receive_some()

    changed = [a ^ b for a, b in zip(answer, b"<hello>", strict=True)]
    assert sum(each.bit_count() for each in changed) == 1
    assert server.received == b"hello"


async def test_a_late_answer_is_no_earlier_than_it_says_and_keeps_its_turn(proxy):
    proxy.fault = Late(0.2, 0.4)

    async with await connect(proxy) as stream:
        began = trio.current_time()
        for number in range(20):
            await stream.send_all(b"%d," % number)
            await trio.sleep(0.005)
        received = b""
        while not received.endswith(b"19,>"):
            received += await stream.receive_some()

        assert received.replace(b"<", b"").replace(b">", b"") == b"".join(
            b"%d," % number for number in range(20)
        )
        # Each has its own lateness: they don't wait for each other, one after the other.
        assert 0.2 <= trio.current_time() - began < 20 * 0.2


async def test_late_answers_arrive_when_the_fault_is_over(proxy):
    proxy.fault = Late(3600.0, 3600.0)

    async with await connect(proxy) as stream:
        with trio.move_on_after(0.05) as scope:
            await ask(stream)
        assert scope.cancelled_caught
        proxy.fault = Pass()
        with trio.fail_after(PATIENCE):
            assert await stream.receive_some() == b"<hello>"
