"""A backlog queue with all that a drain needs: the rules that no order of moving changes."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import attrs
import trio

from gateway.capabilities import SessionReceiver, Sessions
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.copies import Copies
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, Unwrapped
from gateway.domain.envelope_fields import NotOurs, WrongMac
from gateway.domain.errors import BrokerError, SessionLockLost
from gateway.domain.events.gateway import LeftUntouched
from gateway.domain.message import Delivery
from gateway.moments import Moments
from gateway.offering import offered, required
from gateway.pairing.options import SyphonOptions
from gateway.pairing.syphon.backlog_message import BacklogQueueInfo, Progress
from gateway.pairing.syphon.backoff import EntityBackoffs
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.grace import Grace
from gateway.pairing.syphon.mover import LOCK_SHARE, Mover
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.redelivery_guard import RedeliveryGuard
from gateway.ports import Broker, Observer, Receiver, WallClock

# Attempt time-outs after which a slow batch isn't waited for: more than one, so that a send that
# has its answer in time is waited for, and less than `mover.LATE`.
PATIENCE: Final = 1.5


@attrs.define(eq=False, kw_only=True)
class DrainedQueue:
    """A backlog queue as its drain has it. `info` is what the syphon's last look has found."""

    primary: Broker
    source: Broker
    queue: EntityPath
    envelope: Envelope
    destination: Destination
    options: SyphonOptions
    backoffs: EntityBackoffs
    copies: Copies
    progress: Progress
    wrong_macs: Grace  # by the id of the key
    redelivery_guard: RedeliveryGuard
    clock: WallClock
    moments: Moments
    observer: Observer
    pauses: Pauses = attrs.field(factory=Pauses)
    info: BacklogQueueInfo = attrs.field(factory=BacklogQueueInfo, init=False)

    def update(self, info: BacklogQueueInfo) -> None:
        """Use these facts about the queue from now on."""
        self.info = info

    def open(self, delivery: Delivery) -> Unwrapped:
        """
        Unwrap the diverted message, with its date of expiry.

        Raises:
            NotOurs: the message must be left untouched, at least for now.
            Malformed: the message must be dead-lettered.
        """
        try:
            return open_delivery(delivery, self.envelope, self.destination)
        except WrongMac as error:
            if self.wrong_macs.lasted(error.key_id) < self.options.gone_grace:
                raise NotOurs(str(error)) from error
            raise

    def report_untouched(self, messages: int, reason: str) -> None:
        """Report messages that the drain leaves on the queue, for that reason."""
        self.observer.report(LeftUntouched(queue=self.queue, messages=messages, reason=reason))

    async def hold_session(
        self,
        wanted: str | None,
        empty: Callable[[SessionReceiver], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[BrokerError | None],
    ) -> None:
        """
        Lock that session of the queue, or any, and let `empty` move its messages. Starts once it is
        locked, or with the error. A session that can't be released in time is left to its lock.
        """
        locked, sessions = False, required(self.source, Sessions)
        try:
            with trio.CancelScope() as scope:
                async with sessions.open_session(self.queue, wanted) as receiver:
                    locked = True
                    task_status.started(None)
                    await empty(receiver)
                    scope.deadline = trio.current_time() + self.options.attempt_timeout
        except BrokerError as error:
            if not locked:
                task_status.started(error)

    def session_key(self, session: str) -> str:
        """The key of a session's copies, as of a queue's."""
        return f"{self.queue.key}\n{session}"

    async def keep_session(self, receiver: SessionReceiver, scope: trio.CancelScope) -> None:
        """Renew the lock of a session of the queue. If it was lost, `scope` is cancelled."""
        while True:
            now, usual = trio.current_time(), self.info.shortest_lock
            ends = LockEnds.of(receiver.locked_until, self.clock(), now, usual)
            await trio.sleep(max((ends.earliest - now) / LOCK_SHARE, 0.1))
            with trio.move_on_after(PATIENCE * self.options.attempt_timeout):
                try:
                    await receiver.renew_session()
                except SessionLockLost:
                    scope.cancel()
                except BrokerError:
                    pass  # a receive tells whether the session is lost

    def mover(self, receiver: Receiver, *, in_session: bool = False) -> Mover:
        """A mover at that receiver of the queue, or of one of its sessions."""
        return Mover(
            primary=self.primary,
            receiver=receiver,
            receiver_queue=self.queue,
            backoffs=self.backoffs,
            options=self.options,
            copies=self.copies,
            progress=self.progress,
            clock=self.clock,
            moments=self.moments,
            observer=self.observer,
            lock=lambda: self.info.shortest_lock,
            in_session=in_session,
            one_by_one=in_session and offered(self.primary, Sessions) is None,
        )


def open_delivery(delivery: Delivery, envelope: Envelope, destination: Destination) -> Unwrapped:
    """
    Unwrap the diverted message, with its date of expiry.

    Raises:
        NotOurs: the message must be left untouched.
        WrongMac: the same, as long as its key may be replaced.
        Malformed: the message must be dead-lettered.
    """
    unwrapped = envelope.unwrap(delivery.message)
    if not destination.accepts(unwrapped.primary):
        raise NotOurs(
            f"the message was meant for another primary, with the fingerprint"
            f" {unwrapped.primary}: the syphon of that pair moves it. If this primary has"
            f" replaced that primary, start the syphon with `--adopt {unwrapped.primary}`"
        )
    if unwrapped.expires is not None or unwrapped.time_to_live is None:
        return unwrapped
    if delivery.enqueued is None:
        return unwrapped
    # The legacy client writes no expiry: the time to live starts when the message was diverted, or
    # at its scheduled date.
    begin = max(delivery.enqueued, unwrapped.message.scheduled or delivery.enqueued)
    try:
        return attrs.evolve(unwrapped, expires=begin + unwrapped.time_to_live)
    except OverflowError:  # past the year 9999
        return unwrapped


class Drains(Protocol):
    """Empties one backlog queue."""

    @property
    def at(self) -> DrainedQueue: ...

    async def run(self) -> BrokerError:
        """
        Drain until the queue can't be read any more; return why. All locks are released.

        Raises:
            NotSupported: the namespace has no such queues.
        """
        ...


@attrs.frozen(kw_only=True)
class DrainKind:
    """
    The extension point of a syphon: backlog queues that need a drain of their own. All others have
    the usual one, `Drain`.
    """

    covers: Callable[[EntityPath], bool]
    # The queues that there may be for a label on a source that can't list them: all, or none of
    # them.
    queues: Callable[[str, Broker], Sequence[EntityPath]]
    make: Callable[[DrainedQueue], Drains]
