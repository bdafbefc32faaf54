"""
A sharded queue's shards are added, drained and removed at random, under load and faults, on virtual
time. Afterwards the fate of each of its messages is checked.

    senders     batches with and without keys; some stop waiting for the answer
    receivers   complete, abandon or forget what they get, and leave at any moment
    operator    adds a shard, drains one or puts it back, and removes one that was found empty
    faults      of single requests, and of one shard after the other

The laws: each message that was acknowledged is delivered; after the faults the queue becomes empty,
which is to say all shards that there ever were; a message whose send was refused never comes.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.events.gateway import Event
from gateway.domain.message import Abandon, Complete, Delivery, Message
from gateway.extensions.sharding.broker import ShardedBroker
from gateway.extensions.sharding.events import ShardAdded, ShardDrained
from gateway.extensions.sharding.setup import ShardSetup
from gateway.extensions.sharding.table import ShardedQueue, ShardingRule, ShardTable
from gateway.ports import Receiver
from gateway.store.local.memory import MemoryBroker
from tests.extensions.sharding.harness import ORDERS, sharded
from tests.harness.clocks import VirtualClock
from tests.harness.determinism import run_seeded
from tests.harness.faults import (
    Fault,
    FaultyBroker,
    FaultyManyReceiver,
    Hang,
    Late,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    SwallowAnswer,
)

LOCK: Final = 5.0  # seconds
LOAD: Final = 90.0  # seconds of load and faults
LONGEST_LATE: Final = 6.0  # seconds after which a late request is done
PATIENCE: Final = 4.0  # seconds that a sender or a receiver waits for an answer
SETTLED: Final = 2 * LOCK + LONGEST_LATE + PATIENCE  # after the load: all locks have ended
END: Final = 120.0  # seconds in which the queue must become empty then
MOST_SHARDS: Final = 5
KEYS: Final = (None, None, "a", "b", "c", "d", "e")
FAULTY: Final = 0.08  # of all requests
PROPERTIES: Final = QueueProperties(
    lock_duration=timedelta(seconds=LOCK), max_delivery_count=1_000_000
)


@attrs.frozen(kw_only=True)
class Verdict:
    """The fate of each message, by its id, and the number of events of each kind."""

    lost: Sequence[str]  # acknowledged, and never delivered
    stuck: Sequence[tuple[int, int]]  # shards that didn't become empty, and their messages
    refused: Sequence[str]  # that came all the same
    acknowledged: int
    unknown: int
    events: Counter[str]

    @property
    def broken(self) -> list[str]:
        """The laws that were broken, each in a sentence."""
        found = []
        if self.lost:
            found.append(f"acknowledged messages are lost: {self.lost}")
        if self.stuck:
            found.append(f"messages are stuck in shards: {self.stuck}")
        if self.refused:
            found.append(f"refused messages were delivered: {self.refused}")
        return found


class TakingBack(FaultyManyReceiver):
    """The receiver of a namespace that doesn't count deliveries that no client has seen."""

    takes_back_uncounted = True


