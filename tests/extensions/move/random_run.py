"""
Two gateways whose clients send to `orders` and receive from it, under random faults, while an
operator starts, pauses, resumes and rolls back its move.

    senders, consumers ─▶ gateway a ─┬─▶ old namespace
    senders, consumers ─▶ gateway b ─┴─▶ new namespace

Gateways are killed with their movers, and each namespace goes away and comes back. The laws:

    lost      each acknowledged message is completed or dead-lettered by a consumer, or perhaps
    twice     none is completed twice, unless an outcome was unknown; a mover tells the ids
    order     if order is kept: what one sender has sent is received in that order
    dead      a dead letter stays one, with its reason, and is once at the side of the last stage
    schedule  a scheduled message comes at its date, not sooner, and not at all once it is cancelled
    ends      without faults the last order is carried out to its end
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import attrs
import trio

from gateway.domain.errors import BrokerError, Outcome, Unreachable
from gateway.domain.message import (
    DEAD_LETTER_REASON,
    Abandon,
    Complete,
    DeadLetter,
    Delivery,
)
from gateway.extensions.move.stages import BEGINNING
from gateway.ports import Receiver
from tests.extensions.move.stand import Gateway, MoveStand
from tests.harness.determinism import run_seeded
from tests.harness.faults import Call, Fault, Hang, LoseAnswer, Operation, Refuse
from tests.pairing.harness import ORDERS, Harness, Namespace, message

LASTS: Final = 400.0  # seconds with faults
REST: Final = 900.0  # seconds, at most, until all is completed afterwards
LATENCY: Final = 0.02  # seconds of a request, at most, each way
ORDER_GIVEN: Final = ("start", "rollback", "pause", "resume", "start", "rollback", "resume")


@attrs.frozen
class MoveVerdict:
    """The verdict on a run. `broken` says in sentences what must not be."""

    broken: tuple[str, ...]
    acknowledged: int
    moved: int  # messages that a mover has sent
    buried: int
    scheduled: int
    stages: int  # changes of the stage
    unknown: int


@attrs.define(eq=False)
class MoveWorld:
    seed: int
    keeps_order: bool = False
    lasts: float = LASTS
    rng: random.Random = attrs.field(init=False)
    stand: MoveStand = attrs.field(init=False)
    fault: dict[str, Fault | None] = attrs.field(factory=dict)  # by side
    loses_answers: bool = True
    acknowledged: set[str] = attrs.field(factory=set)
    doubtful: set[str] = attrs.field(factory=set)
    perhaps: set[str] = attrs.field(factory=set)  # completed, or not: its consumer had no answer
    done: dict[str, int] = attrs.field(factory=dict)  # how often, by message
    received: list[int] = attrs.field(factory=list)  # each at its first delivery
    buried: set[str] = attrs.field(factory=set)  # dead-lettered
    due: dict[str, datetime] = attrs.field(factory=dict)  # of the scheduled messages
    cancelled: set[str] = attrs.field(factory=set)
    early: set[str] = attrs.field(factory=set)  # came before their dates
    graves: tuple[Counter[str], Counter[str]] = attrs.field(factory=lambda: (Counter(), Counter()))
    unexplained: set[str] = attrs.field(factory=set)  # dead letters without their reason
    copies: dict[str, int] = attrs.field(factory=dict)  # that the sides have got, by message
    sent: int = 0
    stages: list[str] = attrs.field(factory=list)
    last: str = ""  # the stage that the last order leads to
    ended: bool = False

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(f"move {self.seed}")

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            harness = Harness(nursery=nursery, rng=self.rng)
            await harness.open()
            self.stand = await MoveStand.make_able(harness)
            for name, side in (("old", harness.primary), ("new", self.stand.new)):
                self._watch_side(name, side)
            async with trio.open_nursery() as living:
                for _ in range(1 if self.keeps_order else 2):
                    living.start_soon(self._live)
                if not self.keeps_order:
                    living.start_soon(self._change)
                await trio.sleep(self.lasts)
                living.cancel_scope.cancel()
            self.fault, self.loses_answers = {}, False
            await self._rest(nursery)
            nursery.cancel_scope.cancel()

    async def _rest(self, nursery: trio.Nursery) -> None:
        """All is completed, and the last order is carried out."""
        gateway = await self._gateway(nursery)
        for action in ("start", "resume"):
            await gateway.order(action)
        nursery.start_soon(self._consume, gateway)
        with trio.move_on_after(REST):
            while self.acknowledged - self.perhaps - self.done.keys() or not self.ended:
                await trio.sleep(1.0)
                self.ended = gateway.broker.book.moves[0].stage.value == "new"
        await trio.sleep(120.0)  # what is left comes twice now
        self.doubtful |= {*(await gateway.state()).report.doubtful}  # as the mover tells
        for side, grave in zip(
            (self.stand.harness.primary, self.stand.new), self.graves, strict=True
        ):
            for each in await side.messages(ORDERS.dead_letter):
                name = str(each.message_id)
                grave[name] += 1
                if each.properties.get(DEAD_LETTER_REASON) != reason(name):
                    self.unexplained.add(name)

    async def _gateway(self, nursery: trio.Nursery) -> Gateway:
        return await self.stand.gateway(nursery, keeps_order=self.keeps_order)

    async def _live(self) -> None:
        """A gateway that is killed now and then."""
        while True:
            async with trio.open_nursery() as process:
                gateway = await self._gateway(process)
                works = [self._send, self._consume_at_times, self._steer]
                works += [] if self.keeps_order else [self._schedule]
                for work in works:
                    process.start_soon(work, gateway)
                await trio.sleep(self.rng.uniform(20.0, 120.0))
                process.cancel_scope.cancel()
            await trio.sleep(self.rng.uniform(0.0, 5.0))

    async def _steer(self, gateway: Gateway) -> None:
        while True:
            await trio.sleep(self.rng.uniform(5.0, 40.0))
            with suppress(BrokerError):
                await gateway.order(self.rng.choice(ORDER_GIVEN))
                self.stages.append(gateway.broker.book.moves[0].stage.value)

    async def _change(self) -> None:
        """Let the sides go away and come back."""
        while True:
            await trio.sleep(self.rng.uniform(1.0, 30.0))
            side = self.rng.choice(["old", "new"])
            self.fault[side] = self.rng.choice([Refuse(lambda: Unreachable("refused")), Hang(30.0)])
            await trio.sleep(self.rng.uniform(1.0, 20.0))
            self.fault[side] = None

    def _watch_side(self, name: str, side: Namespace) -> None:
        def meet(operation: Operation, _: Any) -> Fault | None:
            fault = self.fault.get(name)
            if fault is None and operation is Operation.SEND and self._may_lose():
                return LoseAnswer()
            return fault

        side.broker.fault = meet
        side.broker.watch = self._watch
        side.broker.latency = lambda: self.rng.uniform(0.0, LATENCY)

    def _may_lose(self) -> bool:
        return self.loses_answers and not self.keeps_order and self.rng.random() < 0.02

    def _watch(self, call: Call) -> None:
        if call.operation is not Operation.SEND:
            return
        names = [str(each.message_id) for each in call.messages]
        if call.outcome is Outcome.UNKNOWN or call.late:
            self.doubtful |= set(names)
        if call.outcome is not Outcome.NOT_SENT and call.entity == ORDERS:
            for name in names:
                self.copies[name] = self.copies.get(name, 0) + 1

    async def _send(self, gateway: Gateway) -> None:
        while True:
            await trio.sleep(self.rng.uniform(0.0, 0.6))
            self.sent += 1
            name = str(self.sent)
            known = False
            try:
                with trio.fail_after(10.0):
                    await gateway.broker.send(ORDERS, [message(name)])
                self.acknowledged.add(name)
                known = True
            except BrokerError as error:
                known = error.outcome is Outcome.NOT_SENT
            except trio.TooSlowError:
                known = False
            finally:
                if not known:
                    self.doubtful.add(name)

    async def _schedule(self, gateway: Gateway) -> None:
        """Schedule messages, and cancel some of them."""
        while True:
            await trio.sleep(self.rng.uniform(0.0, 10.0))
            self.sent += 1
            name = str(self.sent)
            date = gateway.broker.clock() + timedelta(seconds=self.rng.uniform(70.0, 200.0))
            known = False
            self.due[name] = date
            try:
                with trio.fail_after(10.0):
                    [number] = await gateway.broker.schedule(
                        ORDERS, [message(name, scheduled=date)]
                    )
                known = True
            except BrokerError as error:
                known = error.outcome is Outcome.NOT_SENT
                continue
            except trio.TooSlowError:
                continue
            finally:
                if not known:
                    self.doubtful.add(name)
            if self.rng.random() < 0.5:
                self.acknowledged.add(name)
                continue
            await self._cancel(gateway, name, number)

    async def _cancel(self, gateway: Gateway, name: str, number: int) -> None:
        await trio.sleep(self.rng.uniform(0.0, 40.0))
        try:
            with trio.fail_after(10.0):
                await gateway.broker.cancel_scheduled(ORDERS, [number])
            self.cancelled.add(name)
        except BrokerError as error:
            if error.outcome is Outcome.NOT_SENT:
                self.acknowledged.add(name)
        except trio.TooSlowError:
            return  # it may come

    async def _consume_at_times(self, gateway: Gateway) -> None:
        """Consumers that leave the work to the mover now and then."""
        while True:
            await trio.sleep(self.rng.uniform(0.0, 40.0))
            with trio.move_on_after(self.rng.uniform(1.0, 40.0)):
                await self._consume(gateway)

    async def _consume(self, gateway: Gateway) -> None:
        while True:
            with suppress(BrokerError):
                async with gateway.broker.open_receiver(ORDERS) as receiver:
                    while True:
                        for delivery in await receiver.receive(5):
                            self._note_order(delivery)
                            await trio.sleep(self.rng.uniform(0.0, 0.2))
                            await self._settle(receiver, delivery)
            await trio.sleep(0.5)

    def _note_order(self, delivery: Delivery) -> None:
        """A message that comes again, or that a killed client has sent, has no place in order."""
        name = str(delivery.message.message_id)
        if self.stand.harness.clock() < self.due.get(name, BEGINNING):
            self.early.add(name)
        if delivery.delivery_count == 1 and name not in self.doubtful:
            self.received.append(int(name))

    async def _settle(self, receiver: Receiver, delivery: Delivery) -> None:
        name = str(delivery.message.message_id)
        if not self.keeps_order and self.rng.random() < 0.1:
            with suppress(BrokerError):
                await receiver.settle(delivery, Abandon())
            return
        known, buries = False, self.rng.random() < 0.05
        try:
            how = DeadLetter(reason=reason(name)) if buries else Complete()
            await receiver.settle(delivery, how)
            known = True
            if buries:
                self.buried.add(name)
            self.done[name] = self.done.get(name, 0) + 1
        except BrokerError as error:
            known = error.outcome is Outcome.NOT_SENT
        finally:
            if not known:  # a killed consumer doesn't know either
                self.doubtful.add(name)
                self.perhaps.add(name)

    def verdict(self) -> MoveVerdict:
        broken = [
            f"message {name} is lost"
            for name in sorted(self.acknowledged - self.perhaps - self.done.keys())
        ]
        for name, times in sorted(self.done.items()):
            if times > 1 and name not in self.doubtful:
                broken.append(f"message {name} was completed twice")
        broken += [f"message {name} came too early" for name in sorted(self.early)]
        broken += [
            f"message {name} came although it was cancelled"
            for name in sorted(self.cancelled & self.done.keys() - self.doubtful)
        ]
        broken += self._broken_graves()
        if not self.ended:
            broken.append("the move doesn't end")
        if self.keeps_order:
            late = [b for a, b in zip(self.received, self.received[1:], strict=False) if b < a]
            broken += [f"message {each} came out of order" for each in late]
        return MoveVerdict(
            broken=tuple(broken),
            acknowledged=len(self.acknowledged),
            moved=sum(copies > 1 for copies in self.copies.values()),
            buried=len(self.buried),
            scheduled=len(self.due),
            stages=len(self.stages),
            unknown=len(self.doubtful),
        )

    def _broken_graves(self) -> Iterator[str]:
        """The broken laws of dead letters, once the entity is at the new side."""
        old, new = self.graves
        for name in sorted(self.buried - self.doubtful):
            if not new[name]:
                yield f"dead letter {name} is {'left' if old[name] else 'lost'}"
            elif new[name] + old[name] > 1:
                yield f"dead letter {name} is there twice"
        yield from (f"dead letter {name} has lost its reason" for name in sorted(self.unexplained))


def reason(name: str) -> str:
    return f"case {name}"


def judge(seed: int, *, keeps_order: bool = False, lasts: float = LASTS) -> MoveVerdict:
    """Run that seed, with faults for so long."""
    world = MoveWorld(seed, keeps_order=keeps_order, lasts=lasts)
    run_seeded(world.run, seed=seed)
    return world.verdict()


def first_broken(seeds: Sequence[int]) -> Sequence[str]:
    """The broken laws of the first of these seeds that breaks any, ordered or not."""
    for seed in seeds:
        for keeps_order in (False, True):
            if broken := judge(seed, keeps_order=keeps_order).broken:
                return broken
    return ()
