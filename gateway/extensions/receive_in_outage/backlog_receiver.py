"""
Receives diverted messages as they were sent, from the backlog queue of their entity.

The lock of the secondary alone says whose a message is: a receiver's or a syphon's. It is completed
there, and no syphon moves it any more.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import ClassVar, Final

import attrs
import trio

from gateway.capabilities import (
    KeepsMessages,
    ReceivesAvailable,
    ReceivesDeferred,
    TakesBack,
)
from gateway.capabilities.settling import settle_all, settle_one
from gateway.domain.dead_letters import EXPIRED, MALFORMED
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, Unwrapped
from gateway.domain.envelope_fields import Malformed, NotOurs, WrongMac
from gateway.domain.errors import BrokerError, MessageNotFound, NotSupported
from gateway.domain.events.gateway import DeadLettered, LeftUntouched
from gateway.domain.message import (
    MAX_REASON_LENGTH,
    Complete,
    DeadLetter,
    Delivery,
    Settlement,
    derive_message,
)
from gateway.domain.values import deriving
from gateway.moments import Moments
from gateway.offering import Wrapper, required
from gateway.pairing.options import SyphonOptions
from gateway.pairing.syphon.backlog_message import BacklogMessage
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.drained_queue import open_delivery
from gateway.pairing.syphon.mover import has_expired
from gateway.ports import Observer, Receiver

_derived: Final = deriving(Delivery)
_SECONDS: Final = 10.0  # for the settlement of a message that nobody can use


@attrs.frozen(eq=False, kw_only=True)
class BacklogOpening:
    """The parts of a pair that tell whose a backlog message is, and what was sent in it."""

    envelope: Envelope
    destination: Destination
    moments: Moments
    options: SyphonOptions
    observer: Observer
    done: Callable[[EntityPath, int], None]  # as many messages were completed at the backlog


@attrs.define(eq=False, kw_only=True)
class BacklogReceiver(Wrapper):
    """
    A `Receiver` of an entity's messages at `queue`, whose receiver `inner` is. A message that isn't
    the entity's is left untouched, as a syphon leaves it.
    """

    inner: Receiver
    entity: EntityPath
    queue: EntityPath
    opening: BacklogOpening
    forwards: ClassVar[frozenset[type]] = frozenset((KeepsMessages, TakesBack))

    async def receive(self, limit: int) -> Sequence[Delivery]:
        while True:
            found = await self._opened(await self.inner.receive(limit))
            if found:
                return found

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        receiver = required(self.inner, ReceivesAvailable)
        while taken := await receiver.receive_available(limit):
            found = await self._opened(taken)
            if found:
                return found
        return ()

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """As `ReceivesDeferred.receive_deferred`."""
        receiver = required(self.inner, ReceivesDeferred)
        found = await self._opened(await receiver.receive_deferred(sequence_numbers))
        if len(found) < len(sequence_numbers):
            raise MessageNotFound(f"{self.entity}: a deferred message can't be read any more")
        return found

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        _check(settlement)
        await self.inner.settle(delivery.handle, settlement)
        self._count_done([(settlement, None)])

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        refused = [_refusal(settlement) for _, settlement in settlements]
        asked = [
            (delivery.handle, settlement)
            for (delivery, settlement), refusal in zip(settlements, refused, strict=True)
            if refusal is None
        ]
        verdicts = iter(await settle_all(self.inner, asked) if asked else ())
        found = [next(verdicts) if refusal is None else refusal for refusal in refused]
        settled = [settlement for _, settlement in settlements]
        self._count_done(list(zip(settled, found, strict=True)))
        return found

    async def renew(self, delivery: Delivery) -> datetime:
        return await self.inner.renew(delivery.handle)

    def _count_done(self, verdicts: Sequence[tuple[Settlement, BrokerError | None]]) -> None:
        done = sum(isinstance(each, Complete) and error is None for each, error in verdicts)
        if done:
            self.opening.done(self.entity, done)

    async def _opened(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """The messages as they were sent; those that nobody can use are dead-lettered."""
        found: list[Delivery] = []
        useless: list[tuple[Delivery, str, str]] = []
        now, untouched = self.opening.moments.now(), dict[str, int]()
        for delivery in deliveries:
            try:
                unwrapped = unwrap(self.opening, self.entity, delivery)
            except (NotOurs, WrongMac) as error:
                untouched[str(error)] = untouched.get(str(error), 0) + 1
                continue
            except Malformed as error:
                useless.append((delivery, MALFORMED, str(error)))
                continue
            message = BacklogMessage.of(self.queue, delivery, unwrapped, trio.current_time())
            if message.can_expire and has_expired(message, now, self.opening.options):
                useless.append((delivery, EXPIRED, "the time to live ended on the backlog"))
            else:
                found.append(as_sent(delivery, unwrapped))
        for reason, messages in untouched.items():
            self.opening.observer.report(
                LeftUntouched(queue=self.queue, messages=messages, reason=reason)
            )
        for delivery, reason, description in useless:
            await self._dead_letter(delivery, reason, description[:MAX_REASON_LENGTH])
        return found

    async def _dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        """Dead-letter the message; without an answer it comes again, to a syphon or a receiver."""
        settlement = DeadLetter(reason=reason, description=description)
        if await settle_one(self.inner, delivery, settlement, _SECONDS) is None:
            message_id = str(delivery.message.message_id)
            self.opening.observer.report(
                DeadLettered(
                    queue=self.queue, message_id=message_id, reason=reason, description=description
                )
            )


def unwrap(opening: BacklogOpening, entity: EntityPath, delivery: Delivery) -> Unwrapped:
    """
    Unwrap a message of the entity.

    Raises:
        NotOurs, WrongMac: the message must be left untouched.
        Malformed: the message must be dead-lettered.
    """
    unwrapped = open_delivery(delivery, opening.envelope, opening.destination)
    if unwrapped.entity != entity:
        raise NotOurs(f"the message was sent to {unwrapped.entity}, not to {entity}")
    session_id = delivery.message.session_id
    if session_id is not None and session_id != unwrapped.message.session_id:
        raise Malformed("the message is in another session than the one that it was sent in")
    return unwrapped


def as_sent(delivery: Delivery, unwrapped: Unwrapped) -> Delivery:
    """The delivery with the message as its sender sent it."""
    message = derive_message(unwrapped.message, time_to_live=unwrapped.time_to_live)
    return _derived(delivery, message=message, expires=unwrapped.expires)


def _check(settlement: Settlement) -> None:
    refusal = _refusal(settlement)
    if refusal is not None:
        raise refusal


def _refusal(settlement: Settlement) -> NotSupported | None:
    """The error of a settlement that would change the signed message; None: it doesn't."""
    if isinstance(settlement, Complete) or not settlement.properties:
        return None
    return NotSupported(
        "the message was received from the backlog, where it is signed: a settlement can't change"
        " its properties"
    )


def shown(
    opening: BacklogOpening, entity: EntityPath, peeked: Sequence[Delivery]
) -> Iterator[Delivery]:
    """The peeked messages that are the entity's, as they were sent."""
    for delivery in peeked:
        try:
            yield as_sent(delivery, unwrap(opening, entity, delivery))
        except (NotOurs, Malformed):
            continue
