"""Frames in any order are answered, or end the connection: the engine is never silent."""

import random
from collections import Counter
from collections.abc import Iterator

import attrs
import pytest

from gateway.domain.message import Kind, Typed
from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import (
    ACCEPTED,
    AmqpError,
    ConnectionClosed,
    DeliveryId,
    LinkAttached,
    LinkId,
    SessionId,
    SessionOpened,
    TransferReceived,
)
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.performatives import described, uint
from tests.wire.amqp.frames import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    NULLS,
    OPEN,
    SOURCE,
    TARGET,
    TRANSFER,
    anonymous_server,
    frame,
    split,
)
from tests.wire.amqp.pair_of_engines import take_all

NOT_FOUND = AmqpError(condition="amqp:not-found")
STATES = [None, *(described(code, []) for code in (0x24, 0x25, 0x26, 0x27))]


@attrs.define(eq=False)
class Peer:
    """Sends frames that the protocol mostly allows, and remembers its links and deliveries."""

    rng: random.Random
    links: dict[tuple[int, int], bool] = attrs.field(factory=dict)  # whether the peer receives
    channels: set[int] = attrs.field(factory=set)
    unfinished: dict[tuple[int, int], int] = attrs.field(factory=dict)  # delivery ids
    sent: Counter[int] = attrs.field(factory=Counter)  # transfers, by channel
    said: int = 0

    def begin(self) -> bytes:
        free = [each for each in range(3) if each not in self.channels]
        channel = self.rng.choice(free or [0])
        self.channels.add(channel)
        self.sent[channel] = 0
        handle_max = self.rng.choice([3, 255])
        return frame(BEGIN, [None, uint(0), uint(100), uint(100), uint(handle_max)], b"", channel)

    def attach(self) -> bytes:
        places = [(channel, handle) for channel in self.channels for handle in range(4)]
        free = [each for each in places if each not in self.links]
        channel, handle = self.rng.choice(free or [(0, 0)])
        self.links[channel, handle] = receives = self.rng.random() < 0.5
        self.said += 1
        modes = [Typed(Kind.UBYTE, self.rng.randrange(3)), Typed(Kind.UBYTE, self.rng.randrange(2))]
        ends = [SOURCE, TARGET, *NULLS, uint(0)]
        return frame(ATTACH, [str(self.said), uint(handle), receives, *modes, *ends], b"", channel)

    def flow(self) -> bytes:
        channel, handle = self._link()
        credit, drain = uint(self.rng.choice([0, 1, 10, 2**32 - 1])), self.rng.random() < 0.3
        windows = [uint(0), uint(self.rng.choice([0, 100])), uint(self.sent[channel]), uint(100)]
        return frame(FLOW, [*windows, uint(handle), uint(0), credit, None, drain], b"", channel)

    def transfer(self) -> bytes:
        channel, handle = self._link(receives=False)
        self.said += 1
        self.sent[channel] += 1
        delivery = self.unfinished.pop((channel, handle), self.said)
        more = self.rng.random() < 0.2
        if more:
            self.unfinished[channel, handle] = delivery
        fields = [uint(handle), uint(delivery), b"%d" % delivery, uint(0), delivery % 3 == 0, more]
        return frame(TRANSFER, fields, bytes(self.rng.choice([0, 10, 200])), channel)

    def disposition(self) -> bytes:
        first, settled = self.rng.randrange(4), self.rng.random() < 0.5
        span = [uint(first), uint(first + self.rng.randrange(10))]
        role, state = self.rng.random() < 0.8, self.rng.choice(STATES)
        channel = self.rng.choice([*self.channels] or [0])
        return frame(DISPOSITION, [role, *span, settled, state], b"", channel)

    def detach(self) -> bytes:
        channel, handle = self._link()
        self.links.pop((channel, handle), None)
        self.unfinished.pop((channel, handle), None)
        return frame(DETACH, [uint(handle), self.rng.random() < 0.5], b"", channel)

    def end(self) -> bytes:
        channel = self.rng.choice([*self.channels] or [0])
        self.channels.discard(channel)
        for key in [each for each in self.links if each[0] == channel]:
            del self.links[key]
            self.unfinished.pop(key, None)
        return frame(END, [], b"", channel)

    def _link(self, *, receives: bool | None = None) -> tuple[int, int]:
        return self.rng.choice(self._fitting(receives) or [(0, 0)])

    def _fitting(self, receives: bool | None) -> list[tuple[int, int]]:
        return [key for key, each in self.links.items() if receives in (None, each)]

    def say(self) -> bytes:
        kinds = [self.begin, self.attach, self.flow, self.transfer, self.disposition, self.detach]
        (kind,) = self.rng.choices([*kinds, self.end], [1, 20, 20, 30, 10, 10, 1])
        lacks = kind == self.transfer and not self._fitting(receives=False)
        if (lacks or not self.links) and self.rng.random() < 0.99:
            kind = self.attach
        return kind()


