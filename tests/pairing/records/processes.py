"""Gateways and syphons of one pair, each with its orders, as processes that can be ended alone."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import BrokerError
from gateway.domain.health.process_records import GatewayRecord, ProcessRecord, SyphonRecord
from gateway.domain.message import Delivery, Message
from gateway.domain.operators.control import Action, ControlAnswer, Operator, Order
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import required
from gateway.pairing.control import Control
from gateway.pairing.pair import Pair
from gateway.pairing.records.following import OrderFollower
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.records.writer import FIGURES, USUAL, RecordWriter
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker
from tests.pairing.harness import LABEL, Harness

KEYS = (EnvelopeKey(id="k", key=b"k" * 32),)
ANN = Operator(name="ann", peer="127.0.0.1:5000")


@attrs.define(eq=False)
class Faulty(ForwardingBroker):
    """`inner`, of which some methods fail; or all hang."""

    _inner: Broker
    errors: dict[str, BrokerError] = attrs.field(factory=dict)
    hangs: bool = False

    @property
    def inner(self) -> Broker:
        return self._inner

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._strike("send")
        await self._inner.send(entity, messages)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        await self._strike("create_queue")
        return await self._inner.create_queue(entity, properties)

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        await self._strike("peek")
        peeks = required(self._inner, Peeks)
        return await peeks.peek(entity, from_sequence=from_sequence, limit=limit)

    async def _strike(self, method: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if method in self.errors:
            raise self.errors[method]


@attrs.frozen(kw_only=True)
class Member:
    """A process of the pair."""

    control: Control
    book: OrderBook
    reader: RecordReader
    pair: Pair | None = None
    syphon: Syphon | None = None

    def order(self, action: Action, *targets: str, **fields: Any) -> ControlAnswer:
        given = {"targets": targets} if targets else {}
        return self.control.execute(Order(action=action, **given, **fields), ANN)


@attrs.define(kw_only=True)
class Members:
    """Starts processes; `secondary` is the way of their records."""

    harness: Harness
    secondary: Faulty
    _number: int = 0

    @asynccontextmanager
    async def gateway(
        self,
        before: Member | None = None,
        *,
        kind: str = "serve",
        secondary: Broker | None = None,
    ) -> AsyncIterator[Member]:
        """A gateway without a syphon; `before`: the one whose orders its state file has."""
        book, reader = self._records(secondary)
        pair = attrs.evolve(self.harness.parts(), book=book, reader=reader).assemble()
        if before is not None:
            book.adopt(before.book.own)
            pair.states.pins.restore(book.in_force().pins)
        control = Control(
            clock=self.harness.clock,
            observer=self.harness.events,
            pauses=pair.pauses,
            states=pair.states,
            entity_cache=pair.entity_cache,
            book=book,
            reader=reader,
        )
        member = Member(control=control, book=book, reader=reader, pair=pair)
        async with self._run(member, kind, secondary, [pair.run]):
            yield member

    @asynccontextmanager
    async def syphon(self) -> AsyncIterator[Member]:
        """A syphon that is a process of its own."""
        book, reader = self._records(None)
        syphon = self.harness.make_syphon(pauses=Pauses())
        control = Control(
            clock=self.harness.clock,
            observer=self.harness.events,
            pauses=syphon.pauses,
            syphons=[syphon],
            book=book,
            reader=reader,
        )
        member = Member(control=control, book=book, reader=reader, syphon=syphon)
        async with self._run(member, "syphon", None, [], [syphon.run]):
            yield member

    def _records(self, secondary: Broker | None) -> tuple[OrderBook, RecordReader]:
        self._number += 1
        clock = self.harness.clock
        reader = RecordReader(
            secondary=secondary or self.secondary, label=LABEL, clock=clock, keys=lambda: KEYS
        )
        return OrderBook(process=f"p{self._number}", clock=clock), reader

    @asynccontextmanager
    async def _run(
        self,
        member: Member,
        kind: str,
        secondary: Broker | None,
        before: list[Callable[..., Awaitable[Any]]],
        after: list[Callable[..., Awaitable[Any]]] | None = None,
    ) -> AsyncIterator[None]:
        rng = random.Random(member.book.process)
        lone = member.pair is None
        follower = OrderFollower(
            reader=member.reader,
            control=member.control,
            book=member.book,
            moves=lone,
            host="here",
            kind=kind,
            rng=rng,
            inherits=lone,
            waits=lone,
        )
        writer = RecordWriter(
            secondary=secondary or self.secondary,
            label=LABEL,
            keys=lambda: KEYS,
            describe=lambda: self._describe(member, kind),
            interval=30.0 if lone else USUAL,
            rng=rng,
            new_id=self.harness.new_id,
            observer=self.harness.events,
            urgent=member.control.told,
            first_after=0.0 if lone else rng.uniform(0.0, FIGURES),
        )
        async with trio.open_nursery() as nursery:
            for run in (*before, member.control.run, follower.run, writer.run, *(after or ())):
                await nursery.start(run)
            yield
            nursery.cancel_scope.cancel()

    async def _describe(self, member: Member, kind: str) -> ProcessRecord:
        await trio.lowlevel.checkpoint()
        now = self.harness.clock()
        follows = member.book.revision
        return ProcessRecord(
            process=member.book.process,
            host="here",
            kind=kind,
            pid=1,
            version="1",
            started=now,
            at=now,
            interval=USUAL,
            sees_others=member.reader.may_read,
            orders=member.book.own,
            reload=member.book.reload,
            gateway=None if member.pair is None else GatewayRecord(),
            syphon=None if member.syphon is None else SyphonRecord(follows=follows),
        )
