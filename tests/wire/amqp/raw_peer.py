"""A peer of an engine that spells out each frame it sends, and takes apart each that it gets."""

from collections.abc import Callable
from typing import Any, Self

import attrs

from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import Event, LinkAttached, NewLink, SessionId, Terminus
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.performatives import described
from tests.wire.amqp.performative_fields import AMQP_HEADER, Frame, frame, parse

SOURCE, TARGET = described(0x28, ["source"]), described(0x29, ["target"])
ACCEPTED = described(0x24, [])


def new_engine(**limits: Any) -> Engine:
    return Engine(EngineOptions(container_id="engine", **limits), sasl=None)


@attrs.define(eq=False)
class RawPeer:
    engine: Engine
    frames: list[Frame] = attrs.field(factory=list)  # all that the engine has written
    events: list[Event] = attrs.field(factory=list)  # all that the engine has told
    begun: bytes = b""  # the engine's protocol header
    _rest: bytes = b""

    def say(self, *frames: bytes) -> list[Frame]:
        """Send these bytes; return the frames that the engine has written since the last time."""
        self.engine.feed(b"".join(frames))
        self.events += self.engine.events()
        return self.hear()

    def send(
        self, kind: str, /, *, channel: int = 0, payload: bytes = b"", **fields: Any
    ) -> list[Frame]:
        return self.say(frame(kind, channel=channel, payload=payload, **fields))

    def hear(self) -> list[Frame]:
        data = self._rest + b"".join(iter(lambda: self.engine.data_to_send(65536), b""))
        if len(self.begun) < 8:
            self.begun, data = data[:8], data[8:]
        frames, self._rest = parse(data)
        self.frames += frames
        return frames

    def tick(self, now: float) -> list[Frame]:
        self.engine.tick(now)
        self.events += self.engine.events()
        return self.hear()

    def told(self, kind: type) -> list[Any]:
        """The events of this kind, of those since the last call; all others are forgotten."""
        found = [event for event in self.events if isinstance(event, kind)]
        self.events.clear()
        return found

    # ------------------------------------------------------------------ how far it got

    def opened(self, **fields: Any) -> Self:
        """Both have exchanged headers and opens; the peer is the client."""
        self.say(AMQP_HEADER, frame("open", **{"container_id": "raw"} | fields))
        self.engine.open()
        self.hear()
        return self

    def session(self, *, channel: int = 0, **fields: Any) -> SessionId:
        """A session that the peer has begun."""
        windows = {"next_outgoing_id": 0, "incoming_window": 1000, "outgoing_window": 1000}
        before = len(self.events)
        self.send("begin", channel=channel, **windows | fields)
        (session,) = {each.session for each in self.events[before:] if hasattr(each, "session")}
        return session

    def link(
        self,
        *,
        sends: bool,
        handle: int = 0,
        channel: int = 0,
        accept: Callable[[LinkAttached], object] | None = None,
        **fields: Any,
    ) -> LinkAttached:
        """A link that the peer has attached, and the engine accepted; the peer `sends` on it."""
        usual = {"name": f"link {handle}", "source": SOURCE, "target": TARGET}
        if sends:
            usual["initial_delivery_count"] = 0
        self.told(LinkAttached)
        self.send("attach", channel=channel, handle=handle, role=not sends, **usual | fields)
        (attached,) = self.told(LinkAttached)
        if accept is None:
            self.engine.accept(attached.link)
        else:
            accept(attached)
        self.hear()
        return attached

    def flow(self, *, channel: int = 0, **fields: Any) -> list[Frame]:
        windows = {
            "next_incoming_id": 0,
            "incoming_window": 1000,
            "next_outgoing_id": 0,
            "outgoing_window": 1000,
        }
        return self.send("flow", channel=channel, **windows | fields)

    def credit(self, credit: int, *, handle: int = 0, **fields: Any) -> list[Frame]:
        return self.flow(handle=handle, link_credit=credit, **{"delivery_count": 0} | fields)

    def transfer(self, delivery: int, *, handle: int = 0, **fields: Any) -> list[Frame]:
        usual = {"delivery_tag": b"%d" % delivery, "message_format": 0, "payload": b"payload"}
        return self.send("transfer", handle=handle, delivery_id=delivery, **usual | fields)


def server(**limits: Any) -> RawPeer:
    """A peer that is the client of an engine, which waits for its header."""
    return RawPeer(new_engine(**limits))


def client(**limits: Any) -> RawPeer:
    """A peer that is the server of an engine, which has opened."""
    peer = RawPeer(new_engine(**limits))
    peer.engine.open()
    peer.hear()
    return peer


def new_link(name: str = "link", *, we_send: bool = True, **fields: Any) -> NewLink:
    termini = {"source": Terminus(address="source"), "target": Terminus(address="target")}
    return NewLink(name=name, we_send=we_send, **termini | fields)


def of_kind(frames: list[Frame], *kinds: str) -> list[Frame]:
    return [each for each in frames if each.kind in kinds]