@attrs.define(eq=False)
class Run:
    """A run; all chance comes from `rng`."""

    rng: random.Random
    table: ShardTable = attrs.field(init=False)
    memory: MemoryBroker = attrs.field(init=False)
    broker: ShardedBroker = attrs.field(init=False)
    events: Counter[str] = attrs.field(factory=Counter, init=False)
    _is_over: bool = attrs.field(default=False, init=False)
    _down: int | None = attrs.field(default=None, init=False)  # the shard that doesn't work
    _numbers: Iterator[int] = attrs.field(factory=count, init=False)
    _acknowledged: set[str] = attrs.field(factory=set, init=False)
    _unknown: set[str] = attrs.field(factory=set, init=False)
    _refused: set[str] = attrs.field(factory=set, init=False)
    _delivered: set[str] = attrs.field(factory=set, init=False)
    _empty: dict[int, float] = attrs.field(factory=dict, init=False)  # shards: since when

    async def run(self) -> Verdict:
        clock = VirtualClock()
        async with MemoryBroker(clock, random.Random(0)) as self.memory:
            faulty = FaultyBroker(
                inner=self.memory,
                fault=self._fault,
                latency=lambda: self.rng.uniform(0.0, 0.05),
                receiver=TakingBack,
            )
            self.table = ShardTable.of([ShardingRule(queue=ORDERS.name, shards=2)])
            self.broker = sharded(faulty, self.table, clock)
            for number in range(2):
                await self.memory.create_queue(ORDERS.shard(number), PROPERTIES)
            async with trio.open_nursery() as nursery:
                await nursery.start(faulty.run)
                setup = ShardSetup(
                    broker=faulty,
                    table=self.table,
                    observer=self,
                    rng=self.rng,
                    drain_interval=1.0,
                )
                await nursery.start(setup.run)
                async with trio.open_nursery() as load:
                    for task in (self._send, self._send, self._operate, self._break):
                        load.start_soon(task)
                    for _ in range(2):
                        load.start_soon(self._receive)
                    await trio.sleep(LOAD)
                    self._is_over = True
                    load.cancel_scope.deadline = trio.current_time() + PATIENCE
                await trio.sleep(SETTLED)
                with trio.move_on_after(END):
                    await self._receive_rest()
                stuck = await self._depths()
                nursery.cancel_scope.cancel()
        return Verdict(
            lost=sorted(self._acknowledged - self._delivered),
            stuck=stuck,
            refused=sorted(self._refused & self._delivered),
            acknowledged=len(self._acknowledged),
            unknown=len(self._unknown),
            events=self.events,
        )

    def report(self, event: Event) -> None:
        """As `Observer`."""
        self.events[type(event).__name__] += 1
        match event:
            case ShardDrained(shard=number):
                self._empty[number] = trio.current_time()
            case ShardAdded(shard=number):
                self._empty.pop(number, None)

    # --- the load

    async def _send(self) -> None:
        while not self._is_over:
            await trio.sleep(self.rng.expovariate(4.0))
            messages = [self._message() for _ in range(self.rng.randint(1, 4))]
            names = {str(each.message_id) for each in messages}
            group = self._unknown
            with trio.move_on_after(self.rng.choice((0.05, PATIENCE, PATIENCE))):
                try:
                    await self.broker.send(ORDERS, messages)
                except BrokerError as error:
                    if error.outcome is Outcome.NOT_SENT:
                        group = self._refused
                else:
                    group = self._acknowledged
            group |= names

    def _message(self) -> Message:
        key = self.rng.choice(KEYS)
        return Message(message_id=str(next(self._numbers)), partition_key=key)

    async def _receive(self) -> None:
        while not self._is_over:
            with trio.move_on_after(self.rng.uniform(0.5, 15.0)):
                try:
                    async with self.broker.open_receiver(ORDERS) as receiver:
                        await self._use(receiver)
                except BrokerError:
                    await trio.sleep(self.rng.uniform(0.0, 0.5))

    async def _use(self, receiver: Receiver) -> None:
        while not self._is_over:
            found: Sequence[Delivery] = ()
            with trio.move_on_after(self.rng.choice((0.1, PATIENCE))):
                found = await receiver.receive(self.rng.randint(1, 8))
            for delivery in found:
                self._delivered.add(str(delivery.message.message_id))
                chance = self.rng.random()
                if chance < 0.15:
                    continue  # the message's lock expires
                try:
                    await receiver.settle(delivery, Complete() if chance < 0.85 else Abandon())
                except BrokerError:
                    continue
            if self.rng.random() < 0.2:
                await trio.sleep(self.rng.uniform(0.0, 2.0))

    # --- operations on the shards

    async def _operate(self) -> None:
        while not self._is_over:
            await trio.sleep(self.rng.uniform(1.0, 6.0))
            steps: list[Callable[[ShardedQueue], ShardingRule | None]] = [
                self._add,
                self._drain,
                self._drain,
                self._put_back,
                self._remove,
                self._remove,
            ]
            queue = self.table.find(ORDERS)
            assert queue is not None
            rule = self.rng.choice(steps)(queue)
            if rule is not None:
                self.table.replace([rule])

    def _add(self, queue: ShardedQueue) -> ShardingRule | None:
        rule = queue.rule
        if rule.shards >= MOST_SHARDS:
            return None
        self.events["added"] += 1
        drain = tuple(number for number in rule.drain if number < rule.shards)
        return attrs.evolve(rule, shards=rule.shards + 1, drain=drain)

    def _drain(self, queue: ShardedQueue) -> ShardingRule | None:
        kept = [number for number in queue.numbers if number not in queue.rule.drain]
        if len(kept) < 2:
            return None
        self.events["drained"] += 1
        number = self.rng.choice(kept)
        self._empty.pop(number, None)
        return attrs.evolve(queue.rule, drain=tuple(sorted((*queue.rule.drain, number))))

    def _put_back(self, queue: ShardedQueue) -> ShardingRule | None:
        if not queue.draining:
            return None
        self.events["put back"] += 1
        number = self.rng.choice(queue.draining)
        self._empty.pop(number, None)
        drain = tuple(each for each in queue.rule.drain if each != number)
        return attrs.evolve(queue.rule, drain=drain)

    def _remove(self, queue: ShardedQueue) -> ShardingRule | None:
        """
        Remove the last shard, if it was found empty so long ago that no request is late any more.
        """
        last = queue.rule.shards - 1
        since = self._empty.get(last)
        if last == 0 or last not in queue.draining or since is None:
            return None
        if trio.current_time() - since < SETTLED:
            return None
        self.events["removed"] += 1
        drain = tuple(each for each in queue.rule.drain if each != last)
        return attrs.evolve(queue.rule, shards=last, drain=drain)

    async def _break(self) -> None:
        """Break one shard after the other for a while."""
        while not self._is_over:
            await trio.sleep(self.rng.uniform(2.0, 10.0))
            self._down = self.rng.randrange(MOST_SHARDS)
            await trio.sleep(self.rng.uniform(1.0, 8.0))
            self._down = None

    def _fault(self, operation: Operation, entity: EntityPath) -> Fault | None:
        if self._is_over:
            return None
        if entity.shard_number == self._down and entity.parent_key != "$namespace":
            return Refuse()
        if self.rng.random() >= FAULTY:
            return None
        refusals: list[Fault] = [Refuse(), Hang(self.rng.uniform(0.5, 3.0))]
        if operation is Operation.RECEIVE:
            return self.rng.choice(refusals)
        late = Late(self.rng.uniform(0.1, LONGEST_LATE))
        return self.rng.choice([*refusals, Reset(), LoseAnswer(), SwallowAnswer(), late])

    # --- the end

    async def _receive_rest(self) -> None:
        """Complete all messages; return when no shard that the queue has holds any."""
        async with self.broker.open_receiver(ORDERS) as receiver:
            while (await self.broker.inspect(ORDERS)).active:
                with trio.move_on_after(1.0):
                    for delivery in await receiver.receive(10):
                        self._delivered.add(str(delivery.message.message_id))
                        await receiver.settle(delivery, Complete())

    async def _depths(self) -> list[tuple[int, int]]:
        """The shards with messages, among all shards since the start."""
        found = []
        for number in range(MOST_SHARDS):
            try:
                info = await self.memory.inspect(ORDERS.shard(number))
            except BrokerError:
                continue  # the shard was never made
            if info.active:
                found.append((number, info.active))
        return found


def judge(seed: int) -> Verdict:
    """The verdict on the run of that seed, the same each time."""
    return run_seeded(Run(random.Random(seed)).run, seed=seed)


def first_broken(seeds: Sequence[int]) -> Sequence[str]:
    """The laws that the first of these seeds breaks that breaks one; none: they all hold."""
    for seed in seeds:
        if broken := judge(seed).broken:
            return broken
    return ()
