"""
Two gateways whose clients send to `orders` and receive from it, and syphons, under random faults.

    senders, consumers ─▶ gateway a ─┬─▶ primary, which goes away and comes back
    senders, consumers ─▶ gateway b ─┤
                          syphons  ──┴─▶ secondary

Gateways' consumers are killed, and syphons. The laws:

    lost    each acknowledged message is completed by a consumer, or perhaps
    twice   none is completed twice, unless an outcome was unknown: at both sides least of all
    alone   if `orders` require sessions: between two messages that a receiver of a session has
            completed, no other receiver has completed one of that session, at either side
"""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

import attrs
import trio

from gateway.brokers.joined.sequence import place_of
from gateway.capabilities import SessionReceiver
from gateway.domain.backlog import own_queue
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import BrokerError, Outcome, Unreachable
from gateway.domain.message import Abandon, Complete, Delivery
from gateway.extensions.receive_in_outage.queues import SESSIONS_PROPERTIES
from gateway.extensions.receive_in_outage.sides import BACKLOG
from gateway.pairing.pair import Pair
from gateway.ports import Receiver
from tests.extensions.receive_in_outage.stand import Stand, two_sided
from tests.harness.determinism import run_seeded
from tests.harness.faults import Call, Fault, Hang, LoseAnswer, Operation, Refuse
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.pairing.harness import LABEL, ORDERS, QUEUE, Harness, message

LASTS: Final = 300.0  # seconds with faults
REST: Final = 900.0  # seconds, at most, until all is completed afterwards
SESSIONS: Final = 6
OWN_SESSIONS: Final = own_queue(LABEL, ORDERS, sessions=True)
LATENCY: Final = 0.02  # seconds of a request, at most, each way


@attrs.frozen
class Verdict:
    """The verdict on a run. `broken` says in sentences what must not be."""

    broken: tuple[str, ...]
    acknowledged: int
    at_backlog: int  # messages that were completed there
    moved: int  # messages that came home
    unknown: int