@attrs.define(eq=False)
class Server:
    """Answers at random, with ids that may be void."""

    rng: random.Random
    engine: Engine = attrs.field(factory=anonymous_server)
    links: list[LinkId] = attrs.field(factory=lambda: [LinkId(0)])
    deliveries: list[DeliveryId] = attrs.field(factory=lambda: [DeliveryId(0)])
    sessions: list[SessionId] = attrs.field(factory=lambda: [SessionId(0)])
    closed: ConnectionClosed | None = None

    def hear(self, data: bytes) -> None:
        self.engine.feed(data)
        for event in self.engine.events():
            match event:
                case LinkAttached(link=link):
                    self.links.append(link)
                    self._answer(link)
                case TransferReceived(delivery=delivery):
                    self.deliveries.append(delivery)
                case SessionOpened(session=session):
                    self.sessions.append(session)
                case ConnectionClosed():
                    self.closed = event

    def _answer(self, link: LinkId) -> None:
        if self.rng.random() < 0.8:
            most, lingers = self.rng.choice([0, 100]), self.rng.random() < 0.5
            self.engine.accept(link, max_message_size=most, lingers=lingers)
            self.engine.grant(link, 10)
        else:
            self.engine.refuse(link, NOT_FOUND)

    def act(self) -> None:
        engine, link = self.engine, self.rng.choice(self.links)
        acts = [
            lambda: engine.send(link, self.rng.randbytes(8), bytes(100)),
            lambda: engine.send(link, self.rng.randbytes(8), bytes(1000), settled=True),
            lambda: engine.settle(self.rng.choice(self.deliveries), ACCEPTED),
            lambda: engine.detach(link, self.rng.choice([None, NOT_FOUND])),
            lambda: engine.detach(link, closed=self.rng.random() < 0.5, awaited=True),
            lambda: engine.answer_detach(link),
            lambda: engine.drained(link),
            lambda: engine.end(self.rng.choice(self.sessions)),
        ]
        self.rng.choices(acts, [20, 20, 30, 5, 5, 20, 19, 1])[0]()


def conversation(rng: random.Random) -> Iterator[Server]:
    server, peer = Server(rng), Peer(rng)
    server.hear(AMQP_HEADER + frame(OPEN, ["raw"]))
    server.engine.open()
    server.hear(peer.begin() + peer.begin())
    for _ in range(rng.randrange(60)):
        server.hear(b"".join(peer.say() for _ in range(rng.choice([1, 1, 3]))))
        if server.closed is not None:
            break
        server.act()
        if rng.random() < 0.7:
            take_all(server.engine)
        yield server
    yield server


@pytest.mark.parametrize("seed", range(10))
def test_each_frame_is_answered_or_ends_the_connection(seed, capfd):
    rng, ends = random.Random(seed), Counter[bool]()
    for _ in range(40):
        *_, server = conversation(rng)
        take_all(server.engine)
        closed = server.closed is not None
        server.hear(frame(BEGIN, [None, uint(0), uint(9), uint(9)], b"", 9))
        server.hear(frame(ATTACH, ["last", uint(9), True, *NULLS, SOURCE, TARGET], b"", 9))
        codes = [code for code, *_ in split(take_all(server.engine))]
        ends[closed] += 1

        assert server.engine.finished is closed
        assert codes[:2] == ([] if closed else [BEGIN, ATTACH])

    assert min(ends[True], ends[False]) > 4
    assert capfd.readouterr() == ("", "")
