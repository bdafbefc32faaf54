"""The errors with which an engine ended a connection or a session, as its peer sees them."""

from gateway.wire.amqp.events import ConnectionClosed
from tests.wire.amqp.performative_fields import error_of
from tests.wire.amqp.raw_peer import RawPeer, of_kind

FRAMING_ERROR = "amqp:connection:framing-error"
DECODE_ERROR = "amqp:decode-error"


def closed_with(peer: RawPeer) -> str | None:
    """The condition of the close frame, which is the last one, and of the event."""
    (told,) = peer.told(ConnectionClosed)
    last = peer.frames[-1]
    assert last.kind == "close"
    assert told.error is not None
    assert told.error.condition == error_of(last.error)
    assert peer.engine.finished
    return error_of(last.error)


def ended_with(peer: RawPeer) -> str | None:
    """The condition of the only end frame; the connection goes on."""
    (end,) = of_kind(peer.frames, "end")
    assert not of_kind(peer.frames, "close")
    assert not peer.told(ConnectionClosed)
    return error_of(end.error)
