"""The way to the backlog: a randomly chosen queue on the secondary, the next one if that fails."""

from typing import Final

import attrs
import trio

from gateway.capabilities import FailsFast
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import MESSAGE_FAULTS, BrokerError
from gateway.domain.events import Diverted
from gateway.domain.message import Leg
from gateway.pairing.rotation import Rotation
from gateway.pairing.sending import SHORTEST_ATTEMPT, Sending, send_in_time
from gateway.ports import Broker, NewId, Observer, WallClock

# Of the time left: where queues hang, one after the other, the primary and the spool want a turn.
RESERVE: Final = 0.25


@attrs.define(eq=False, kw_only=True)
class BacklogLeg:
    """Wraps messages and sends them to a backlog queue of `broker`: the secondary, or the spool."""

    broker: Broker
    rotation: Rotation
    envelope: Envelope
    clock: WallClock
    new_id: NewId
    observer: Observer
    leg: Leg = Leg.BACKLOG

    async def take(self, sending: Sending, *, until_one_hangs: bool = False) -> bool:
        """
        True: a queue has the messages. False: none took them, `sending.error` says why.

        With `until_one_hangs` that is also said after the first attempt without an answer.
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
                return False  # the next queue would say the same
        return False

    async def take_after_all(self, sending: Sending) -> bool:
        """
        No other way is left: ask one queue more, where `take` may have failed without connecting.
        """
        in_doubt = isinstance(self.broker, FailsFast) and sending.fault is None
        if not in_doubt or sending.backlog_hangs or sending.backlog_seconds < SHORTEST_ATTEMPT:
            return False
        [queue, *_] = self.rotation.candidates()
        return await self._attempt(sending, queue, has_other_way=False) is None

    async def _attempt(
        self, sending: Sending, queue: EntityPath, *, has_other_way: bool
    ) -> BrokerError | None:
        attempt, now = self.new_id(), self.clock()
        wrapped = [
            self.envelope.wrap(message, sending.entity, attempt=attempt, now=now)
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
            sending.failed(error)
            return error
        self.rotation.worked(queue)
        self.observer.report(
            Diverted(entity=sending.entity, leg=self.leg, queue=queue, messages=len(wrapped))
        )
        return None
