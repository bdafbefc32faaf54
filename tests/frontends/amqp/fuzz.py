"""
Conversations of real SDKs, broken at random, said to an endpoint in memory; everything is seeded.

Usage: python -m tests.fuzz amqp-conversations SECONDS
"""

import base64
import gc
import json
import random
import resource
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import attrs
import trio
import trio.testing

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.net.sniffing import Sniffer
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.events import ACCEPTED
from gateway.wire.amqp.sasl import Credentials
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import KEY, ROOT
from tests.fuzz.by_input import Rng, change_bytes

RECORDED: Final = json.loads((Path(__file__).parent / "recordings.json").read_text())
SAID: Final = [base64.b64decode(text) for text in RECORDED["said"]]
QUEUES: Final = ("properties", "scheduling", "settling", "peeking", "ruled")
SESSIONS: Final = ("sessions", "losing-sessions")
WITNESS: Final = EntityPath("witness")
HEADER: Final = 8  # bytes of a protocol's header
END: Final = 3600.0  # virtual seconds: every limit of time is over then


def pieces_of(said: bytes) -> list[bytes]:
    """The headers and frames of a conversation."""
    pieces, at = [], 0
    while at < len(said):
        size = HEADER if said[at : at + 4] == b"AMQP" else int.from_bytes(said[at : at + 4], "big")
        pieces.append(said[at : at + size])
        at += size
    return pieces


CONVERSATIONS: Final = [pieces_of(said) for said in SAID]


# The mutations of a conversation; each gets its pieces and changes them in place.


def in_bytes(pieces: list[bytes], rng: Rng) -> None:
    pieces[:] = [change_bytes(b"".join(pieces), rng)]


def in_a_body(pieces: list[bytes], rng: Rng) -> None:
    """The frame stays whole: its size is right."""
    at = rng.randrange(len(pieces))
    head, body = pieces[at][:HEADER], change_bytes(pieces[at][HEADER:], rng)
    pieces[at] = (len(body) + HEADER).to_bytes(4, "big") + head[4:] + body


def in_a_size(pieces: list[bytes], rng: Rng) -> None:
    at = rng.randrange(len(pieces))
    size = rng.choice((0, 7, 8, 9, 2**31, 2**32 - 1, rng.randrange(70_000)))
    pieces[at] = size.to_bytes(4, "big") + pieces[at][4:]


def in_a_channel(pieces: list[bytes], rng: Rng) -> None:
    at = rng.randrange(len(pieces))
    channel = rng.choice((0, 1, 2, 255, 256, 65535))
    pieces[at] = pieces[at][:6] + channel.to_bytes(2, "big") + pieces[at][8:]


def by_leaving_out(pieces: list[bytes], rng: Rng) -> None:
    del pieces[rng.randrange(len(pieces))]


def by_repeating(pieces: list[bytes], rng: Rng) -> None:
    at = rng.randrange(len(pieces))
    pieces[at:at] = [pieces[at]] * rng.choice((1, 2, 50))


def by_swapping(pieces: list[bytes], rng: Rng) -> None:
    one, other = rng.randrange(len(pieces)), rng.randrange(len(pieces))
    pieces[one], pieces[other] = pieces[other], pieces[one]


def by_another(pieces: list[bytes], rng: Rng) -> None:
    """Frames of another conversation come in between."""
    other = rng.choice(CONVERSATIONS)
    begin = rng.randrange(len(other))
    at = rng.randrange(len(pieces))
    pieces[at:at] = other[begin : begin + rng.choice((1, 3, 10))]


def by_ending(pieces: list[bytes], rng: Rng) -> None:
    del pieces[rng.randrange(len(pieces)) :]


MUTATIONS: Final[Sequence[Callable[[list[bytes], Rng], None]]] = (
    *(in_bytes, in_a_body, in_a_body, in_a_size, in_a_channel, by_leaving_out),
    *(by_repeating, by_swapping, by_another, by_ending),
)


def broken(rng: Rng) -> list[bytes]:
    pieces = list(rng.choice(CONVERSATIONS))
    for _ in range(rng.choice((1, 1, 2, 4))):
        if pieces:
            rng.choice(MUTATIONS)(pieces, rng)
    return pieces


