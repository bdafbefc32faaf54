"""
Records the abilities of a namespace, by the success or failure of this process's own operations.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from math import inf
from typing import ClassVar, Final

import attrs
import trio

from gateway.capabilities import messages_in
from gateway.changes import Changes
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, locate, no_answer
from gateway.domain.events.outages import NamespaceBack, NamespaceLost
from gateway.domain.health.abilities import Abilities, Ability, AbilityState, AbilityStatus, remedy
from gateway.domain.health.operation_times import RECEIVE, OperationTimes, name_of_all
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import AcceptedBy
from gateway.interception import RECEIVES, Call, CallKind, Interceptor
from gateway.ports import Broker, Observer, WallClock

FAIR: Final = 1.0  # seconds: an operation that was cancelled earlier is no evidence
WAITS: Final = timedelta(seconds=5)  # a receive that fails does so earlier
OFTEN: Final = 1.0  # seconds between two records of the same success
# Seconds. A test of abilities is billed, so it is made only after `LOOK_AFTER` without other
# evidence, and `LOOK_PAUSE` after the last test.
LOOK_AFTER: Final = 30.0
LOOK_PAUSE: Final = 60.0
# While an ability fails, its return must show within seconds: the tests are then as frequent as
# this, and as short, so that they don't hold up those who ask.
LOOK_SOON: Final = 3.0
SHORT_LOOK: Final = 1.0
_SHOWN_BY: Final = {
    Operation.SEND: Ability.SEND,
    Operation.RECEIVE: Ability.RECEIVE,
    Operation.EMPTY: Ability.RECEIVE,
    Operation.SETTLE: Ability.RECEIVE,
    Operation.RENEW: Ability.RECEIVE,
    Operation.INSPECT: Ability.MANAGE,
    Operation.MANAGE: Ability.MANAGE,
}

# By the kinds of calls. A receiver that was opened proves little: not all namespaces get a request.
_NEEDED_FOR: Final = {
    CallKind.SEND: Ability.SEND,
    CallKind.PROBE: Ability.SEND,
    CallKind.OPEN: Ability.RECEIVE,
    CallKind.INSPECT: Ability.MANAGE,
    CallKind.LIST_QUEUES: Ability.MANAGE,
    CallKind.CREATE_QUEUE: Ability.MANAGE,
    CallKind.IDENTIFY: Ability.REACH,  # any answer proves that the namespace can be reached
}


@attrs.define(eq=False, kw_only=True)
class AbilityWatch:
    """Collects evidence about one namespace. Only `check` blocks."""

    clock: WallClock
    abilities: Abilities = attrs.field(factory=Abilities)
    name: str = ""  # of the namespace
    address: str = ""  # host and port; empty: it is in this process
    observer: Observer | None = None  # informed when the namespace is lost, and when it is back
    returns: Changes = attrs.field(factory=Changes)  # counts each time that it is back
    times: OperationTimes = attrs.field(factory=OperationTimes)
    _lost: float | None = attrs.field(default=None, init=False)  # since when, by Trio's clock
    # receives in progress, and since when
    _receives: dict[object, datetime] = attrs.field(factory=dict, init=False)
    _worked: dict[Ability, float] = attrs.field(factory=dict, init=False)  # by Trio's clock
    _succeeded: float = attrs.field(default=-inf, init=False)  # the last success, of any ability
    _looked: float = attrs.field(default=-inf, init=False)

    def status(self) -> Mapping[str, AbilityStatus]:
        """The present state of the four abilities, by name."""
        at = self.clock()
        first = min(self._receives.values(), default=at)
        if at - first >= WAITS:
            self.abilities = self.abilities.waits(first, at)
        return self.abilities.statuses(at)

    def worked(self, ability: Ability) -> None:
        now = self._succeeded = trio.current_time()
        if now - self._worked.get(ability, -inf) >= OFTEN:
            self._worked[ability] = now
            self.abilities = self.abilities.worked(ability, self.clock())
            self._report_reach(None, ability)

    def failed(self, ability: Ability, error: BrokerError) -> None:
        """Record a failure, unless it is remembered from before the last success."""
        if error.since is not None and error.since < self._succeeded:
            return
        self._worked.clear()  # each success from now on is a change
        self.abilities = self.abilities.failed(ability, error, self.clock())
        self._report_reach(error, ability)

    def _report_reach(self, error: BrokerError | None, ability: Ability) -> None:
        """Report that the namespace is lost, or back, if that has changed."""
        is_lost, now = self.abilities.is_lost, trio.current_time()
        if is_lost is (self._lost is not None):
            return
        since, self._lost = self._lost, now if is_lost else None
        if since is not None:
            self.returns.notify()
        if self.observer is None:
            return
        if since is None:
            advice = "" if error is None else remedy(ability, error)
            self.observer.report(
                NamespaceLost(namespace=self.name, reason=str(error), remedy=advice)
            )
        else:
            self.observer.report(NamespaceBack(namespace=self.name, seconds=now - since))

    def heard(self, operation: Operation) -> None:
        """Note that a namespace of this process itself has performed such an operation."""
        if operation in _SHOWN_BY:
            self.worked(_SHOWN_BY[operation])

    def failed_at(self, ability: Ability, entity: EntityPath | None, error: BrokerError) -> None:
        """As `failed`; the error gets the address and the entity that it concerns."""
        locate(error, self.address, _name_of(entity))
        self.failed(ability, error)

    def unanswered(self, ability: Ability, entity: EntityPath | None, seconds: float) -> None:
        """Record that an operation was cancelled after so many seconds without an answer."""
        if seconds >= FAIR:
            self.failed(ability, no_answer(self.address, _name_of(entity), seconds))

    def judged(
        self, ability: Ability, entity: EntityPath | None, verdicts: Sequence[object]
    ) -> None:
        """
        Record the results of several operations: each error once, and a success after the errors.
        """
        errors = [each for each in verdicts if isinstance(each, BrokerError)]
        for error in dict.fromkeys(errors):
            self.failed_at(ability, entity, error)
        if len(errors) < len(verdicts):
            self.worked(ability)

    def receive_began(self, receive: object) -> None:
        """Note that a receive waits for messages from now on."""
        self._receives[receive] = self.clock()

    def receive_ended(
        self,
        receive: object,
        entity: EntityPath | None,
        error: BrokerError | None,
        deliveries: int,
    ) -> None:
        """Note that the receive has returned, failed, or was cancelled."""
        del self._receives[receive]
        if error is not None:
            self.failed_at(Ability.RECEIVE, entity, error)
        elif deliveries:
            self.worked(Ability.RECEIVE)

    def took(self, name: str, seconds: float, error: BrokerError | None = None) -> None:
        """Note that an operation of that name (`domain.health.operation_times`) has ended."""
        self.times.record(name, seconds, error)

    async def check(self, broker: Broker, entity: EntityPath | None, seconds: float) -> None:
        """
        Test the abilities without recent evidence: list queues, and probe `entity`, for `seconds`
        at most. `broker` is the watched broker.
        """
        now = trio.current_time()
        fails = any(each.state is AbilityState.NO for each in self.status().values())
        if now < self._looked + (LOOK_SOON if fails else LOOK_PAUSE):
            return
        seconds = min(seconds, SHORT_LOOK) if fails else seconds
        stale = [each for each in Ability if now - self._worked.get(each, -inf) > LOOK_AFTER]
        self._looked = now
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                if Ability.MANAGE in stale:
                    nursery.start_soon(_ask_for_queues, broker)
                if Ability.SEND in stale and entity is not None:
                    nursery.start_soon(_probe, broker, entity)


def _name_of(entity: EntityPath | None) -> str:
    return "" if entity is None else str(entity)


async def _ask_for_queues(broker: Broker) -> None:
    with suppress(BrokerError):
        await broker.list_queues(top=1)


async def _probe(broker: Broker, entity: EntityPath) -> None:
    with suppress(BrokerError):
        await broker.probe(entity)


@attrs.frozen(eq=False)
class AbilityInterceptor(Interceptor):
    """`watch` records which operations on a namespace work, except receives."""

    watch: AbilityWatch

    kinds: ClassVar[frozenset[CallKind]] = frozenset(_NEEDED_FOR)

    def after(self, call: Call, result: Sequence[object]) -> None:
        ability = _NEEDED_FOR[call.kind]
        if call.kind is CallKind.SEND:
            self.watch.judged(ability, call.entity, result)
        elif call.kind is not CallKind.OPEN:
            self.watch.worked(ability)

    def error(self, call: Call, error: BaseException) -> None:
        ability = _NEEDED_FOR[call.kind]
        if isinstance(error, BrokerError):
            self.watch.failed_at(ability, call.entity, error)
        elif isinstance(error, trio.Cancelled):
            self.watch.unanswered(ability, call.entity, call.seconds())


@attrs.frozen(eq=False)
class ReceiveInterceptor(Interceptor):
    """
    `watch` records the ends of receives, and how long receives with messages and settlements took.
    """

    watch: AbilityWatch

    kinds: ClassVar[frozenset[CallKind]] = RECEIVES | {CallKind.SETTLE}

    def before(self, call: Call) -> None:
        if call.kind is not CallKind.SETTLE:
            self.watch.receive_began(call)

    def after(self, call: Call, result: Sequence[object]) -> None:
        if call.kind is CallKind.SETTLE:
            error = next((each for each in result if isinstance(each, BrokerError)), None)
            name = name_of_all([settlement for _, settlement in call.settlements])
            self.watch.took(name, call.seconds(), error)
            return
        self.watch.receive_ended(call, call.entity, None, len(result))
        if result:
            self.watch.took(RECEIVE, call.seconds())

    def error(self, call: Call, error: BaseException) -> None:
        if call.kind is CallKind.SETTLE:
            return
        failure = error if isinstance(error, BrokerError) else None
        self.watch.receive_ended(call, call.entity, failure, 0)
        if failure is not None:
            self.watch.took(RECEIVE, call.seconds(), failure)


@attrs.frozen(eq=False)
class SendInterceptor(Interceptor):
    """Counts and times the sends and transactions on the only namespace of a gateway."""

    sends: SendCounters
    # Records failed sends to a namespace that reports its successes itself; None: another one does.
    watch: AbilityWatch | None = None

    kinds: ClassVar[frozenset[CallKind]] = frozenset((CallKind.SEND, CallKind.COMMIT))

    def after(self, call: Call, result: Sequence[object] | None) -> None:
        seconds = call.seconds()
        if result is None:
            if messages := messages_in(call.work):
                self.sends.accepted(AcceptedBy.PRIMARY, messages, seconds)
            return
        for batch, verdict in zip(call.batches, result, strict=True):
            if isinstance(verdict, BrokerError):
                self.sends.failed(verdict, len(batch), seconds)
                self._record_failure(call, verdict)
            else:
                accepted_by = verdict if isinstance(verdict, AcceptedBy) else AcceptedBy.PRIMARY
                self.sends.accepted(accepted_by, len(batch), seconds)

    def error(self, call: Call, error: BaseException) -> None:
        failure, seconds = error if isinstance(error, BrokerError) else None, call.seconds()
        for batch in call.batches:
            self.sends.failed(failure, len(batch), seconds)
        if messages := messages_in(call.work):
            self.sends.failed(failure, messages, seconds)
        if failure is not None:
            self._record_failure(call, failure)

    def _record_failure(self, call: Call, failure: BrokerError) -> None:
        if self.watch is not None and call.kind is CallKind.SEND:
            self.watch.failed_at(Ability.SEND, call.entity, failure)
