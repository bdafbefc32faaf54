"""Parts of the tests of frames that other tests need, too."""

from gateway.domain.message import Kind, Typed
from gateway.wire.amqp.events import (
    LinkAttached,
)
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.performatives import described, uint
from gateway.wire.amqp.types import decode_at, encode
from tests.wire.amqp.pair_of_engines import new_server, take_all

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION = range(0x10, 0x16)
DETACH, END, CLOSE = 0x16, 0x17, 0x18
NULLS = [None, None]
SOURCE, TARGET = described(0x28, ["s"]), described(0x29, ["t"])


def frame(code, fields, payload=b"", channel=0, kind=0):
    """Of AMQP; with the `kind` 1 of SASL."""
    body = encode(described(code, fields)) + payload
    return (len(body) + 8).to_bytes(4) + bytes((2, kind)) + channel.to_bytes(2) + body


def split(data):
    """The (code, fields, payload) of each frame."""
    frames = []
    at = 8 if data.startswith(AMQP_HEADER) else 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        value, end = decode_at(data, at + 8)
        frames.append((value.descriptor.value, value.value, data[end : at + size]))
        at += size
    return frames


def anonymous_server(**limits):
    """A server that a client of raw frames has got past SASL."""
    server = new_server(**limits)
    init = encode(described(0x41, [Typed(Kind.SYMBOL, "ANONYMOUS"), b"", None]))
    server.feed(b"AMQP\x03\x01\x00\x00" + (len(init) + 8).to_bytes(4) + b"\x02\x01\0\0" + init)
    take_all(server)
    return server


def sending_to(server):
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]))
    server.open()
    server.feed(
        frame(BEGIN, [None, uint(0), uint(100), uint(100)])
        + frame(
            ATTACH,
            ["link", uint(0), False, *NULLS, SOURCE, TARGET, *NULLS, uint(0)],
        )
    )
    (link,) = [each.link for each in server.events() if isinstance(each, LinkAttached)]
    server.accept(link)
    server.grant(link, 100)
    take_all(server)
    return server


def transfer(delivery_id, *, handle=0, tag=b"t", more=False, fields=(), payload=b"payload"):
    performative = [uint(handle), uint(delivery_id), tag, uint(0), False, more, *fields]
    return frame(TRANSFER, performative, payload)