@attrs.define(eq=False)
class World:
    seed: int
    lasts: float = LASTS
    rng: random.Random = attrs.field(init=False)
    harness: Harness = attrs.field(init=False)
    fault: Fault | None = None  # of the primary
    acknowledged: set[str] = attrs.field(factory=set)
    doubtful: set[str] = attrs.field(factory=set)
    perhaps: set[str] = attrs.field(factory=set)  # completed, or not: its consumer had no answer
    done: dict[str, list[int]] = attrs.field(factory=dict)  # the places, by message
    moved: dict[str, float] = attrs.field(factory=dict)  # when the primary got it from a syphon
    loses_answers: bool = True
    sent: int = 0
    sessions: bool = False  # `orders` require them
    receivers: int = 0  # of sessions, so far
    served: dict[str, list[int]] = attrs.field(factory=dict)  # the receivers, by session

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(f"receive in outage {self.seed}")

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self.harness = harness = Harness(nursery=nursery, rng=self.rng)
            await harness.open()
            if self.sessions:
                await self._require_sessions()
            for namespace, watch in (
                (harness.primary, self._watch_primary),
                (harness.secondary, self._watch),
            ):
                namespace.broker.latency = self._latency
                namespace.broker.watch = watch
            harness.primary.broker.fault = self._meet
            first = await Stand.make(harness, has_queue=not self.sessions)
            pairs = [first.pair, await harness.pair(receive_in_outage=("ord*",))]
            async with trio.open_nursery() as living:
                for pair in pairs:
                    living.start_soon(self._send, pair)
                    living.start_soon(self._consume, pair)
                living.start_soon(self._syphon, pairs[0])
                living.start_soon(self._change)
                await trio.sleep(self.lasts)
                living.cancel_scope.cancel()
            self.fault, self.loses_answers = None, False
            await harness.syphon()
            nursery.start_soon(self._consume_all, pairs[0])
            with trio.move_on_after(REST):
                while self.acknowledged - self.perhaps - self.done.keys():  # noqa: ASYNC110 for the verdict
                    await trio.sleep(1.0)
            await trio.sleep(120.0)  # what is left comes twice now
            nursery.cancel_scope.cancel()

    async def _require_sessions(self) -> None:
        harness = self.harness
        harness.primary = await harness.namespace(kind=FaultySessionsBroker)
        harness.secondary = await harness.namespace(kind=FaultySessionsBroker)
        await harness.primary.store.create_queue(ORDERS, QueueProperties(requires_session=True))
        await harness.secondary.store.create_queue(QUEUE, QueueProperties())
        await harness.secondary.store.create_queue(OWN_SESSIONS, SESSIONS_PROPERTIES)

    async def _change(self) -> None:
        """Let the primary go away and come back."""
        while True:
            await trio.sleep(self.rng.uniform(1.0, 20.0))
            self.fault = self.rng.choice([Refuse(lambda: Unreachable("refused")), Hang(30.0)])
            await trio.sleep(self.rng.uniform(1.0, 40.0))
            self.fault = None

    def _meet(self, operation: Operation, _: Any) -> Fault | None:
        if self.fault is None and operation is Operation.SEND and self.loses_answers:
            return LoseAnswer() if self.rng.random() < 0.02 else None
        return self.fault

    async def _send(self, pair: Pair) -> None:
        while True:
            await trio.sleep(self.rng.uniform(0.0, 0.6))
            self.sent += 1
            name = str(self.sent)
            session = f"s{self.rng.randrange(SESSIONS)}" if self.sessions else None
            try:
                await pair.broker.send(ORDERS, [message(name, session_id=session)])
            except BrokerError as error:
                if error.outcome is Outcome.UNKNOWN:
                    self.doubtful.add(name)
            else:
                self.acknowledged.add(name)

    async def _consume(self, pair: Pair) -> None:
        """Consumers that are killed now and then, with the messages that they have."""
        while True:
            with trio.move_on_after(self.rng.uniform(1.0, 60.0)):
                await self._consume_all(pair)
            await trio.sleep(self.rng.uniform(0.0, 3.0))

    async def _consume_all(self, pair: Pair) -> None:
        broker = two_sided(self.harness, pair, [])
        while self.sessions:
            with suppress(BrokerError):
                async with broker.open_session(ORDERS, None) as session:
                    await self._consume_session(session)
        while True:
            with suppress(BrokerError):
                async with broker.open_receiver(ORDERS) as receiver:
                    while True:
                        for delivery in await receiver.receive(5):
                            await trio.sleep(self.rng.uniform(0.0, 0.2))
                            await self._settle(receiver, delivery)
            await trio.sleep(0.5)

    async def _consume_session(self, session: SessionReceiver) -> None:
        self.receivers += 1
        number = self.receivers
        while True:
            found: Sequence[Delivery] = ()
            with trio.move_on_after(2.0):
                found = await session.receive(5)
            if not found:
                return
            for delivery in found:
                await trio.sleep(self.rng.uniform(0.0, 0.2))
                if await self._settle(session, delivery):
                    self.served.setdefault(session.session_id, []).append(number)

    async def _settle(self, receiver: Receiver, delivery: Delivery) -> bool:
        """True if the message was completed."""
        name = str(delivery.message.message_id)
        if self.rng.random() < 0.1:
            with suppress(BrokerError):
                await receiver.settle(delivery, Abandon())
            return False
        known = False
        try:
            await receiver.settle(delivery, Complete())
            known = True
        except BrokerError as error:
            known = error.outcome is Outcome.NOT_SENT
            return False
        finally:
            if not known:  # a killed consumer doesn't know either
                self.doubtful.add(name)
                self.perhaps.add(name)
        self.done.setdefault(name, []).append(place_of(delivery))
        return True

    async def _syphon(self, pair: Pair) -> None:
        """A syphon that is killed now and then, in a gateway or of its own."""
        while True:
            states = self.rng.choice([None, pair.states])
            scope = await self.harness.syphon(states=states)
            try:
                await trio.sleep(self.rng.uniform(5.0, 60.0))
            finally:
                scope.cancel()
                # The primary may have these, and the backlog as well.
                recently = trio.current_time() - 2.0
                self.doubtful |= {name for name, at in self.moved.items() if at >= recently}
            await trio.sleep(self.rng.uniform(0.0, 10.0))

    def _watch(self, call: Call) -> None:
        if call.operation is Operation.SEND and (call.outcome is Outcome.UNKNOWN or call.late):
            self.doubtful |= {str(each.message_id) for each in call.messages}

    def _watch_primary(self, call: Call) -> None:
        self._watch(call)
        if call.operation is Operation.SEND and call.outcome is None:
            self.moved |= {str(each.message_id): trio.current_time() for each in call.messages}

    def _latency(self) -> float:
        return self.rng.uniform(0.0, LATENCY)

    def verdict(self) -> Verdict:
        broken = [
            f"message {name} is lost"
            for name in sorted(self.acknowledged - self.perhaps - self.done.keys())
        ]
        for name, places in sorted(self.done.items()):
            if len(places) > 1 and name not in self.doubtful:
                sides = "at both sides" if len(set(places)) > 1 else "at one side"
                broken.append(f"message {name} was completed twice {sides}")
        for session, receivers in sorted(self.served.items()):
            tenures = [number for number, _ in groupby(receivers)]
            if len(tenures) > len(set(tenures)):
                broken.append(f"session {session} had two receivers at a time")
        counted = Counter(place for places in self.done.values() for place in places)
        return Verdict(
            broken=tuple(broken),
            acknowledged=len(self.acknowledged),
            at_backlog=counted[BACKLOG],
            moved=len(self.moved),
            unknown=len(self.doubtful),
        )


def judge(seed: int, *, sessions: bool = False, lasts: float = LASTS) -> Verdict:
    """Run that seed, with faults for so long."""
    world = World(seed, lasts, sessions=sessions)
    run_seeded(world.run, seed=seed)
    return world.verdict()


def first_broken(seeds: Sequence[int]) -> Sequence[str]:
    """The broken laws of the first of these seeds that breaks any, with sessions or without."""
    for seed in seeds:
        for sessions in (False, True):
            if broken := judge(seed, sessions=sessions).broken:
                return broken
    return ()
