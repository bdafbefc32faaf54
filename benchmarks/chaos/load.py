"""The load of a run: open loops, consumers, and a watcher."""

import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.chaos.topologies import CONSUMED, Installation, KnownQueues
from benchmarks.stopwatch import processor_time
from benchmarks.traffic import BODY, OpenLoop
from gateway.brokers.joined.sequence import inward_number
from gateway.capabilities import SessionReceiver, Sessions
from gateway.checker.history import Sampled
from gateway.checker.operations import (
    Completed,
    Delivered,
    Record,
    SessionAccepted,
    SessionServed,
    Uncertain,
    fingerprint,
)
from gateway.demo.audit import pending
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import AcceptedBy, Complete, Delivery
from gateway.offering import required
from gateway.ports import Broker, Receiver
from tests.harness.rabbitmq_contents import as_published

LOOK: Final = 0.25  # seconds
PATIENCE: Final = 0.5  # seconds: the depth of a namespace without an answer by then is unknown
PAGE: Final = 20
REST: Final = 0.2  # seconds after a failure
RECEIVERS: Final = (
    5  # of sessions, at each queue: one less than there are, so that each is passed on
)
SILENCE: Final = 0.5  # seconds without a message after which a receiver takes another session
TENURE: Final = 2.0  # seconds after which it does so though there is more
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")


@attrs.define(eq=False)
class Consumer:
    """
    Takes all messages of one entity from the primary, and completes them; through the gateway from
    both sides, where the scenario receives in an outage.
    """

    installation: Installation
    entity: EntityPath
    name: str
    records: list[Record] = attrs.field(factory=list)
    arrivals: dict[str, float] = attrs.field(factory=dict)  # when each message first came
    enqueued: dict[str, float] = attrs.field(factory=dict)  # when the namespace first had it
    # When each copy of a message expires, by Trio's clock, where it says so.
    ends: list[tuple[str, float]] = attrs.field(factory=list)

    async def run(self) -> None:
        """Receive until cancelled; go on after each error."""
        async with self.installation.consumers_client() as broker:
            while True:
                try:
                    await self._receive(broker)
                except BrokerError:
                    await trio.sleep(REST)

    async def _receive(self, broker: Broker) -> None:
        """Return when there is no more for this receiver."""
        async with broker.open_receiver(self.entity) as receiver:
            while True:
                for delivery in await receiver.receive(PAGE):
                    await self._consume(receiver, delivery)

    async def _consume(self, receiver: Receiver, delivery: Delivery) -> None:
        copy = str(delivery.sequence_number)
        delivered = Delivered(
            at=trio.current_time(),
            message_id=str(delivery.message.message_id),
            entity=self.entity.key,
            fingerprint=fingerprint(as_published(delivery.message)),
            copy=copy,
            expires=math.inf if delivery.expires is None else None,
        )
        self.arrivals.setdefault(delivered.message_id, delivered.at)
        if delivery.enqueued is not None:
            age = (datetime.now(UTC) - delivery.enqueued).total_seconds()
            first = self.enqueued.get(delivered.message_id, math.inf)
            self.enqueued[delivered.message_id] = min(first, delivered.at - age)
        if delivery.expires is not None:
            left = (delivery.expires - datetime.now(UTC)).total_seconds()
            self.ends.append((delivered.message_id, delivered.at + left))
        if self.installation.scenario.receives_in_outage:
            await self._complete(receiver, delivery, delivered)
            return
        self.records.append(delivered)
        await receiver.settle(delivery, Complete())
        if self.installation.primary.server.keeps_completions:
            done = Completed(at=trio.current_time(), entity=self.entity.key, copy=copy)
            self.records.append(done)

    async def _complete(self, receiver: Receiver, delivery: Delivery, delivered: Delivered) -> None:
        """
        Record what is done, or perhaps: a message that was only seen at the backlog may come home,
        as another copy.
        """
        is_done: bool | None = None
        try:
            await receiver.settle(delivery, Complete())
            is_done = True
        except BrokerError as error:
            is_done = False if error.outcome is Outcome.NOT_SENT else None
            raise
        finally:
            if is_done is not False:
                self.records.append(delivered)
            if is_done is None:  # the settlement was cancelled, or had no answer
                self.records.append(
                    Uncertain(at=trio.current_time(), message_id=delivered.message_id)
                )


