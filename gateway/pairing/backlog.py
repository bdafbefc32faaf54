"""Sends to the backlog: to a random queue of the secondary, and to the next if that fails."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Final

import attrs
import trio

from gateway.capabilities import FailsFast
from gateway.domain import backlog
from gateway.domain.clocks.times import to_date
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import MESSAGE_FAULTS, BrokerError, Outcome
from gateway.domain.events.gateway import BacklogQueueFailed, Diverted
from gateway.domain.message import AcceptedBy
from gateway.offering import offered
from gateway.pairing.sending import SHORTEST_ATTEMPT, Batch, Sending, send_each_in_time, time_limit
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker, NewId, Observer

# The share of the remaining time that is kept for the primary and the spool while backlog queues
# hang.
RESERVE: Final = 0.25
PACE: Final = 1.0  # seconds between two last attempts
NO_PLACES: Final = repeat("")  # of messages without an order

ChoosesQueue = Callable[[Sending, Batch], EntityPath | None]
"""The backlog queue that a batch goes to before any other one; None: any is as good."""


@attrs.define(eq=False, kw_only=True)
class Rotation:
    """The usable backlog queues of the secondary."""

    queues: Sequence[EntityPath]
    cooldown: float  # seconds
    rng: random.Random
    observer: Observer
    # The end of the cool-down, by the queue's key.
    _cooling_down: dict[str, float] = attrs.field(factory=dict, init=False)

    def candidates(self) -> list[EntityPath]:
        """
        All queues, each once, in random order, with those that cool down last.

        These are a last resort, so that a short failure of the whole secondary doesn't exclude it
        for the whole cool-down.
        """
        return sorted(backlog.queues_to_try(self.queues, self.rng), key=self.cools_down)

    @property
    def usable(self) -> int:
        """The number of queues that don't cool down."""
        return sum(not self.cools_down(queue) for queue in self.queues)

    def failed(self, queue: EntityPath, reason: str) -> None:
        """Begin the cool-down of a queue."""
        if not self.cools_down(queue):
            self.observer.report(
                BacklogQueueFailed(queue=queue, seconds=self.cooldown, reason=reason)
            )
        self._cooling_down[queue.key] = trio.current_time() + self.cooldown

    def worked(self, queue: EntityPath) -> None:
        """End the cool-down of a queue."""
        self._cooling_down.pop(queue.key, None)

    def cools_down(self, queue: EntityPath) -> bool:
        """True if the queue has failed, and its cool-down isn't over."""
        until = self._cooling_down.get(queue.key)
        return until is not None and trio.current_time() < until


