"""
The users of a pair: producers through the gateway, consumers at the primary. They write history.
"""

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.checker.operations import (
    Acked,
    Completed,
    Delivered,
    Failed,
    Invoked,
    Record,
    Unknown,
    fingerprint,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome, OutcomeUnknown
from gateway.domain.message import AcceptedBy, Complete, Delivery, Message
from gateway.extensions.order.keys import is_ordered, key_of
from gateway.extensions.order.options import ORDERED
from gateway.ports import Broker, WallClock
from tests.harness.clocks import seconds
from tests.simulation.endpoint import AdapterClient, Client
from tests.simulation.laws import Laws
from tests.simulation.names import Names
from tests.simulation.processes import GatewayProcess
from tests.simulation.scenario import CHAOS, Front, Scenario

SOME_SESSIONS: Final = (None, None, "session")
SESSIONS: Final = (None, "a", "a", "b")  # where they have an order
REST: Final = 5.0  # seconds that a consumer waits after an error
WITHOUT_BATCHES: Final = frozenset({Front.STORAGE_QUEUE, Front.RABBITMQ})
Answer = type[Acked] | type[Failed] | type[Unknown]
RECONNECT: Final = 60.0  # seconds that it keeps a receiver


@attrs.define(eq=False, kw_only=True)
class Journal:
    """
    The observations of all clients and watchers, without the folder, which differs in each run.
    """

    folder: Path
    records: list[Record] = attrs.field(factory=list)
    trace: list[str] = attrs.field(factory=list)
    seen: Counter[str] = attrs.field(factory=Counter)
    acked: set[str] = attrs.field(factory=set)
    # The last namespace or store that accepted each message, by message id.
    accepted_by: dict[str, AcceptedBy] = attrs.field(factory=dict)
    names: Names = attrs.field(factory=Names)
    handled: set[tuple[str, str]] = attrs.field(factory=set)  # by listeners: entity and copy

    def note(self, line: str) -> None:
        line = line.replace(str(self.folder), "")
        self.trace.append(f"{trio.current_time():8.3f} {line}")

    def note_delivery(self, entity: EntityPath, delivery: Delivery) -> None:
        self.records.append(
            Delivered(
                at=trio.current_time(),
                message_id=self.names.of(delivery.message),
                entity=entity.key,
                fingerprint=fingerprint(self.names.read(delivery.message)),
                copy=str(delivery.sequence_number),
                expires=inf if delivery.expires is None else seconds(delivery.expires),
            )
        )

    def note_completion(self, entity: EntityPath, delivery: Delivery) -> None:
        copy = str(delivery.sequence_number)
        self.records.append(Completed(at=trio.current_time(), entity=entity.key, copy=copy))


LATER: Final = 0.05  # seconds: a send of a slow network takes longer


@attrs.define(eq=False, kw_only=True)
class Producer:
    """Sends to random entities at random times; tries again, with the same id, up to twice."""

    number: int
    scenario: Scenario
    gateway: GatewayProcess
    client: Client | None  # None: it calls the pair
    clock: WallClock
    rng: random.Random
    laws: Laws
    journal: Journal

    async def run(self) -> None:
        await trio.lowlevel.checkpoint()
        for number in range(self.scenario.sends):
            await trio.sleep(self.rng.uniform(0.0, 1.8 * CHAOS / self.scenario.sends))
            entity, size = self.rng.choice(self.scenario.entities), self.rng.choice(self._sizes)
            messages = [self._message(f"{self.number}-{number}-{each}") for each in range(size)]
            if self._several_at_once(number):
                names = [f"{self.number}-{number}-{letter}" for letter in "abc"]
                batches = [messages, *([self._message(name)] for name in names)]
                if self.scenario.parts.crowds:
                    await self.send_from_tasks(entity, batches)
                else:
                    await self.send_many(entity, batches)
                continue
            for _ in range(self.rng.choice([1, 1, 2, 3])):
                if await self.send(entity, messages):
                    break
                await trio.sleep(self.rng.uniform(0.1, 10.0))

    def _several_at_once(self, number: int) -> bool:
        """Each third send, where they do that at all: without a draw, which would change others."""
        parts = self.scenario.parts
        return (parts.pipelines or parts.crowds) and number % 3 == 0

    @property
    def _sizes(self) -> Sequence[int]:
        """The sizes of batches, which Storage Queue and AMQP 0-9-1 don't have."""
        return [1] if self.scenario.parts.front in WITHOUT_BATCHES else [1, 1, 1, 3]

    async def send_once_more(self, entity: EntityPath) -> AcceptedBy | None:
        """Send a plain message; return what accepted it, None if it wasn't accepted."""
        message = self._message(f"last-{entity}")
        accepted = await self.send(entity, [attrs.evolve(message, scheduled=None)])
        return self.journal.accepted_by.get(f"last-{entity}") if accepted else None

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> bool:
        """
        Send the messages; True if they were accepted. False: they were refused, or the outcome is
        unknown.
        """
        began = trio.current_time()
        self._invoke(entity, messages, began)
        answer, accepted_by = await self._send(entity, messages)
        self._note(entity, messages, answer, accepted_by, began)
        return answer is Acked

    async def send_many(self, entity: EntityPath, batches: Sequence[Sequence[Message]]) -> None:
        """Send these batches in a pipeline, once."""
        began = trio.current_time()
        for messages in batches:
            self._invoke(entity, messages, began)
        answers = await self._send_many(entity, batches)
        for messages, answer in zip(batches, answers, strict=True):
            self._note(entity, messages, answer, None, began)
        self.journal.seen["pipelines"] += 1
        self.journal.seen["pipelines with several answers"] += len(set(answers)) > 1

    async def send_from_tasks(
        self, entity: EntityPath, batches: Sequence[Sequence[Message]]
    ) -> None:
        """
        Send each batch once, from a task of its own: all at the same time, or where there is an
        order each a moment later, so that it may go along with one that has waited.
        """
        async with trio.open_nursery() as nursery:
            for messages in batches:
                nursery.start_soon(self.send, entity, messages)
                if self.scenario.parts.ordered:
                    await trio.sleep(LATER)
        self.journal.seen["crowds"] += 1

    def _invoke(self, entity: EntityPath, messages: Sequence[Message], began: float) -> None:
        for message in messages:
            order = order_of(entity, message, self.scenario.pair.of(ORDERED).ordered)
            self.journal.records.append(invoked(entity, message, began, order))

    def _note(
        self,
        entity: EntityPath,
        messages: Sequence[Message],
        answer: Answer,
        accepted_by: AcceptedBy | None,
        began: float,
    ) -> None:
        now, ids = trio.current_time(), [str(message.message_id) for message in messages]
        if answer is Acked:
            by_id = (
                self.journal.accepted_by if accepted_by is None else dict.fromkeys(ids, accepted_by)
            )
            acks = [Acked(at=now, message_id=each, accepted_by=by_id.get(each)) for each in ids]
            self.journal.records.extend(acks)
            self.journal.acked.update(ids)
        else:
            self.journal.records.extend(answer(at=now, message_id=each) for each in ids)
        self.journal.note(f"{answer.__name__} {ids[0]} after {now - began:.3f} s")
        self.laws.note_send(
            ids[0],
            entity,
            accepted=answer is Acked,
            took=now - began,
            accepted_by=self.journal.accepted_by.get(ids[0]),
        )
        if answer is Failed:
            self.laws.note_failure(ids, began)
        elif answer is Unknown:
            self.laws.note_unknown(ids)

    async def _send_many(
        self, entity: EntityPath, batches: Sequence[Sequence[Message]]
    ) -> Sequence[Answer]:
        await trio.lowlevel.checkpoint()
        client = self.client
        assert client is None or isinstance(client, AdapterClient)
        deadline = self.scenario.clients_deadline
        verdicts: Sequence[BrokerError | None] = [OutcomeUnknown("too late")] * len(batches)
        with trio.move_on_after(inf if deadline is None else deadline):
            try:
                verdicts = await self.gateway.send_many(client, entity, batches)
            except BrokerError as error:
                verdicts = [error] * len(batches)
        return [
            Acked if error is None else self._answer_of(batch, error)
            for batch, error in zip(batches, verdicts, strict=True)
        ]

    def _answer_of(self, messages: Sequence[Message], error: BrokerError) -> Answer:
        self.journal.note(f"{messages[0].message_id}: {error!r}")
        self.laws.note_refusal(error)
        return Unknown if error.outcome is Outcome.UNKNOWN else Failed

    async def _send(
        self, entity: EntityPath, messages: Sequence[Message]
    ) -> tuple[Answer, AcceptedBy | None]:
        await trio.lowlevel.checkpoint()
        deadline = self.scenario.clients_deadline
        with trio.move_on_after(inf if deadline is None else deadline):
            try:
                return Acked, await self.gateway.send(self.client, entity, messages)
            except BrokerError as error:
                return self._answer_of(messages, error), None
        return Unknown, None

    def _message(self, message_id: str) -> Message:
        rng = self.rng
        scheduled = None
        if rng.random() < 0.15:
            scheduled = self.clock() + timedelta(seconds=rng.randint(1, 60))
        if self.scenario.parts.front is Front.RABBITMQ:  # which has no schedule
            scheduled = None
        return Message(
            message_id=message_id,
            body=rng.randbytes(rng.randint(0, 30)),
            properties={"number": rng.randint(0, 9), "text": "ä"},
            session_id=rng.choice(SESSIONS if self.scenario.parts.ordered else SOME_SESSIONS),
            subject=rng.choice([None, "label"]),
            time_to_live=rng.choice([None, None, None, timedelta(seconds=90), timedelta(hours=1)]),
            scheduled=scheduled,
        )


def order_of(entity: EntityPath, message: Message, patterns: Sequence[str]) -> str:
    """The key whose order the entity keeps; empty: none."""
    return key_of(entity, message).digest if is_ordered(entity, patterns) else ""


def invoked(entity: EntityPath, message: Message, now: float, order: str = "") -> Invoked:
    """The record of a send that begins."""
    not_before = -inf if message.scheduled is None else seconds(message.scheduled)
    life = inf if message.time_to_live is None else message.time_to_live.total_seconds()
    return Invoked(
        at=now,
        message_id=message.message_id,
        entity=entity.key,
        fingerprint=fingerprint(message),
        expires=max(now, not_before) + life,
        not_before=not_before,
        order=order,
    )


@attrs.define(eq=False, kw_only=True)
class Consumer:
    """Takes one entity's messages from the primary, and completes them."""

    entity: EntityPath
    primary: Broker
    journal: Journal

    async def run(self) -> None:
        while True:
            with trio.move_on_after(RECONNECT):
                try:
                    await self._consume()
                except BrokerError as error:
                    self.journal.note(f"consumer of {self.entity}: {error!r}")
            await trio.sleep(REST)

    async def _consume(self) -> None:
        async with self.primary.open_receiver(self.entity) as receiver:
            while True:
                for delivery in await receiver.receive(10):
                    self.journal.note_delivery(self.entity, delivery)
                    await receiver.settle(delivery, Complete())
                    self.journal.note_completion(self.entity, delivery)
