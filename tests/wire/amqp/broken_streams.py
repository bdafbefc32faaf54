"""
The output of one engine, broken at random, is fed to another engine, which reacts at random.

The mutations are those of the fuzzer of the front end, on conversations of engines instead of SDKs.
"""

from typing import Any, Final

from gateway.wire.amqp.events import (
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    NewLink,
    Terminus,
    TransferReceived,
)
from tests.frontends.amqp.fuzz import MUTATIONS, pieces_of
from tests.wire.amqp.performative_fields import error_of
from tests.wire.amqp.two_engines import STATES, Engine, Kind, Rng, conversation
from tests.wire.amqp.watcher import Stream

STEPS: Final = 60
REFUSED: Final = AmqpError(condition="amqp:not-found")


def say(seed: object, kind: Kind, *, by_client: bool) -> list[bytes]:
    """The headers and frames of one end of a conversation."""
    talk = conversation(seed, kind, kind)
    talk.run(STEPS)
    said = b"".join(data for client, data in talk.said if client is by_client)
    return pieces_of(said)


def break_up(pieces: list[bytes], rng: Rng) -> list[bytes]:
    broken = list(pieces)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if broken:
            rng.choice(MUTATIONS)(broken, rng)
    return broken


def hear(seed: object, kind: Kind, pieces: list[bytes], rng: Rng, *, by_client: bool) -> bool:
    """
    Feed the pieces to an engine; True if the connection ended before the stream did.

    Raises:
        AssertionError: it ended without a reason, or isn't over at the end of the stream.
    """
    talk = conversation(seed, kind, kind)
    engine = talk.server.engine if by_client else talk.client.engine
    if not by_client:
        engine.open()
        _attach(engine, engine.begin(), rng)
    out, closed = Stream(), list[ConnectionClosed]()
    frames = []
    for piece in pieces:
        engine.feed(piece)
        for event in engine.events():
            _react(engine, event, rng)
            if isinstance(event, ConnectionClosed):
                closed.append(event)
        frames += list(out.feed(engine.data_to_send(65536)))
    early = bool(closed)
    engine.feed_eof()
    closed += [event for event in engine.events() if isinstance(event, ConnectionClosed)]
    while data := engine.data_to_send(65536):
        frames += list(out.feed(data))
    assert len(closed) == 1
    assert engine.finished
    reason = closed[0].error
    assert reason is None or reason.condition or early
    if frames and frames[-1].kind == "close" and reason is not None and not _closed(pieces):
        assert error_of(frames[-1].error) == reason.condition
    return early


def _closed(pieces: list[bytes]) -> bool:
    """True if a close may be among the pieces: any reason may then be the peer's."""
    return any(b"\x53\x18" in piece for piece in pieces)


def _attach(engine: Engine, session: Any, rng: Rng) -> None:
    for number in range(3):
        termini = {"source": Terminus(address="s"), "target": Terminus(address="t")}
        new = NewLink(name=f"client {number}", we_send=rng.random() < 0.5, **termini)
        engine.attach(session, new)


def _react(engine: Engine, event: object, rng: Rng) -> None:
    """As an application might: it takes most things, and refuses some."""
    if rng.random() < 0.1:
        return
    match event:
        case ConnectionOpened():
            engine.open(pads_frames=rng.random() < 0.2)
        case LinkAttached(link=link) if rng.random() < 0.8:
            engine.accept(link, max_message_size=rng.choice((0, 50)), lingers=rng.random() < 0.3)
            engine.grant(link, 10)
            engine.send(link, b"early", b"payload")
        case LinkAttached(link=link):
            engine.refuse(link, REFUSED)
        case LinkDetached(link=link):
            engine.answer_detach(link)
        case LinkFlow(link=link):
            engine.send(link, rng.randbytes(4), bytes(rng.choice((0, 100, 5000))))
            engine.drained(link)
        case TransferReceived(delivery=delivery):
            rng.choice((engine.settle, engine.update))(delivery, rng.choice(STATES))
        case DispositionReceived(delivery=delivery):
            engine.settle(delivery)