@attrs.define(eq=False, kw_only=True)
class BacklogSender:
    """Wraps messages and sends them to a backlog queue of `broker`: the secondary, or the spool."""

    broker: Broker
    rotation: Rotation
    envelope: Envelope
    new_id: NewId
    observer: Observer
    accepted_by: AcceptedBy = AcceptedBy.BACKLOG
    destination: Destination
    choices: Sequence[ChoosesQueue] = ()

    async def send_to_queue(
        self, sending: Sending, queue: EntityPath, places: Iterator[str], *, has_other_way: bool
    ) -> bool:
        """
        Try one backlog queue, for messages that keep an order; `places` has the place of each.

        True: each batch has its verdict. With `has_other_way` as in `send_each_in_time`.
        """
        batches = [batch for batch in sending.pending if batch.fault is None]
        if batches and sending.backlog_seconds >= SHORTEST_ATTEMPT:
            await self._attempt(sending, batches, queue, has_other_way=has_other_way, places=places)
        return not sending.pending

    async def send_to_backlog(self, sending: Sending, *, until_one_hangs: bool = False) -> bool:
        """
        Send to the backlog queues, one after the other, until one accepts the messages. The batches
        of a call go to one queue, in their order; those that it doesn't accept, to the next.

        True: each batch has its verdict. False: some weren't accepted; their `errors` have the
        reasons. With `until_one_hangs` the first attempt without an answer ends the call, too.
        """
        reserve = sending.left * RESERVE
        await self._send_to_chosen(sending)
        for queue in self.rotation.candidates():
            # Every other queue would refuse a batch for its fault, too.
            batches = [batch for batch in sending.pending if batch.fault is None]
            if not batches or (until_one_hangs and sending.backlog_hangs):
                break
            if sending.left < reserve or sending.backlog_seconds < SHORTEST_ATTEMPT:
                break
            await self._attempt(sending, batches, queue, has_other_way=True)
        return not sending.pending

    async def _send_to_chosen(self, sending: Sending) -> None:
        """Try the queue that batches go to before any other one, unless it cools down."""
        chosen: dict[EntityPath, list[Batch]] = {}
        for batch in sending.pending if self.choices else ():
            found = (choose(sending, batch) for choose in self.choices)
            queue = next((each for each in found if each is not None), None)
            if queue is not None and batch.fault is None and not self.rotation.cools_down(queue):
                chosen.setdefault(queue, []).append(batch)
        for queue, batches in chosen.items():
            if sending.backlog_seconds >= SHORTEST_ATTEMPT:
                await self._attempt(sending, batches, queue, has_other_way=True)

    async def send_to_backlog_after_all(self, sending: Sending) -> bool:
        """
        Try one more queue with a real connection, if no other way is left and `send_to_backlog` may
        have failed for a reason that is over: it failed without connecting, or a connection broke
        that was older than the namespace's last outage. Return as `send_to_backlog`.

        While queues hang, try the next ones as long as there is time for a whole attempt: a cluster
        whose leaders are cut off elects others.
        """
        failed_fast = offered(self.broker, FailsFast) is not None
        while True:
            hangs = sending.backlog_hangs
            batches = [
                batch
                for batch in sending.pending
                if batch.fault is None and (failed_fast or hangs or self._broke(batch))
            ]
            shortest = sending.attempt_timeout if hangs else SHORTEST_ATTEMPT
            if not batches or sending.backlog_seconds < shortest:
                break
            next_at = trio.current_time() + PACE
            [queue, *_] = self.rotation.candidates()
            await self._attempt(sending, batches, queue, has_other_way=False)
            if not hangs or not sending.pending:
                break
            await trio.sleep_until(next_at)
        return not sending.pending

    def _broke(self, batch: Batch) -> bool:
        last = batch.errors.get(self.accepted_by)
        return last is not None and last.outcome is Outcome.UNKNOWN

    async def _attempt(
        self,
        sending: Sending,
        batches: Sequence[Batch],
        queue: EntityPath,
        *,
        has_other_way: bool,
        places: Iterator[str] = NO_PLACES,
    ) -> None:
        attempt, taken = self.new_id(), to_date(sending.taken.latest)
        primary = self.destination.fingerprint
        wrapped = [
            [
                backlog.placed(
                    self.envelope.wrap(
                        message,
                        sending.entity,
                        attempt=attempt,
                        now=taken,
                        primary=primary,
                        place=next(places),
                    ),
                    message,
                    queue,
                )
                for message in batch.messages
            ]
            for batch in batches
        ]
        seconds = sending.backlog_seconds
        ends = trio.current_time() + seconds
        limit = time_limit(self.broker, queue, seconds)
        verdicts = await send_each_in_time(
            self.broker, queue, wrapped, limit, has_other_way=has_other_way
        )
        trouble: BrokerError | None = None
        accepted: dict[bool, int] = {}  # messages, by whether they were in doubt
        for batch, error in zip(batches, verdicts, strict=True):
            if error is None:
                in_doubt = sending.in_doubt(batch)
                accepted[in_doubt] = accepted.get(in_doubt, 0) + len(batch.messages)
                batch.accepted_by = self.accepted_by
                continue
            sending.backlog_hangs |= trio.current_time() >= ends
            if isinstance(error, MESSAGE_FAULTS):
                batch.fault = error
            else:
                trouble = error
            sending.failed(batch, error, self.accepted_by)
        if trouble is not None:
            self.rotation.failed(queue, str(trouble))
        elif accepted:
            self.rotation.worked(queue)
        for in_doubt, messages in accepted.items():
            self.observer.report(
                Diverted(
                    entity=sending.entity,
                    accepted_by=self.accepted_by,
                    queue=queue,
                    messages=messages,
                    in_doubt=in_doubt,
                )
            )
