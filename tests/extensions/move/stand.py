"""Gateways of one pair whose `orders` move from the primary to a second namespace."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio

from gateway.capabilities import Schedules, WritesDeadLetters, described
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.message import Complete, Message
from gateway.domain.operators.control import Operator
from gateway.extensions.move.book import MoveBook
from gateway.extensions.move.broker import MovedBroker
from gateway.extensions.move.calls import MoveCalls
from gateway.extensions.move.mover import EntityMover
from gateway.extensions.move.numbers import MovedNumbers
from gateway.extensions.move.order import MoveAction, MoveOrder, MovesAnswer, MoveState
from gateway.forwarding_broker import ReceiveWrapper
from gateway.offering import required
from gateway.pairing.pair import Pair
from gateway.ports import Broker
from tests.harness.faults import Call, Operation
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.harness.memory_values import MemoryValues
from tests.pairing.harness import ORDERS, Harness, Namespace, message

OPERATOR: Final = Operator(name="operators", peer="127.0.0.1")


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
class FaultyMovedBroker(FaultySessionsBroker):
    """As `FaultyBroker`; its dead letters can be written, and its schedules have numbers."""

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        call = Call(operation=Operation.SEND, entity=entity.dead_letter, messages=(message,))
        writes = required(self.inner, WritesDeadLetters)
        await self.operate(call, lambda: writes.dead_letter(entity, message))

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        call = Call(operation=Operation.SEND, entity=entity, messages=tuple(messages))
        schedules = required(self.inner, Schedules)
        return await self.operate(call, lambda: schedules.schedule(entity, messages))

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        call = Call(operation=Operation.MANAGE, entity=entity)
        schedules = required(self.inner, Schedules)
        await self.operate(call, lambda: schedules.cancel_scheduled(entity, sequence_numbers))


class Unable(ReceiveWrapper):
    """A namespace that takes no dead letters, and nothing for a subscription alone."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def inner(self) -> Broker:
        return self.broker


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

    @classmethod
    async def make_able(cls, harness: Harness) -> "MoveStand":
        """As `make`, with namespaces that have dead letters and schedules beside their faults."""
        old = Namespace(harness.primary.store, kind=FaultyMovedBroker)
        await harness.nursery.start(old.broker.run)
        harness.primary = old
        return cls(harness=harness, new=await harness.namespace(kind=FaultyMovedBroker))

    async def gateway(
        self,
        nursery: trio.Nursery | None = None,
        *,
        moves: bool = True,
        keeps_order: bool = False,
        is_plain: bool = False,
        without: Callable[[Broker], Broker] | None = None,
        **options: Any,
    ) -> Gateway:
        """
        A gateway that runs in the nursery, by default the harness's; `moves`: with its mover.
        `is_plain`: its namespaces have no faults, and all capabilities; `without` wraps the new one
        of these.
        """
        harness, nursery = self.harness, nursery or self.harness.nursery
        self.count += 1
        book = MoveBook(store=self.store, clock=harness.clock, observer=harness.events)
        await book.load()
        sides = (harness.primary, self.new)
        broker = MovedBroker(
            sides=(sides[0].store, without(sides[1].store) if without else sides[1].store)
            if is_plain or without
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


class Uncounted(ReceiveWrapper):
    """A namespace that doesn't tell a number of its queues: that field of `EntityInfo` is None."""

    def __init__(self, broker: Broker, field: str) -> None:
        self.broker, self.field = broker, field

    @property
    def inner(self) -> Broker:
        return self.broker

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        return attrs.evolve(await self.broker.inspect(entity), **{self.field: None})

    async def describe(self, entity: EntityPath) -> EntityInfo:
        return attrs.evolve(await described(self.broker, entity), **{self.field: None})
