"""Gateways of one pair whose `orders` move from the primary to a second namespace."""

import random
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import PreconditionFailed
from gateway.domain.message import Complete, Message
from gateway.domain.operators.control import Operator
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.calls import MoveCalls
from gateway.extensions.move.mover import EntityMover
from gateway.extensions.move.numbers import MovedNumbers
from gateway.extensions.move.order import MoveAction, MoveOrder, MovesAnswer, MoveState
from gateway.pairing.pair import Pair
from gateway.ports import ABSENT, ANY
from tests.pairing.harness import ORDERS, Harness, Namespace, message

OPERATOR: Final = Operator(name="operators", peer="127.0.0.1")


@attrs.define(eq=False)
class MemoryValues:
    """Implements `Versioned` of bytes or None, in memory: virtual time knows no files."""

    values: dict[str, tuple[bytes, str]] = attrs.field(factory=dict)
    _last: int = 0

    async def read(self, key: str) -> tuple[bytes | None, str]:
        await trio.lowlevel.checkpoint()
        return self.values.get(key, (None, ABSENT))

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        await trio.lowlevel.checkpoint()
        if if_match not in (ANY, self.values.get(key, (None, ABSENT))[1]):
            raise PreconditionFailed(key)
        self._last += 1
        assert value is not None, "nothing removes a value"
        self.values[key] = (value, str(self._last))
        return str(self._last)


@attrs.define(eq=False, kw_only=True)
class Gateway:
    """A process of the pair."""

    broker: MovedBroker  # the primary with the new namespace beside it
    mover: EntityMover
    pair: Pair
    keeps_order: bool

    @property
    def moving(self) -> MoveCalls:
        return MoveCalls(
            broker=self.broker,
            mover=self.mover,
            to="new",
            keeps_order=lambda _: self.keeps_order,
            clock=self.broker.clock,
            observer=self.mover.observer,
        )

    async def order(self, action: str, *targets: str, **keys: Any) -> MovesAnswer:
        order = MoveOrder(action=MoveAction(action), targets=targets or ("orders",), **keys)
        return await self.moving.execute(order, OPERATOR)

    async def state(self) -> MoveState:
        """Of the only move."""
        [state] = (await self.moving.state(None, OPERATOR)).moves  # type: ignore[arg-type]
        return state

    async def until(self, stage: str, seconds: float = 120.0) -> None:
        """Return when the only move has that stage, and it holds."""
        with trio.fail_after(seconds):
            while self._stage() != stage:  # noqa: ASYNC110 virtual time
                await trio.sleep(0.1)

    def _stage(self) -> str:
        """Empty before this process has read of a move."""
        now = self.broker.clock()
        return next((each.stage_at(now).value for each in self.broker.book.moves), "")

    async def send(self, *names: str, **fields: Any) -> None:
        for name in names:
            await self.pair.broker.send(ORDERS, [message(name, **fields)])

    async def receive(self, number: int, seconds: float = 30.0) -> list[Any]:
        """Receive and complete that many messages; return their ids."""
        found: list[Any] = []
        with trio.fail_after(seconds):
            async with self.pair.broker.open_receiver(ORDERS) as receiver:
                while len(found) < number:
                    for each in await receiver.receive(number - len(found)):
                        await receiver.settle(each, Complete())
                        found.append(each.message.message_id)
        return found


@attrs.define(eq=False, kw_only=True)
class MoveStand:
    """The old namespace is the harness's primary."""

    harness: Harness
    new: Namespace
    store: MemoryValues = attrs.field(factory=MemoryValues)
    count: int = 0

    @classmethod
    async def make(cls, harness: Harness) -> "MoveStand":
        return cls(harness=harness, new=await harness.namespace())

    async def gateway(
        self,
        nursery: trio.Nursery | None = None,
        *,
        moves: bool = True,
        keeps_order: bool = False,
        is_plain: bool = False,
        **options: Any,
    ) -> Gateway:
        """
        A gateway that runs in the nursery, by default the harness's; `moves`: with its mover.
        `is_plain`: its namespaces have no faults, and all capabilities.
        """
        harness, nursery = self.harness, nursery or self.harness.nursery
        self.count += 1
        book = MoveBook(store=self.store, clock=harness.clock, observer=harness.events)
        await book.load()
        sides = (harness.primary, self.new)
        broker = MovedBroker(
            sides=(sides[0].store, sides[1].store)
            if is_plain
            else (sides[0].broker, sides[1].broker),
            book=book,
            numbers=MovedNumbers(store=self.store),
            entities=("*",),
            rng=random.Random(self.count),
            clock=harness.clock,
        )
        mover = EntityMover(
            broker=broker,
            process=str(self.count),
            observer=harness.events,
            clock=harness.clock,
        )
        pair = attrs.evolve(harness.parts(**options), primary=broker).assemble()
        for service in (pair, book, *([mover] if moves else [])):
            await nursery.start(service.run)
        return Gateway(broker=broker, mover=mover, pair=pair, keeps_order=keeps_order)

    async def ids(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """The ids of the messages at both sides."""
        return await self.harness.primary.ids(), await self.new.ids()

    async def put(self, *messages: Message) -> None:
        """Send to the old side."""
        await self.harness.primary.store.send(ORDERS, messages)


SESSIONS: Final = QueueProperties(requires_session=True)
