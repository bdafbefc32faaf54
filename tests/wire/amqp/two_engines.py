"""
Two engines that do anything that they may, in any order, over a stream that is cut anywhere.
Everything follows from a seed. `Conversation.run` checks that the actions of one end are the events
of the other; a `Watcher` at each end checks the bytes against the specification.
"""

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import attrs

from gateway.wire.amqp.engine import Engine as OwnEngine
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    Modified,
    NewLink,
    ReceiverSettles,
    Rejected,
    SenderSettles,
    SessionClosed,
    SessionOpened,
    Terminus,
    TransferReceived,
)
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import OK, REFUSED, Credentials, SaslClient, SaslServer
from tests.wire.amqp.proton.engine import Engine as ProtonEngine
from tests.wire.amqp.watcher import Watcher

ERROR: Final = AmqpError(condition="amqp:internal-error", description="at random", info={"n": 1})
STATES: Final = (ACCEPTED, RELEASED, Rejected(error=ERROR), Modified(delivery_failed=True))
SIZES: Final = (0, 1, 100, 100, 100, 700, 3000, 70_000)
BATCH: Final = 0x80013700
IDLE: Final = 60.0  # seconds
ROUNDS: Final = 2000  # at most, until everything that was said is heard

Engine = OwnEngine | ProtonEngine
Rng = random.Random


@attrs.define(eq=False)
class Message:
    tag: bytes
    payload: bytes
    format: int
    settled: bool  # when it was sent
    id: int
    state: Any = None  # the outcome, once it is known
    over: bool = False  # settled at this end


@attrs.define(eq=False)
class Link:
    """An end of a link."""

    id: int
    name: str
    session: int
    we_send: bool
    settles: SenderSettles = SenderSettles.MIXED
    second: bool = False  # the receiver settles after the sender
    answered: bool = False  # both have attached
    accepted: bool | None = None  # what we have answered; None: it is our attach, or not yet
    lingers: bool = False
    messages: list[Message] = attrs.field(factory=list)  # that were sent, or were received
    granted: int = 0
    draining: bool = False  # we have asked for it, or are asked
    gone: bool = False