@attrs.define(eq=False)
class Endpoint:
    """
    A port in memory, at the time of the recording, with the entities and messages of that time.
    """

    sniffer: Sniffer
    broker: MemoryBroker
    nursery: trio.Nursery

    async def say(self, pieces: Sequence[bytes], rng: Rng) -> None:
        """Return when the endpoint has ended the connection, which it must by itself."""
        client, end = trio.testing.memory_stream_pair()
        hangs_up = rng.random() < 0.5
        with trio.fail_after(END):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, client)
                nursery.start_soon(self._tell, client, pieces, hangs_up)
                await self._serve(end)
                nursery.cancel_scope.cancel()

    async def witness(self) -> Sdk:
        """Another client, which must not notice."""
        client, end = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.sniffer.serve_connection, end)
        sdk = Sdk.on(client, Credentials(mechanism="PLAIN", user=ROOT.name, password=KEY))
        self.nursery.start_soon(sdk.run)
        return await sdk.open()

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """As a listener does it: these errors are everyday life, all others are bugs."""
        try:
            await self.sniffer.serve_connection(stream)
        except* (trio.BrokenResourceError, trio.TooSlowError, ConnectionError):
            await trio.lowlevel.checkpoint()

    async def _hear(self, client: trio.abc.Stream) -> None:
        async for _ in client:
            await trio.lowlevel.checkpoint()

    async def _tell(
        self, client: trio.testing.MemorySendStream, pieces: Sequence[bytes], hangs_up: bool
    ) -> None:
        try:
            for piece in pieces:
                await client.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
            if hangs_up:
                await client.send_eof()
        except trio.BrokenResourceError:
            return  # the endpoint has closed: that is its right


async def open_endpoint(nursery: trio.Nursery) -> Endpoint:
    began, at = trio.current_time(), datetime.fromisoformat(RECORDED["at"])

    def wall_clock() -> datetime:
        # The clock stands nearly still: a recording stays valid however long the fuzzer runs.
        return at + timedelta(seconds=(trio.current_time() - began) % 600)

    broker = MemoryBroker(wall_clock, random.Random(1))
    for name in (*QUEUES, WITNESS.name):
        await broker.create_queue(EntityPath(name), QueueProperties())
    for name in SESSIONS:
        await broker.create_queue(EntityPath(name), QueueProperties(requires_session=True))
    leases = Leases(broker, wall_clock)
    await nursery.start(leases.run)
    # The emulator's key: the recording was made with it.
    authorizer = Authorizer((), wall_clock=wall_clock, accepts_well_known_key=True)
    frontend = AmqpFrontend(
        broker=broker, leases=leases, authorizer=authorizer, wall_clock=wall_clock
    )
    return Endpoint(Sniffer(amqp=frontend.serve_connection), broker, nursery)


async def exchange(sdk: Sdk) -> None:
    """The witness sends a message and gets it."""
    link = await sdk.sender(WITNESS.name)
    assert await sdk.send(link, Message(body=b"still here")) == ACCEPTED
    receiver = await sdk.receiver(WITNESS.name, credit=1)
    delivery = await sdk.delivery(receiver)
    assert await sdk.settle(delivery, ACCEPTED) == ACCEPTED
    for each in (link, receiver):
        sdk.engine.detach(each)


async def fuzz(seed: int, go_on: Callable[[int], bool]) -> int:
    """Say broken conversations while `go_on(n)`, and return how many; a crash raises, with n."""
    done = 0
    async with trio.open_nursery() as nursery:
        endpoint = await open_endpoint(nursery)
        while go_on(done):
            rng = random.Random(f"{seed} {done}")
            try:
                await endpoint.say(broken(rng), rng)
            except BaseException as error:
                error.add_note(f"seed {seed}, conversation {done}")
                raise
            if done % 50 == 0:
                witness = await endpoint.witness()
                await exchange(witness)
                witness.engine.close()
                await trio.testing.wait_all_tasks_blocked()
            done += 1
        nursery.cancel_scope.cancel()
    return done


def run(seed: int, go_on: Callable[[int], bool]) -> int:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(fuzz, seed, go_on, clock=clock)


def resident() -> int:
    """Bytes of this process in memory, at most so far."""
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
