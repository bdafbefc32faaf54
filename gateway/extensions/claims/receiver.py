"""
Receives messages whose bodies are in a store.

    the body was read              the message is delivered as it was sent
    the store doesn't answer       held: it stays locked here and is tried again, others go on
    the body is lost or damaged    held for `missing_grace`, then dead-lettered with the reason
    it was completed before        completed: a duplicate of a send whose outcome was unknown

A held message keeps its lock, so that an outage of the store doesn't count as deliveries.
"""

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Final

import attrs
import trio

from gateway.capabilities import ReceivesAvailable, ReceivesDeferred
from gateway.capabilities.settling import settle_all
from gateway.domain.bounded import Bounded
from gateway.domain.clocks.lock_ends import ENDLESS, OVER, LockEnds
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, LockLost, Outcome, QuotaExceeded, Unavailable
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.extensions.claims import claim as claims
from gateway.extensions.claims.body_reads import BodyRead, BodyReads
from gateway.extensions.claims.claim import Claim, ClaimCorrupt, ClaimMissing
from gateway.extensions.claims.claim_check import LAST_STEP, ClaimCheck
from gateway.extensions.claims.events import ClaimBackingOff, ClaimCopyDropped, ClaimLost
from gateway.extensions.claims.waiting import WaitingReceives
from gateway.offering import Wrapper, required
from gateway.ports import Observer, Receiver, WallClock

CLAIM_MISSING: Final = "ClaimMissing"
CLAIM_CORRUPT: Final = "ClaimCorrupt"
MAX_HELD: Final = 100  # deliveries; with more, nothing else is received
MAX_UNSETTLED: Final = 100_000  # claims; bodies of older ones are deleted by age
MAX_MISSES: Final = 10_000  # claims; beyond it the grace of the oldest begins again
_REASONS: Final = {ClaimMissing: CLAIM_MISSING, ClaimCorrupt: CLAIM_CORRUPT}
_LEAST_PAUSE: Final = 0.1  # seconds: a store that says "at once" isn't asked without a pause


@attrs.define(eq=False, kw_only=True)
class ClaimDependencies:
    """State that all receivers of one gateway share."""

    clock: WallClock
    rng: random.Random
    observer: Observer
    misses: Bounded[str, float] = attrs.field(
        factory=lambda: Bounded(MAX_MISSES)
    )  # the begin, by claim

    def missed_for(self, claim: str) -> float:
        """Seconds since the claim's body was first found missing or damaged."""
        since = self.misses.setdefault(claim, trio.current_time())
        return trio.current_time() - since


@attrs.define(eq=False)
class _FetchedDelivery:
    """A delivery that was received and isn't delivered yet, and the time of the next try."""

    delivery: Delivery
    lock: LockEnds
    due: float = -math.inf  # trio.current_time()
    failures: int = 0
    deleted: bool = False
    read: BodyRead | None = None  # of its body, while it is under way