@attrs.define(eq=False)
class End:
    """An engine, and the state that its application expects."""

    name: str
    engine: Engine
    rng: Rng
    lenient: bool  # the engine is Proton's
    cautious: bool  # one of both is
    watcher: Watcher = attrs.field(init=False)
    outgoing: bytearray = attrs.field(factory=bytearray)  # taken, and not yet heard
    sessions: list[int] = attrs.field(factory=list)
    begun: set[int] = attrs.field(factory=set)  # sessions that both have begun
    links: dict[int, Link] = attrs.field(factory=dict)
    detached: list[int] = attrs.field(factory=list)  # lingering ones, which wait for our answer
    past: list[Link] = attrs.field(factory=list)
    deliveries: dict[int, tuple[Link, Message]] = attrs.field(factory=dict)  # unsettled
    opened: bool = False
    closed: list[ConnectionClosed] = attrs.field(factory=list)
    now: float = 1000.0
    numbers: Iterator[int] = attrs.field(factory=count)  # of the links that it attaches

    tags: Iterator[int] = attrs.field(factory=count)

    def __attrs_post_init__(self) -> None:
        self.watcher = Watcher(self.lenient)

    # ------------------------------------------------------------------ bytes

    def take(self, most: int) -> None:
        data = self.engine.data_to_send(most)
        self.watcher.writes(data)
        self.outgoing += data

    def hear(self, data: bytes) -> None:
        # Before it knows more, all that it has written is seen to be right by what it knew.
        while (before := len(self.outgoing)) is not None:
            self.take(65536)
            if len(self.outgoing) == before:
                break
        self.watcher.hears(data)
        self.engine.feed(data)
        self.look()

    def look(self) -> None:
        for event in self.engine.events():
            _HEARD[type(event)](self, event)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        deadline = self.engine.tick(self.now)
        assert deadline > self.now
        self.look()

    # ------------------------------------------------------------------ events

    def _opened(self, _: ConnectionOpened) -> None:
        assert not self.opened
        self.opened = True
        self.engine.open()

    def _closed(self, event: ConnectionClosed) -> None:
        self.closed.append(event)

    def _session_opened(self, event: SessionOpened) -> None:
        self.begun.add(event.session)
        if event.session not in self.sessions:
            self.sessions.append(event.session)

    def _session_closed(self, event: SessionClosed) -> None:
        assert event.session in self.sessions
        self.sessions.remove(event.session)
        assert all(link.session != event.session for link in self.links.values())

    def _attached(self, event: LinkAttached) -> None:
        link = self.links.get(event.link)
        if link is None:
            assert event.session in self.sessions
            link = Link(event.link, event.name, event.session, event.we_send)
            link.accepted = False
            self.links[event.link] = link
        else:
            assert not link.answered, "an attach is answered once"
            assert (event.name, event.we_send) == (link.name, link.we_send)
            link.answered = True
        link.settles = event.sender_settles
        link.second = event.receiver_settles is ReceiverSettles.SECOND

    def _detached(self, event: LinkDetached) -> None:
        link = self.links.get(event.link)
        if link is None:
            return  # the awaited answer to our own detach
        if link.lingers and link.session in self.sessions:
            self.detached.append(event.link)
        self._forget(link)

    def _flow(self, event: LinkFlow) -> None:
        link = self.links[event.link]
        assert link.we_send
        link.draining = event.drain

    def _drained(self, event: LinkDrained) -> None:
        link = self.links[event.link]
        assert not link.we_send
        link.draining = False

    def _transfer(self, event: TransferReceived) -> None:
        link = self.links[event.link]
        assert not link.we_send
        message = Message(
            event.tag, event.payload, event.message_format, event.settled, event.delivery
        )
        link.messages.append(message)
        assert len(link.messages) <= link.granted, "more messages than credit"
        if not event.settled:
            self.deliveries[event.delivery] = link, message

    def _disposition(self, event: DispositionReceived) -> None:
        link, message = self.deliveries[event.delivery]
        assert link.id == event.link
        if event.state is not None:
            assert message.state in (None, event.state), "an outcome is changed"
            message.state = event.state
        if event.settled:
            message.over = True
            del self.deliveries[event.delivery]

    def _forget(self, link: Link) -> None:
        del self.links[link.id]
        link.gone = True
        self.past.append(link)
        for delivery, (owner, _) in list(self.deliveries.items()):
            if owner is link:
                del self.deliveries[delivery]

    # ------------------------------------------------------------------ what it may do

    def begin(self) -> None:
        if len(self.sessions) < 3:
            self.sessions.append(self.engine.begin())

    def attach(self) -> None:
        if not self.sessions or len(self.links) > 8:
            return
        session = self.rng.choice(self.sessions)
        we_send = self.rng.random() < 0.5
        settles = self.rng.choice(list(SenderSettles))
        second = self.rng.random() < 0.3
        new = NewLink(
            name=f"{self.name} {next(self.numbers)}",
            we_send=we_send,
            source=Terminus(address="source"),
            target=Terminus(address="target"),
            sender_settles=settles,
            receiver_settles=ReceiverSettles(int(second)),
        )
        link = self.engine.attach(session, new)
        assert link is not None
        self.links[link] = Link(link, new.name, session, we_send, settles, second)

    def answer(self) -> None:
        for link in self._where(lambda link: link.accepted is False):
            if self.rng.random() < 0.9:
                link.lingers = self.rng.random() < 0.3
                link.accepted = link.answered = True
                self.engine.accept(link.id, lingers=link.lingers)
            else:
                self.engine.refuse(link.id, ERROR)
                self._forget(link)
            return

    def answer_detach(self) -> None:
        if self.detached:
            self.engine.answer_detach(self.detached.pop(0))

    def send(self) -> None:
        for link in self._where(lambda link: link.we_send and link.answered):
            for _ in range(self.rng.choice((1, 1, 3, 20))):
                self._send(link)
            return

    def _send(self, link: Link) -> None:
        settled = {SenderSettles.SETTLED: True, SenderSettles.UNSETTLED: False}.get(
            link.settles, self.rng.random() < 0.5
        )
        number = len(link.messages)
        # The tests around Proton find a message's format by its tag, which must differ on all
        # links.
        tag = (next(self.tags) if self.lenient else number).to_bytes(self.rng.choice((4, 16, 32)))
        size = self.rng.choice(SIZES)
        payload = (b"%d " % number * (size // 2 + 1))[:size]
        message_format = self.rng.choice((0, 0, 0, BATCH, 1))
        delivery = self.engine.send(
            link.id, tag, payload, settled=settled, message_format=message_format
        )
        assert delivery is not None
        message = Message(tag, payload, message_format, settled, delivery, over=settled)
        link.messages.append(message)
        if not settled:
            self.deliveries[delivery] = link, message

    def grant(self) -> None:
        # As a rule, after both have attached; before, as some clients do.
        for link in self._where(lambda link: not link.we_send):
            if link.accepted is not False and not link.draining:
                self._grant(link, self.rng.choice((1, 2, 10, 100)))
            return

    def grant_more(self, link: Link) -> bool:
        """
        Grant credit if there is little; True if there was. A draining link is left alone until it
        is dry.
        """
        credit = self.engine.credit(link.id)
        if link.draining and credit > 0:
            return False
        link.draining = False
        if credit < 50:
            self._grant(link, 100)
        return credit < 50

    def _grant(self, link: Link, credit: int) -> None:
        link.granted += credit
        self.engine.grant(link.id, credit)

    def drain(self) -> None:
        for link in self._where(lambda link: not link.we_send and link.answered):
            if self.engine.credit(link.id) > 0:
                link.draining = True
                self.engine.drain(link.id)
            return

    def drained(self) -> None:
        for link in self._where(lambda link: link.we_send and link.draining):
            if link.answered:
                self.engine.drained(link.id)
                link.draining = False
            return

    def settle(self) -> None:
        """Settle a received delivery; or confirm an outcome that the peer asked for."""
        for delivery in self._some(self.deliveries):
            link, message = self.deliveries[delivery]
            if link.we_send and message.state is None:
                continue
            if link.second and not link.we_send:
                if message.state is None:
                    message.state = self.rng.choice(STATES)
                    self.engine.update(delivery, message.state)
                continue
            if not link.we_send:
                message.state = self.rng.choice(STATES)
            message.over = True
            del self.deliveries[delivery]
            self.engine.settle(delivery, message.state)

    def detach(self) -> None:
        for link in self._where(lambda link: link.accepted is not False):
            if self.cautious and not link.answered:
                continue  # Proton takes later frames for another link's
            error = self.rng.choice((None, None, ERROR))
            awaited, closed = self.rng.random() < 0.5, self.rng.random() < 0.8
            self.engine.detach(link.id, error, closed=closed, awaited=awaited)
            self._forget(link)
            return

    def end(self) -> None:
        if not self.sessions:
            return
        session = self.rng.choice(self.sessions)
        if self.cautious and session not in self.begun:
            return  # Proton doesn't answer such a begin, or answers by one that is no answer
        self.engine.end(session, self.rng.choice((None, ERROR)))
        self.sessions.remove(session)
        for link in [each for each in self.links.values() if each.session == session]:
            self._forget(link)

    def use_void_ids(self) -> None:
        """Call the engine with the ids of ended links, and check that nothing happens."""
        for link in self._some(self.past):
            assert self.engine.send(link.id, b"t", b"") is None
            self.engine.grant(link.id, 1)
            self.engine.drained(link.id)
            self.engine.detach(link.id)
            assert self.engine.credit(link.id) == 0
            for message in link.messages[:2]:
                self.engine.settle(message.id, ACCEPTED)

    def wait(self) -> None:
        self.tick(self.rng.choice((0.0, 0.01, 0.3)))

    def _where(self, fits: Callable[[Link], bool]) -> Iterator[Link]:
        found = [link for link in self.links.values() if fits(link)]
        self.rng.shuffle(found)
        yield from found

    def _some(self, of: Any) -> list[Any]:
        found = list(of)
        return self.rng.sample(found, min(len(found), self.rng.choice((1, 3, 30))))


_HEARD: Final[dict[type, Callable[[End, Any], None]]] = {
    ConnectionOpened: End._opened,
    ConnectionClosed: End._closed,
    SessionOpened: End._session_opened,
    SessionClosed: End._session_closed,
    LinkAttached: End._attached,
    LinkDetached: End._detached,
    LinkFlow: End._flow,
    LinkDrained: End._drained,
    TransferReceived: End._transfer,
    DispositionReceived: End._disposition,
}

# The actions of an end, and their relative frequency.
ACTIONS: Final[tuple[tuple[Callable[[End], None], int], ...]] = (
    (End.attach, 6),
    (End.answer, 12),
    (End.answer_detach, 6),
    (End.send, 25),
    (End.grant, 15),
    (End.drain, 4),
    (End.drained, 8),
    (End.settle, 25),
    (End.detach, 3),
    (End.use_void_ids, 2),
    (End.wait, 3),
)
RARE: Final = ((End.begin, 2), (End.end, 1))


@attrs.define(eq=False)
class Conversation:
    client: End
    server: End
    rng: Rng
    said: list[tuple[bool, bytes]] = attrs.field(factory=list)  # (by the client, bytes), as heard

    @property
    def ends(self) -> tuple[End, End]:
        return self.client, self.server

    def run(self, steps: int) -> None:
        """
        Raises:
            AssertionError: an event of an end has no action of the other, or an end broke the
                protocol.
        """
        self.client.engine.open()
        self.client.begin()
        for _ in range(steps):
            self._step()
        self.come_to_rest()
        self._check()
        self._close()

    def _step(self) -> None:
        if self.rng.random() < 0.5:
            self._move()
            return
        end = self.rng.choice(self.ends)
        if end.closed or not (end.opened or end is self.client):
            return
        client_only = RARE if end is self.client else ()
        actions, weights = zip(*ACTIONS, *client_only, strict=True)
        self.rng.choices(actions, weights)[0](end)

    def _move(self) -> None:
        """Take bytes of one end, or let the other end hear some; cut anywhere."""
        end, other = self.rng.sample(self.ends, 2)
        if self.rng.random() < 0.5:
            end.take(self.rng.choice((1, 100, 65536)))
        elif end.outgoing:
            size = self.rng.choice((1, 7, 8, 100, 10_000, len(end.outgoing)))
            self._hear(end, other, size)

    def _hear(self, end: End, other: End, size: int) -> None:
        data = bytes(end.outgoing[:size])
        del end.outgoing[:size]
        self.said.append((end is self.client, data))
        other.hear(data)

    def pump(self) -> bool:
        """Everything that was written is heard; False if there was nothing."""
        moved = False
        for end, other in ((self.client, self.server), (self.server, self.client)):
            end.take(10**9)
            if end.outgoing:
                moved = True
                self._hear(end, other, len(end.outgoing))
        return moved

    def come_to_rest(self) -> None:
        """Exchange bytes until there is nothing to do for either end."""
        for _ in range(ROUNDS):
            moved = self.pump()
            for end in self.ends:
                for link in list(end.links.values()):
                    if link.accepted is False:
                        end.answer()
                    elif not link.we_send and link.answered:
                        moved |= end.grant_more(link)
                end.drained()
                end.answer_detach()
                end.settle()
            waiting = any(self._waiting(end) for end in self.ends)
            if not moved and not waiting and not self.pump():
                return
        raise AssertionError(f"no rest: {[self._waiting(end) for end in self.ends]}")

    def _waiting(self, end: End) -> list[str]:
        """
        Return the names of the actions that an end can still do by itself, or of the events that it
        lacks.
        """
        links = [each.name for each in end.links.values() if not each.answered]
        drained = [each.name for each in end.links.values() if each.draining]
        unsettled = [link.name for link, _ in end.deliveries.values()]
        return links + drained + unsettled + [str(each) for each in end.detached]

    def _check(self) -> None:
        for end in self.ends:
            assert end.closed == []
            assert end.watcher.into.whole
            assert end.engine.unsettled == 0
            # Proton counts messages that waited for the credit of links that are gone.
            assert end.lenient or end.engine.unsent == 0
        mine, theirs = ({link.name: link for link in end.links.values()} for end in self.ends)
        assert mine.keys() == theirs.keys()
        assert len(self.client.sessions) == len(self.server.sessions)
        all_mine = mine | {link.name: link for link in self.client.past}
        all_theirs = theirs | {link.name: link for link in self.server.past}
        for name in all_mine.keys() & all_theirs.keys():
            pair = all_mine[name], all_theirs[name]
            sent, received = pair if pair[0].we_send else pair[::-1]
            assert sent.we_send is not received.we_send
            _compare(sent.messages, received.messages, all_of_it=name in mine)

    def _close(self) -> None:
        for _ in range(6):  # a connection that has nothing to say lives on
            for end in self.ends:
                end.tick(IDLE / 4)
            self.pump()
        closing = self.rng.choice((self.client, self.server))
        error = self.rng.choice((None, ERROR))
        closing.engine.close(error)
        if both := self.rng.random() < 0.3:
            for end in self.ends:
                end.engine.close()
        while self.pump():
            pass
        for end in self.ends:
            assert len(end.closed) == 1
            assert end.engine.finished
            assert end.watcher.closed
            assert end.watcher.out.whole
            assert end.engine.tick(end.now + 1) > end.now
            if not both:
                assert end.closed[0].error == (None if end is closing else error)


def _compare(sent: list[Message], received: list[Message], *, all_of_it: bool) -> None:
    """Each message arrived once and in order; of a link that has ended, maybe not the last ones."""
    assert len(received) <= len(sent)
    assert not all_of_it or len(received) == len(sent)
    for mine, theirs in zip(sent, received, strict=False):
        assert (mine.tag, mine.format, mine.settled) == (theirs.tag, theirs.format, theirs.settled)
        assert mine.payload == theirs.payload
        if all_of_it and not mine.settled:
            assert (mine.over, theirs.over) == (True, True)
            assert mine.state == theirs.state


@attrs.frozen
class Kind:
    """An implementation; `lenient`: it is Proton, whose few faults are known."""

    make: Callable[..., Engine]
    lenient: bool = False


OWN: Final = Kind(OwnEngine)
PROTON: Final = Kind(ProtonEngine, lenient=True)
KINDS: Final = ((OWN, OWN), (OWN, PROTON), (PROTON, OWN))


def conversation(seed: object, client: Kind, server: Kind) -> Conversation:
    """Two engines of these kinds, with limits at random."""
    rng = Rng(str(seed))
    cautious = client.lenient or server.lenient

    def options(name: str) -> EngineOptions:
        return EngineOptions(
            container_id=name,
            max_frame_size=rng.choice((600, 1000, 4096, 65536)),
            channel_max=rng.choice((7, 255)),
            idle_timeout=rng.choice((0.0, IDLE)),
        )

    with_sasl = rng.random() < 0.5
    credentials = Credentials(mechanism="PLAIN", user="u", password="p")
    asking = SaslClient(credentials) if with_sasl else None
    serving = (
        SaslServer(lambda found: OK if found == credentials else REFUSED) if with_sasl else None
    )
    ends = [
        End(
            "client",
            client.make(options("client"), sasl=asking),
            Rng(f"{seed} client"),
            client.lenient,
            cautious,
        ),
        End(
            "server",
            server.make(options("server"), sasl=serving),
            Rng(f"{seed} server"),
            server.lenient,
            cautious,
        ),
    ]
    return Conversation(*ends, rng)
