"""
The memory of bodies: the clients that may send one, the bytes at a time, the memory that stays.
"""

import gc
import weakref

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from gateway.fair_budget import FairBudget
from gateway.net.http.server import HttpServerOptions
from gateway.wire.http.messages import Response
from tests.net.conftest import read_all, read_response

pytestmark = pytest.mark.slow

HEAD = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
OPTIONS = HttpServerOptions(body_wait=3.0, max_body=1000)


async def refuse(request):
    return Response(status=401, body=b"no token")


@pytest.mark.parametrize(
    "begun",
    [
        HEAD % 5,
        HEAD % 5 + b"hel",
        CHUNKED,
        HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") % 5,
    ],
    ids=["head", "a part", "chunks", "expect"],
)
async def test_a_client_that_may_send_no_body_is_told_so_before_it_comes(
    begun, exchange, autojump_clock
):
    client = exchange.connect(exchange.server(check_head=refuse))

    await client.send_all(begun)
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(b"\r\n\r\nno token")
    assert b"Connection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1") == 1
    assert exchange.requests == []


async def test_the_head_is_shown_without_the_body(exchange):
    seen = []

    async def accept(request):
        seen.append(request)

    client = exchange.connect(exchange.server(check_head=accept))

    await client.send_all(HEAD % 5 + b"he")
    await wait_all_tasks_blocked()
    await client.send_all(b"llo")
    await read_response(client)

    assert [(each.path, each.body) for each in seen] == [("/a", b"")]
    assert exchange.requests[0].body == b"hello"


async def test_a_body_that_came_with_its_head_is_the_handlers_matter(exchange):
    client = exchange.connect(exchange.server(check_head=refuse))

    await client.send_all(HEAD % 5 + b"hello")
    head, _ = await read_response(client)

    assert head.startswith(b"HTTP/1.1 200 ")


async def test_bodies_beyond_the_budget_wait_for_room(exchange, autojump_clock):
    budget = FairBudget(1000, 1000)
    server = exchange.server(budget=budget, options=OPTIONS)
    first, second, third = (exchange.connect(server) for _ in range(3))
    for client in (first, second, third):
        await client.send_all(HEAD % 600)
        await wait_all_tasks_blocked()
    acquired = budget.acquired

    await first.send_all(b"x" * 600)
    await read_response(first)
    await second.send_all(b"x" * 600)
    head, _ = await read_response(second)

    assert acquired == 600
    assert head.startswith(b"HTTP/1.1 200 ")
    await third.aclose()
    await wait_all_tasks_blocked()
    await trio.sleep(OPTIONS.body_wait)
    assert budget.acquired == 0


@pytest.mark.parametrize("begun", [HEAD % 600, CHUNKED], ids=["length", "chunks"])
async def test_a_body_that_waits_too_long_for_room_is_told_to_come_again(
    begun, exchange, autojump_clock
):
    budget = FairBudget(1000, 1000)
    server = exchange.server(budget=budget, options=OPTIONS)
    first, second = (exchange.connect(server) for _ in range(2))
    await first.send_all(HEAD % 600)
    await wait_all_tasks_blocked()

    began = trio.current_time()
    await second.send_all(begun)
    answer = await read_all(second)

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in answer
    assert trio.current_time() - began >= OPTIONS.body_wait


async def test_however_a_connection_ends_its_room_is_free_again(exchange, autojump_clock):
    budget = FairBudget(1000, 1000)
    server = exchange.server(budget=budget, options=OPTIONS)
    for ends in ("reset", "slow", "chunk that is none"):
        client = exchange.connect(server)
        await client.send_all((CHUNKED if "chunk" in ends else HEAD % 600) + b"x")
        await wait_all_tasks_blocked()
        assert budget.acquired
        if ends == "reset":
            await client.aclose()
            await wait_all_tasks_blocked()
        else:
            await client.send_all(b"y\r\n" if "chunk" in ends else b"y")
            await read_all(client)
        assert budget.acquired == 0


@pytest.mark.parametrize(
    "sent",
    [HEAD % 5 + b"hello", HEAD % 5 + b"hel", CHUNKED + b"3\r\nhel\r\n", b"nonsense\r\n\r\n", b"G"],
    ids=["whole", "a part", "chunks", "refused", "half a head"],
)
@pytest.mark.parametrize("watched", [False, True])
async def test_a_connection_that_ended_leaves_no_cycle_of_references(sent, watched, exchange):
    """Python seldom collects garbage: memory that only garbage collection frees stays for long."""
    server = exchange.server(cancels_when_gone=lambda request: watched)
    kept = []
    client, end = memory_stream_pair()
    original = server.handler

    async def handler(request):
        kept.append(weakref.ref(request))
        return await original(request)

    object.__setattr__(server, "handler", handler)
    exchange.requests = _Nothing()
    gc.collect()
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve_connection, end)
            kept.append(weakref.ref(end))
            del end
            await client.send_all(sent)
            await wait_all_tasks_blocked()
            await client.aclose()
        await wait_all_tasks_blocked()
        del client
        left = [found for each in kept if (found := each()) is not None]
        codecs = [each for each in gc.get_objects() if type(each).__name__ == "HttpCodec"]
    finally:
        gc.enable()

    assert left == []
    assert codecs == []


@pytest.mark.parametrize("parted", [False, True])
async def test_an_answer_that_nobody_reads_any_more_leaves_no_cycle_of_references(parted, exchange):
    """So many clients may vanish at once that their answers would fill the memory."""
    server = exchange.server()
    kept = []
    client, end = memory_stream_pair()

    async def parts():
        yield b"a"
        await trio.lowlevel.checkpoint()

    async def handler(request):
        await client.aclose()
        body = b"" if parted else b"a"
        response = Response(status=200, body=body, parts=parts() if parted else None)
        kept.append(weakref.ref(response))
        return response

    async def serve():
        try:
            await server.serve_connection(end)
        except* trio.BrokenResourceError:
            await trio.lowlevel.checkpoint()

    object.__setattr__(server, "handler", handler)
    gc.collect()
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await client.send_all(HEAD % 5 + b"hello")
        await wait_all_tasks_blocked()
        left = [found for each in kept if (found := each()) is not None]
    finally:
        gc.enable()

    assert left == []


class _Nothing:
    def append(self, request):
        """Nothing to do."""
