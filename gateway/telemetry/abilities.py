"""
Records the abilities of a namespace, by the success or failure of this process's own operations.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from math import inf
from types import TracebackType
from typing import ClassVar, Final, TypeVar

import attrs
import trio

from gateway.capabilities import (
    Batches,
    Identifies,
    Placed,
    SendEach,
    TransactedWork,
    Transacts,
    messages_in,
)
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, locate, no_answer
from gateway.domain.events.outages import NamespaceBack, NamespaceLost
from gateway.domain.health.abilities import Abilities, Ability, AbilityStatus, remedy
from gateway.domain.health.operation_times import OperationTimes
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.identity import Identity
from gateway.domain.message import AcceptedBy, ReceiveMode
from gateway.forwarding_broker import SendWrapper
from gateway.offering import required
from gateway.ports import Broker, Observer, Receiver, WallClock
from gateway.telemetry.receivers import WatchedReceiver

T = TypeVar("T")

FAIR: Final = 1.0  # seconds: an operation that was cancelled earlier is no evidence
WAITS: Final = timedelta(seconds=5)  # a receive that fails does so earlier
OFTEN: Final = 1.0  # seconds between two records of the same success
# Seconds. A test of abilities is billed, so it is made only after `LOOK_AFTER` without other
# evidence, and `LOOK_PAUSE` after the last test.
LOOK_AFTER: Final = 30.0
LOOK_PAUSE: Final = 60.0
_SHOWN_BY: Final = {
    Operation.SEND: Ability.SEND,
    Operation.RECEIVE: Ability.RECEIVE,
    Operation.EMPTY: Ability.RECEIVE,
    Operation.SETTLE: Ability.RECEIVE,
    Operation.RENEW: Ability.RECEIVE,
    Operation.INSPECT: Ability.MANAGE,
    Operation.MANAGE: Ability.MANAGE,
}


@attrs.define(eq=False, kw_only=True)
class AbilityWatch:
    """Collects evidence about one namespace. Only `look` blocks."""

    clock: WallClock
    abilities: Abilities = attrs.field(factory=Abilities)
    name: str = ""  # of the namespace
    address: str = ""  # host and port; empty: it is in this process
    observer: Observer | None = None  # informed when the namespace is lost, and when it is back
    times: OperationTimes = attrs.field(factory=OperationTimes)
    _lost: float | None = attrs.field(default=None, init=False)  # since when, by Trio's clock
    # receives in progress, and since when
    _receives: dict[object, datetime] = attrs.field(factory=dict, init=False)
    _worked: dict[Ability, float] = attrs.field(factory=dict, init=False)  # by Trio's clock
    _succeeded: float = attrs.field(default=-inf, init=False)  # the last success, of any ability
    _looked: float = attrs.field(default=-inf, init=False)

    def tell(self) -> Mapping[str, AbilityStatus]:
        """The present state of the four abilities, by name."""
        at = self.clock()
        first = min(self._receives.values(), default=at)
        if at - first >= WAITS:
            self.abilities = self.abilities.waits(first, at)
        return self.abilities.tell(at)

    def worked(self, ability: Ability) -> None:
        now = self._succeeded = trio.current_time()
        if now - self._worked.get(ability, -inf) >= OFTEN:
            self._worked[ability] = now
            self.abilities = self.abilities.worked(ability, self.clock())
            self._tell_reach(None, ability)

    def failed(self, ability: Ability, error: BrokerError) -> None:
        """Record a failure, unless it is remembered from before the last success."""
        if error.since is not None and error.since < self._succeeded:
            return
        self._worked.clear()  # each success from now on is a change
        self.abilities = self.abilities.failed(ability, error, self.clock())
        self._tell_reach(error, ability)

    def _tell_reach(self, error: BrokerError | None, ability: Ability) -> None:
        """Report that the namespace is lost, or back, if that has changed."""
        is_lost, now = self.abilities.is_lost, trio.current_time()
        if self.observer is None or is_lost is (self._lost is not None):
            return
        since, self._lost = self._lost, now if is_lost else None
        if since is None:
            advice = "" if error is None else remedy(ability, error)
            self.observer.report(NamespaceLost(namespace=self.name, reason=f"{error}; {advice}"))
        else:
            self.observer.report(NamespaceBack(namespace=self.name, seconds=now - since))

    def heard(self, operation: Operation) -> None:
        """Note that a namespace of this process itself has performed such an operation."""
        if operation in _SHOWN_BY:
            self.worked(_SHOWN_BY[operation])

    def attempt(
        self, ability: Ability, entity: EntityPath | None = None, *, proves: bool = True
    ) -> "Attempt":
        """
        A context whose success or failure is evidence. `proves`: its end without an error is
        evidence, too. An error of the namespace gets the address and the entity that it concerns.
        """
        return Attempt(self, ability, "" if entity is None else str(entity), proves)

    def judged(self, ability: Ability, entity: EntityPath, verdicts: Sequence[object]) -> None:
        """
        Record the results of several operations: each error once, and a success after the errors.
        """
        errors = [each for each in verdicts if isinstance(each, BrokerError)]
        for error in dict.fromkeys(errors):
            locate(error, self.address, str(entity))
            self.failed(ability, error)
        if len(errors) < len(verdicts):
            self.worked(ability)

    def receive_began(self, receive: object) -> None:
        self._receives[receive] = self.clock()

    def receive_ended(
        self, receive: object, entity: EntityPath, error: BrokerError | None, deliveries: int
    ) -> None:
        del self._receives[receive]
        if error is not None:
            locate(error, self.address, str(entity))
            self.failed(Ability.RECEIVE, error)
        elif deliveries:
            self.worked(Ability.RECEIVE)

    def took(self, name: str, seconds: float, error: BrokerError | None = None) -> None:
        self.times.note(name, seconds, error)

    async def look(self, broker: Broker, entity: EntityPath | None, seconds: float) -> None:
        """
        Test the abilities without recent evidence: list queues, and probe `entity`, for `seconds`
        at most. `broker` is the watched broker.
        """
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        if now < self._looked + LOOK_PAUSE:
            return
        stale = [each for each in Ability if now - self._worked.get(each, -inf) > LOOK_AFTER]
        self._looked = now
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                if Ability.MANAGE in stale:
                    nursery.start_soon(_ask_for_queues, broker)
                if Ability.SEND in stale and entity is not None:
                    nursery.start_soon(_probe, broker, entity)


@attrs.define(eq=False)
class Attempt:
    """Made by `AbilityWatch.attempt`."""

    watch: AbilityWatch
    ability: Ability
    asked: str
    proves: bool
    began: float = attrs.field(factory=trio.current_time)

    def __enter__(self) -> None:
        """Begin the context."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        match error:
            case None:
                if self.proves:
                    self.watch.worked(self.ability)
            case BrokerError():
                locate(error, self.watch.address, self.asked)
                self.watch.failed(self.ability, error)
            case trio.Cancelled():
                if (seconds := trio.current_time() - self.began) >= FAIR:
                    silence = no_answer(self.watch.address, self.asked, seconds)
                    self.watch.failed(self.ability, silence)