@attrs.define(eq=False, kw_only=True)
class ClaimedReceiver(Wrapper):
    """
    A `Receiver` whose `SettlesMany`, `ReceivesDeferred` and `ReceivesAvailable` are those of
    `inner`, with whole bodies.
    """

    inner: Receiver
    entity: EntityPath
    mode: ReceiveMode
    claim_check: ClaimCheck
    dependencies: ClaimDependencies
    reads: BodyReads
    in_order: bool = False  # True: nothing may overtake a held message
    _held: deque[_FetchedDelivery] = attrs.field(factory=deque, init=False)
    _waiting: WaitingReceives = attrs.field(factory=WaitingReceives, init=False)
    _unsettled: Bounded[str, Claim] = attrs.field(
        factory=lambda: Bounded(MAX_UNSETTLED), init=False
    )

    # --- receiving

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """
        As `Receiver.receive`; the bodies of one call have at most `max_fetched` bytes together.
        """
        whole: Sequence[Delivery] = ()
        with self._passing_on():
            while not whole:
                whole = await self._deliver(self._ready(limit) or await self._receive_locked(limit))
        return whole

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`; a held message isn't available."""
        whole: Sequence[Delivery] = ()
        with self._passing_on():
            while not whole and (batch := self._ready(limit) or await self._poll_once(limit)):
                whole = await self._deliver(batch)
        return whole

    @contextmanager
    def _passing_on(self) -> Iterator[None]:
        """After the block, the messages that are held then are the task's that waits."""
        try:
            yield
        finally:
            if self._held:
                self._waiting.call_one()

    async def _deliver(self, batch: deque[_FetchedDelivery]) -> Sequence[Delivery]:
        """The deliveries of the batch whose bodies are there; the others are held."""
        whole: list[_FetchedDelivery] = []
        try:
            await self._drop_lost(batch)
            await self._restore(batch, whole)
        except BaseException:
            self._put_back(batch, whole)  # the next call returns them
            raise
        self._put_back(batch)
        return [held.delivery for held in whole]

    async def _drop_lost(self, batch: deque[_FetchedDelivery]) -> None:
        """
        Check with the namespace those locks that may have expired; a message without its lock is
        delivered again by the namespace.
        """
        for held in list(batch):
            if held.lock.earliest <= trio.current_time():
                await self._keep_locked(held, 0.0)
                if held.lock is OVER:
                    batch.remove(held)

    async def _restore(self, batch: deque[_FetchedDelivery], whole: list[_FetchedDelivery]) -> None:
        """Move the messages that can be delivered from the batch to `whole`; the others wait."""
        while batch:
            held = batch[0]
            found: Delivery | None = held.delivery
            if claims.is_reference(held.delivery.message):
                if whole and self._is_too_much(held.delivery.message, whole):
                    return
                found = await self._fetched(held)
            if found is None and held.due > trio.current_time():
                if self.in_order:
                    return
                self._held.append(batch.popleft())
                continue
            if found is not None and self._deletes and not held.deleted:
                found = await self._deleted(found)
            batch.popleft()
            if found is not None:
                lock = ENDLESS if self._deletes else held.lock
                whole.append(_FetchedDelivery(found, lock, deleted=self._deletes))

    @property
    def _deletes(self) -> bool:
        return self.mode is ReceiveMode.RECEIVE_AND_DELETE

    def _is_too_much(self, message: Message, whole: Sequence[_FetchedDelivery]) -> bool:
        bodies = [held.delivery.message.body for held in whole]
        taken = sum(len(body) for body in bodies if isinstance(body, bytes))
        size = size_to_fetch(message)
        return size > 0 and taken + size > self.claim_check.options.max_fetched

    def _ready(self, limit: int) -> deque[_FetchedDelivery]:
        """
        Held messages that may be tried now; a message whose lock has expired is delivered again by
        the namespace.
        """
        now = trio.current_time()
        left, ready = deque[_FetchedDelivery](), deque[_FetchedDelivery]()
        for held in self._held:
            if held.lock.latest <= now:
                continue
            waits = held.due > now or len(ready) >= limit or (self.in_order and left)
            (left if waits else ready).append(held)
        self._held = left
        return ready

    async def _receive_locked(self, limit: int) -> deque[_FetchedDelivery]:
        due = min((held.due for held in self._held), default=math.inf)
        if self.in_order and self._held:
            due = self._held[0].due
        taken: Sequence[Delivery] = ()
        with self._waiting.until(due):
            if self._takes_no_more:
                await trio.sleep_until(due)
            taken = await self.inner.receive(limit)
        return deque(_FetchedDelivery(each, self._lock_of(each)) for each in taken)

    async def _poll_once(self, limit: int) -> deque[_FetchedDelivery]:
        await trio.lowlevel.checkpoint()  # a caller may look again and again
        if self._takes_no_more:
            return deque()
        taken = await required(self.inner, ReceivesAvailable).receive_available(limit)
        return deque(_FetchedDelivery(each, self._lock_of(each)) for each in taken)

    @property
    def _takes_no_more(self) -> bool:
        return len(self._held) >= MAX_HELD or (self.in_order and bool(self._held))

    def _put_back(
        self, batch: deque[_FetchedDelivery], whole: Sequence[_FetchedDelivery] = ()
    ) -> None:
        self._held.extendleft(reversed(batch))
        self._held.extendleft(reversed(whole))

    # --- bodies

    async def _fetched(self, held: _FetchedDelivery) -> Delivery | None:
        """
        The delivery with its body; None if it was settled here (`held.due` has passed) or has to
        wait.
        """
        delivery, claim = held.delivery, None
        try:
            claim = claims.claim_of(delivery.message)
            message = await self._read_body(held, claim)
        except (ClaimMissing, ClaimCorrupt) as error:
            if self.entity.is_dead_letter:
                # In the dead-letter sub-queue, the message is shown with its reference and the
                # reason.
                return delivery
            await self._bury(held, claim, error)
            return None
        except BrokerError as error:
            await self._back_off(held, str(error))
            return None
        self.dependencies.misses.pop(claim.id, None)
        self._remember_claim(delivery, claim)
        return attrs.evolve(delivery, message=message)

    async def _read_body(self, held: _FetchedDelivery, claim: Claim) -> Message:
        if held.read is None:
            check_out = self.claim_check.check_out
            held.read = self.reads.begin(partial(check_out, claim, held.delivery.message))
        await held.read.over.wait()
        ended, held.read = held.read, None
        return ended.message()

    async def _bury(
        self, held: _FetchedDelivery, claim: Claim | None, error: ClaimMissing | ClaimCorrupt
    ) -> None:
        """Settle or hold a delivery whose body is lost or damaged."""
        delivery, report = held.delivery, self.dependencies.observer.report
        name = str(delivery.message.properties[claims.ID])
        try:
            if claim is not None and await self.claim_check.is_done(claim):
                await self.inner.settle(delivery, Complete())
                report(ClaimCopyDropped(queue=self.entity, claim=name))
                return
            if self.dependencies.missed_for(name) < self.claim_check.options.missing_grace:
                await self._back_off(held, str(error))
                return
            why = DeadLetter(reason=_REASONS[type(error)], description=str(error))
            await self.inner.settle(delivery, why)
        except LockLost:
            return  # the message is delivered again
        except BrokerError as failure:
            await self._back_off(held, f"{error}; {failure}")
            return
        self.dependencies.misses.pop(name, None)
        report(
            ClaimLost(queue=self.entity, claim=name, reason=why.reason, description=why.description)
        )

    async def _back_off(self, held: _FetchedDelivery, reason: str) -> None:
        held.failures += 1
        if held.failures == 1:
            name = str(held.delivery.message.properties[claims.ID])
            event = ClaimBackingOff(queue=self.entity, claim=name, reason=reason)
            self.dependencies.observer.report(event)
        pause = self.claim_check.options.retry.delay(held.failures, self.dependencies.rng)
        left = await self._keep_locked(held, 2 * pause)
        if left > 0:
            pause = min(pause, left / 2)
        held.due = trio.current_time() + max(pause, _LEAST_PAUSE)

    async def _keep_locked(self, held: _FetchedDelivery, at_least: float) -> float:
        """
        Renew the lock if it doesn't hold for `at_least` seconds; return the seconds for which it
        certainly holds.
        """
        left = held.lock.earliest - trio.current_time()
        if left > at_least:
            return left
        try:
            until = await self.inner.renew(held.delivery)
        except LockLost:
            held.lock = OVER
            return left
        except BrokerError:
            return left  # the lock then expires, and the message is delivered again
        held.delivery = attrs.evolve(held.delivery, locked_until=until)
        held.lock = self._lock_of(held.delivery)
        return held.lock.earliest - trio.current_time()

    def _lock_of(self, delivery: Delivery) -> LockEnds:
        """The end of a lock that was received or renewed just now."""
        return LockEnds.of(delivery.locked_until, self.dependencies.clock(), trio.current_time())

    def _remember_claim(self, delivery: Delivery, claim: Claim) -> None:
        """Remember the claim to complete in the store when that delivery is completed."""
        alone = claims.belongs_to(claim, self.entity) and delivery.dead_letter_source is None
        if alone and delivery.lock_token is not None:
            self._unsettled[delivery.lock_token.lower()] = claim

    async def _deleted(self, delivery: Delivery) -> Delivery | None:
        """
        The delivery after its deletion, as returned to the caller; None if it will be delivered
        again.
        """
        try:
            await self.settle(delivery, Complete())
        except BrokerError as error:
            # The delivery may be repeated. If it isn't, this delivery is the only one.
            if error.outcome is Outcome.NOT_SENT:
                return None
        return attrs.evolve(delivery, lock_token=None, locked_until=None)

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> Sequence[Delivery]:
        """
        As `ReceivesDeferred.receive_deferred`.

        Raises:
            QuotaExceeded: the bodies have more than `max_fetched` bytes together; all messages are
                deferred again.
            Unavailable: a body can't be read; all messages are deferred again.
        """
        receiver = required(self.inner, ReceivesDeferred)
        taken = await receiver.receive_deferred(sequence_numbers)
        size = sum(size_to_fetch(each.message) for each in taken)
        if len(taken) > 1 and size > self.claim_check.options.max_fetched:
            with trio.move_on_after(LAST_STEP, shield=True):
                await self._give_back(taken)
            raise QuotaExceeded(f"bodies of {size} bytes in all: receive fewer messages at once")
        try:
            whole = [await self._whole(delivery) for delivery in taken]
        except (ClaimMissing, ClaimCorrupt, BrokerError) as error:
            with trio.move_on_after(LAST_STEP, shield=True):
                await self._give_back(taken)
            raise Unavailable(f"the body of a deferred message can't be read: {error}") from error
        if not self._deletes:
            return whole
        found = [await self._deleted(delivery) for delivery in whole]
        return [each for each in found if each is not None]

    async def _whole(self, delivery: Delivery) -> Delivery:
        if not claims.is_reference(delivery.message):
            return delivery
        claim = claims.claim_of(delivery.message)
        message = await self.claim_check.check_out(claim, delivery.message)
        self._remember_claim(delivery, claim)
        return attrs.evolve(delivery, message=message)

    async def _give_back(self, taken: Sequence[Delivery]) -> None:
        """Abandon the deliveries as far as possible; the locks of the others expire."""
        for delivery in taken:
            with suppress(BrokerError):
                await self.inner.settle(delivery, Abandon(delivered=False))

    # --- settling

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`; a completion is then noted in the store.

        Raises:
            InvalidRequest: a property to modify is one of a reference.
        """
        _refuse_reserved(settlement)
        await self.inner.settle(delivery, settlement)
        await self._settled(delivery, settlement)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        for _, settlement in settlements:
            _refuse_reserved(settlement)
        verdicts = await settle_all(self.inner, settlements)
        # a store that doesn't answer costs its timeout only once
        async with trio.open_nursery() as noting:
            for (delivery, settlement), verdict in zip(settlements, verdicts, strict=True):
                if verdict is None:
                    noting.start_soon(self._settled, delivery, settlement)
        return verdicts

    async def renew(self, delivery: Delivery) -> datetime:
        return await self.inner.renew(delivery)

    async def _settled(self, delivery: Delivery, settlement: Settlement) -> None:
        claim = self._unsettled.pop((delivery.lock_token or "").lower(), None)
        if claim is not None and isinstance(settlement, Complete):
            await self.claim_check.complete(claim)


def size_to_fetch(message: Message) -> int:
    """The bytes of the body that is in the store; 0: none is, or the reference can't be read."""
    try:
        return claims.claim_of(message).size if claims.is_reference(message) else 0
    except ClaimCorrupt:
        return 0


async def as_peeked(claim_check: ClaimCheck, delivery: Delivery) -> Delivery:
    """The delivery for a peek: with its body, if that can be read."""
    if not claims.is_reference(delivery.message):
        return delivery
    try:
        claim = claims.claim_of(delivery.message)
        return attrs.evolve(delivery, message=await claim_check.check_out(claim, delivery.message))
    except (ClaimMissing, ClaimCorrupt, BrokerError):
        return delivery


def _refuse_reserved(settlement: Settlement) -> None:
    if not isinstance(settlement, Complete):
        claims.refuse_reserved(settlement.properties)
