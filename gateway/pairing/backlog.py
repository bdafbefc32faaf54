"""Sends to the backlog: to a random queue of the secondary, and to the next if that fails."""

import random
from collections.abc import Sequence
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
from gateway.pairing.sending import SHORTEST_ATTEMPT, Sending, send_in_time
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker, NewId, Observer

# Share of the time left that is kept for the primary and the spool where backlog queues hang.
RESERVE: Final = 0.25


@attrs.define(eq=False, kw_only=True)
class Rotation:
    """The usable backlog queues of the secondary."""

    queues: Sequence[EntityPath]
    cooldown: float  # seconds
    rng: random.Random
    observer: Observer
    _cooling_down: dict[str, float] = attrs.field(factory=dict, init=False)  # until when

    def candidates(self) -> list[EntityPath]:
        """
        All queues, each once, in random order, with those that cool down last.

        These are a last resort, so that a short failure of the whole secondary doesn't exclude it
        for the whole cool-down.
        """
        return sorted(backlog.queues_to_try(self.queues, self.rng), key=self._cools_down)

    @property
    def usable(self) -> int:
        """The number of queues that don't cool down."""
        return sum(not self._cools_down(queue) for queue in self.queues)

    def failed(self, queue: EntityPath, reason: str) -> None:
        """Begin the cool-down of a queue."""
        if not self._cools_down(queue):
            self.observer.report(
                BacklogQueueFailed(queue=queue, seconds=self.cooldown, reason=reason)
            )
        self._cooling_down[queue.key] = trio.current_time() + self.cooldown

    def worked(self, queue: EntityPath) -> None:
        """End the cool-down of a queue."""
        self._cooling_down.pop(queue.key, None)

    def _cools_down(self, queue: EntityPath) -> bool:
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

    async def take(self, sending: Sending, *, until_one_hangs: bool = False) -> bool:
        """
        Send to the backlog queues, one after the other, until one accepts the messages.

        False: none accepted them; `sending.errors` has the reasons. With `until_one_hangs` the
        first attempt without an answer ends the call, too.
        """
        reserve = sending.left * RESERVE
        for queue in self.rotation.candidates():
            if until_one_hangs and sending.backlog_hangs:
                return False
            if sending.left < reserve or sending.backlog_seconds < SHORTEST_ATTEMPT:
                return False
            error = await self._attempt(sending, queue, has_other_way=True)
            if error is None:
                return True
            if isinstance(error, MESSAGE_FAULTS):
                sending.fault = error
                return False  # every other queue would refuse it, too
        return False

    async def take_after_all(self, sending: Sending) -> bool:
        """
        Try one more queue with a real connection, if no other way is left and `take` may have
        failed for a reason that is over: it failed without connecting, or a connection broke that
        was older than the namespace's last outage.
        """
        failed_fast = offered(self.broker, FailsFast) is not None
        last = sending.errors.get(self.accepted_by)
        broke = last is not None and last.outcome is Outcome.UNKNOWN
        if sending.fault is not None or sending.backlog_hangs or not (failed_fast or broke):
            return False
        if sending.backlog_seconds < SHORTEST_ATTEMPT:
            return False
        [queue, *_] = self.rotation.candidates()
        return await self._attempt(sending, queue, has_other_way=False) is None

    async def _attempt(
        self, sending: Sending, queue: EntityPath, *, has_other_way: bool
    ) -> BrokerError | None:
        attempt, taken = self.new_id(), to_date(sending.taken.latest)
        primary = self.destination.fingerprint
        wrapped = [
            self.envelope.wrap(message, sending.entity, attempt=attempt, now=taken, primary=primary)
            for message in sending.messages
        ]
        seconds = sending.backlog_seconds
        ends = trio.current_time() + seconds
        try:
            await send_in_time(self.broker, queue, wrapped, seconds, has_other_way)
        except BrokerError as error:
            sending.backlog_hangs |= trio.current_time() >= ends
            if not isinstance(error, MESSAGE_FAULTS):
                self.rotation.failed(queue, str(error))
            sending.failed(error, self.accepted_by)
            return error
        self.rotation.worked(queue)
        self.observer.report(
            Diverted(
                entity=sending.entity,
                accepted_by=self.accepted_by,
                queue=queue,
                messages=len(wrapped),
                in_doubt=sending.in_doubt,
            )
        )
        return None