async def _ask_for_queues(broker: Broker) -> None:
    await trio.lowlevel.checkpoint()
    with suppress(BrokerError):
        await broker.list_queues(top=1)


async def _probe(broker: Broker, entity: EntityPath) -> None:
    await trio.lowlevel.checkpoint()
    with suppress(BrokerError):
        await broker.probe(entity)


@attrs.frozen(eq=False)
class Watched(SendWrapper):
    """A broker whose operations `watch` records, with the results of `inner`."""

    _inner: Broker
    watch: AbilityWatch

    adds: ClassVar[frozenset[type]] = frozenset((Placed,))
    forwards: ClassVar[frozenset[type]] = SendWrapper.forwards | {Transacts}

    @property
    def inner(self) -> Broker:
        return self._inner

    @property
    def address(self) -> str:
        return self.watch.address

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        with self.watch.attempt(Ability.SEND, entity, proves=False):
            verdicts = await send(entity, batches)
        self.watch.judged(Ability.SEND, entity, verdicts)
        return verdicts

    async def identity(self) -> Identity:
        """As `Identifies.identity`; any answer proves that the namespace can be reached."""
        with self.watch.attempt(Ability.REACH):
            return await required(self._inner, Identifies).identity()

    async def probe(self, entity: EntityPath) -> None:
        with self.watch.attempt(Ability.SEND, entity):
            await self._inner.probe(entity)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        """
        As `Broker.open_receiver`. An open receiver proves little: not all kinds send a request.
        """
        async with AsyncExitStack() as stack:
            with self.watch.attempt(Ability.RECEIVE, entity, proves=False):
                inner = await stack.enter_async_context(self._inner.open_receiver(entity, mode))
            yield WatchedReceiver(inner, entity, self.watch)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        with self.watch.attempt(Ability.MANAGE, entity):
            return await self._inner.inspect(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        with self.watch.attempt(Ability.MANAGE):
            return await self._inner.list_queues(prefix, skip=skip, top=top)

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        with self.watch.attempt(Ability.MANAGE, entity):
            return await self._inner.create_queue(entity, properties)


@attrs.frozen(eq=False)
class Counted(SendWrapper):
    """
    Counts and times the sends of `inner`, the only namespace of a gateway. `watch` is given
    where no other wrapper reports the receivers.
    """

    _inner: Broker
    sends: SendCounters
    watch: AbilityWatch | None = None

    @property
    def inner(self) -> Broker:
        return self._inner

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        began = trio.current_time()
        try:
            verdicts = await send(entity, batches)
        except trio.Cancelled:
            seconds = trio.current_time() - began
            for batch in batches:
                self.sends.failed(None, len(batch), seconds)
            raise
        seconds = trio.current_time() - began
        for batch, verdict in zip(batches, verdicts, strict=True):
            if isinstance(verdict, BrokerError):
                self.sends.failed(verdict, len(batch), seconds)
            else:
                accepted_by = verdict if isinstance(verdict, AcceptedBy) else AcceptedBy.PRIMARY
                self.sends.accepted(accepted_by, len(batch), seconds)
        return verdicts

    async def check_transactions(self) -> None:
        """As `Transacts.check_transactions`."""
        await required(self._inner, Transacts).check_transactions()

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        """As `Transacts.commit`."""
        with self.sends.transaction(messages_in(work), trio.current_time):
            await required(self._inner, Transacts).commit(work)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        """As `Broker.open_receiver`."""
        async with self._inner.open_receiver(entity, mode) as inner:
            yield inner if self.watch is None else WatchedReceiver(inner, entity, self.watch)