@attrs.define(eq=False)
class SessionConsumer(Consumer):
    """The same, session by session."""

    _accepted: int = attrs.field(default=0, init=False)

    async def _receive(self, broker: Broker) -> None:
        sessions = required(broker, Sessions)
        async with sessions.open_session(self.entity, None) as session:
            self._accepted += 1
            accepted = SessionAccepted(
                at=trio.current_time(),
                entity=self.entity.key,
                session=session.session_id,
                receiver=f"{self.name}, {self._accepted}",
            )
            self.records.append(accepted)
            silence = trio.current_time() + SILENCE
            while trio.current_time() < min(silence, accepted.at + TENURE):
                found: Sequence[Delivery] = ()
                with trio.move_on_at(silence):
                    found = await session.receive(PAGE)
                for delivery in found:
                    await self._serve(session, accepted, delivery)
                    silence = trio.current_time() + SILENCE

    async def _serve(
        self, session: SessionReceiver, accepted: SessionAccepted, delivery: Delivery
    ) -> None:
        asked = trio.current_time()
        await self._consume(session, delivery)
        side, number = inward_number(delivery.sequence_number)
        self.records.append(
            SessionServed(
                at=trio.current_time(),
                entity=accepted.entity,
                session=accepted.session,
                receiver=accepted.receiver,
                asked=asked,
                message_id=str(delivery.message.message_id),
                side=side,
                number=number,
            )
        )


def consumers_of(installation: Installation) -> list[Consumer]:
    """A consumer of each consumed queue; of a queue with sessions, several."""
    queues = [EntityPath(queue) for queue in CONSUMED]
    if not installation.scenario.sessions:
        return [Consumer(installation, queue, f"consumer of {queue.key}") for queue in queues]
    return [
        SessionConsumer(installation, queue, f"consumer {number} of {queue.key}")
        for queue in queues
        for number in range(RECEIVERS)
    ]


@attrs.frozen
class Backlog:
    """
    The backlog according to the load, beside the depth that the secondary reports. RabbitMQ and
    Storage Queue don't count locked messages.
    """

    queues: KnownQueues
    loops: Sequence[OpenLoop]
    consumers: Sequence[Consumer]

    async def left(self) -> int | None:
        """Messages on the backlog; None: the secondary doesn't answer in time."""
        with trio.move_on_after(PATIENCE):
            try:
                return max(await pending(self.queues), self._under_way())
            except BrokerError:
                return None
        return None

    def _under_way(self) -> int:
        """
        The messages that the backlog acknowledged, or anything where no answer says what, and that
        haven't arrived; a scheduled message arrives when it's due.
        """
        diverted = {
            send.message_id
            for loop in self.loops
            for send in loop.sends
            if math.isfinite(send.answered)
            and send.accepted_by in {None, AcceptedBy.BACKLOG}
            and send.message_id not in loop.dated
        }
        return len(diverted - {identity for one in self.consumers for identity in one.arrivals})


@attrs.frozen(kw_only=True)
class Depth:
    """The number of messages on the backlog at that time; None: the secondary doesn't answer."""

    at: float
    messages: int | None


@attrs.define(eq=False)
class Watcher:
    """Measures the gateway and the backlog, from outside."""

    installation: Installation
    loops: Sequence[OpenLoop]
    backlog: Backlog
    records: list[Record] = attrs.field(factory=list, init=False)
    depths: list[Depth] = attrs.field(factory=list, init=False)
    memory: int = attrs.field(default=0, init=False)  # bytes, the most that were seen
    files: int = attrs.field(default=0, init=False)  # open at once, the most that were seen

    async def run(self) -> None:
        """Watch the gateway and the backlog until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_backlog)
            while True:
                self._look_at_gateway()
                await trio.sleep(LOOK)

    def _look_at_gateway(self) -> None:
        pid = self.installation.gateway.pid
        try:
            processor = processor_time(pid)
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except (OSError, ValueError):
            return  # the process was just killed
        self.memory = max(self.memory, pages * _PAGE_SIZE)
        self.files = max(self.files, files)
        waiting = sum(loop.under_way for loop in self.loops)
        self.records.append(
            Sampled(
                at=trio.current_time(),
                process=f"gateway {pid}",
                inflight=waiting * len(BODY),
                processor=processor,
                load=os.getloadavg()[0] / (os.cpu_count() or 1),
            )
        )

    async def _watch_backlog(self) -> None:
        while True:
            messages = await self.backlog.left()
            self.depths.append(Depth(at=trio.current_time(), messages=messages))
            await trio.sleep(LOOK)
