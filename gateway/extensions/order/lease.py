"""
Lets several gateways send to one ordered entity: one of them at a time, for each ordered queue.

Each ordered backlog queue has a lease: a session of the lease queue on the secondary. The gateway
that has the lease, the *orderer*, sends all messages of that queue's keys, whether to the primary
or to the backlog. The others wait, and ask it to let go; or they ask it for its address, and
forward their sends to it (`forward.py`).

    session lock     only its holder can renew the lock, or set the session's state: two gateways
                     never have the lease renewed at the same time
    session state    names the last orderer, and says whether it has let go
    valid            for `VALID` seconds from the beginning of the last request that succeeded. As a
                     namespace may release a lock early, with its connection, the next orderer waits
                     `LEASE` seconds, unless the last one has let go

An orderer that stands still for longer, or is cut off, does no harm later, whatever is on its way:

    to the primary   a send begins while the lease is valid and its key is at home. If it arrives
                     late, it does so before it is acknowledged: until then it has no place
    to the backlog   it counts as accepted only if the lease is still valid once the answer is
                     there. So the next orderer, which lists the queue before it sends to the
                     primary, finds it. Else the outcome is unknown

Clocks of different machines are never compared. They need to run equally fast, to a tenth.
"""

import enum
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from math import inf
from typing import Any, Final

import attrs
import trio

from gateway.capabilities import SessionReceiver, Sessions
from gateway.changes import Changes
from gateway.deadlines import AnswerDeadline, answered_within
from gateway.domain.billing import UPKEEP
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    NotSupported,
    SessionNotAvailable,
    StateDamaged,
    Unavailable,
)
from gateway.domain.message import NO_PROPERTIES, Complete, Message, Properties
from gateway.extensions.order.events import OrderLeaseLost, OrderLeaseTaken
from gateway.extensions.order.keys import OrderKey
from gateway.extensions.order.queues import lease_queue
from gateway.extensions.order.watch import OrderedQueue
from gateway.offering import required
from gateway.pairing.additions import OrderPeers
from gateway.ports import Broker, NewId, Observer

LEASE: Final = 10.0  # seconds that the next orderer waits, if the last one hasn't let go
VALID: Final = 9.0  # seconds; the rest is for clocks that don't run equally fast
RENEW: Final = 2.5  # seconds from one renewal to the next, and for its answer
ANSWER_LIMIT: Final = 5.0  # seconds for any other answer
LET_GO_LIMIT: Final = 5.0  # seconds to tell it; untold, it costs the next orderer a lease
LEAVE_LIMIT: Final = 1.0  # seconds to end the session
# Seconds for which an orderer remains one, although others want the lease. Without it, the lease
# could change hands at each send, which costs a round trip.
TENURE: Final = 1.0
# Seconds without a send, after which the orderer lets go: a burst of sends keeps it, a night
# doesn't.
IDLE: Final = 30.0
FOR_OTHERS: Final = 0.5  # seconds from letting go for another gateway to the next attempt
POLL: Final = 0.2  # seconds between attempts, about, while another gateway has the lease
RETRY: Final = 0.5  # seconds, about, after a failure
FRESH: Final = ANSWER_LIMIT + 2.0  # seconds: so long a failed attempt shows that none succeeds
ASK: Final = 1.0  # seconds between requests to let go
WAIT_SHARE: Final = 0.75  # of the time that a send has left: so long it waits for the lease
# Requests for the orderer's address, without a forwarded send since, after which the gateway asks
# it to let go.
MOST_IN_VAIN: Final = 2
ADDRESS: Final = "address"  # the property of such a request
_KEY: Final = "pairgate-order"


# The theory. A forwarded send ends in one of six ways, because each leads to another next step:
#
#     ACCEPTED      the send is over, and the orderer is worth asking again
#     REFUSED       the send is over: the lease wouldn't change the error
#     NOT_ORDERER   nothing was sent, and somebody else is the orderer: ask for the address again
#     UNREACHABLE   nothing was sent, and the orderer can't be asked: try to get the lease
#     TOO_LARGE     nothing was sent, and no orderer would take it: only the lease helps
#     NO_ANSWER     perhaps sent. The batch is tainted: it may be sent again, but it never ends as
#                   not sent
class ForwardResult(enum.Enum):
    """The end of a send's attempt to be forwarded."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # with the orderer's own error
    NOT_ORDERER = "not-orderer"  # nothing was sent
    UNREACHABLE = "unreachable"  # nothing was sent
    TOO_LARGE = "too-large"  # nothing was sent
    NO_ANSWER = "no-answer"  # the outcome is unknown


@attrs.frozen
class _LastOrderer:
    """The content of a session's state."""

    gateway: str  # its id; empty: there was none
    has_let_go: bool


_UNREADABLE: Final = _LastOrderer("", has_let_go=False)


@attrs.define(eq=False, kw_only=True)
class OrderLease:
    """The lease of one ordered queue, as this gateway has it."""

    queue: OrderedQueue
    name: str  # of its session
    goes_on: bool  # whether sends to the primary go on while the lease can't be renewed
    changes: Changes = attrs.field(factory=Changes, init=False)
    missed: int = attrs.field(default=0, init=False)  # sends that ended without the lease
    forwarded: Counter[ForwardResult] = attrs.field(factory=Counter, init=False)
    reason: str = attrs.field(default="no answer yet", init=False)  # why the lease can't be had
    _valid_until: float = attrs.field(default=-inf, init=False)
    _since: float = attrs.field(default=-inf, init=False)
    _used_at: float = attrs.field(default=-inf, init=False)
    _is_held: bool = attrs.field(default=False, init=False)  # or was, and is lost without a report
    # True: this gateway was the orderer, and no other is known to have been one since.
    _is_last: bool = attrs.field(default=False, init=False)
    _failed_at: float = attrs.field(default=-inf, init=False)  # when the secondary was down last
    _is_closed: bool = attrs.field(default=False, init=False)
    _is_asked_for: bool = attrs.field(default=False, init=False)  # by another gateway
    _sends: int = attrs.field(default=0, init=False)  # under way
    _waiting: int = attrs.field(default=0, init=False)  # sends
    _taking: int = attrs.field(default=0, init=False)  # of those: that can't be forwarded
    _orderer: str = attrs.field(default="", init=False)
    _in_vain: int = attrs.field(default=0, init=False)  # requests for the orderer's address
    _bodies: set[trio.CancelScope] = attrs.field(factory=set, init=False)  # of `while_open`

    @property
    def is_valid(self) -> bool:
        """True if this gateway is the orderer, so that no other one is."""
        return trio.current_time() < self._valid_until

    @property
    def is_wanted(self) -> bool:
        """True if this gateway has a use for the lease."""
        return self._waiting + self._sends > 0 or self.is_valid

    def may_send(self, *, home: bool) -> bool:
        """True if a send may begin now: to the primary, if its key is at `home`."""
        if self.is_valid:
            return True
        goes_on = home and self.goes_on and self._is_last
        return goes_on and trio.current_time() < self._failed_at + FRESH

    async def wait(self, deadline: float, *, forwards: bool = False) -> None:
        """
        Return when a send may begin, as far as the lease tells. With `forwards`, return also when
        the orderer is known, to which the send can be forwarded.

        Raises:
            Unavailable: neither is so until the deadline. Nothing was sent.
        """
        if self._is_enough(forwards):
            return
        self._waiting += 1
        self._taking += not forwards
        try:
            self.changes.notify()
            with trio.move_on_at(deadline):
                while not self._is_enough(forwards):
                    await self.changes.wait_next()
                return
        finally:
            self._waiting -= 1
            self._taking -= not forwards
        self.missed += 1
        raise Unavailable(f"the lease of {self.queue.path} can't be had: {self.reason}")

    async def wait_taken(self) -> None:
        """
        Return when a send may begin. The gateway takes the lease as soon as it can, and doesn't ask
        the orderer to let go.
        """
        self._waiting += 1
        try:
            self.changes.notify()
            while not self.is_open:
                await self.changes.wait_next()
        finally:
            self._waiting -= 1

    def _is_enough(self, forwards: bool) -> bool:
        return self.is_open or (forwards and bool(self._orderer))

    @property
    def is_open(self) -> bool:
        """True if a send to the primary or the backlog may begin."""
        return not self._is_closed and self.may_send(home=True)

    # --- for sends that are forwarded

    @property
    def orderer(self) -> str:
        """The address of the gateway that has the lease; empty: it isn't known."""
        return self._orderer

    def record_orderer(self, address: str) -> None:
        """The gateway with that address says that it has the lease."""
        if not self.is_valid:
            self._orderer = address
            self.changes.notify()

    def forget_orderer(self, address: str, *, in_vain: bool = False) -> None:
        """
        The gateway with that address isn't the orderer; or (`in_vain`) it can't be asked, or
        doesn't answer. Nothing changes if it isn't the known one any more.
        """
        if self._orderer == address:
            self._orderer = ""
            if in_vain:
                self._in_vain = MOST_IN_VAIN

    def record_forwarded(self, result: ForwardResult) -> None:
        """A send that was forwarded has ended so."""
        self.forwarded[result] += 1
        if result is ForwardResult.ACCEPTED:
            self._in_vain = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A send is under way, until the block is left: the gateway doesn't let go before."""
        self._sends += 1
        try:
            yield
        finally:
            self._sends -= 1
            self._used_at = trio.current_time()
            if self._is_closed:
                self.changes.notify()

    @contextmanager
    def while_open(self) -> Iterator[None]:
        """A context whose body is cancelled once the gateway begins to let go."""
        with trio.CancelScope() as scope:
            self._bodies.add(scope)
            if self._is_closed:
                scope.cancel()
            try:
                yield
            finally:
                self._bodies.discard(scope)

    # --- for the service that keeps the lease

    async def wait_wanted(self) -> None:
        """Return when this gateway has a use for the lease."""
        while not self.is_wanted:
            await self.changes.wait_next()

    def begin(self, requested: float) -> None:
        """This gateway is the orderer, by a request that began at that time."""
        self.extend(requested)
        self._is_held, self._is_last, self._is_asked_for = True, True, False
        self._orderer, self._in_vain = "", 0
        self._since = self._used_at = trio.current_time()
        self.changes.notify()

    def extend(self, requested: float) -> None:
        """The lease was renewed, by a request that began at that time."""
        self._valid_until = requested + VALID

    def record_failure(self, error: BrokerError) -> None:
        """The lease couldn't be taken or renewed."""
        self.reason = str(error)
        if error.counts_as_outage:
            self._failed_at = trio.current_time()

    def record_other(self) -> None:
        """Another gateway is the orderer, or may have been one."""
        self._is_last = False

    def ask(self) -> None:
        """Another gateway wants the lease."""
        self._is_asked_for = True
        self.changes.notify()

    @property
    def may_be_named(self) -> bool:
        """True if this gateway is the orderer, and doesn't let go soon."""
        return self.is_open and not self._is_asked_for

    @property
    def is_missing(self) -> bool:
        """True if a send waits for this gateway to be the orderer, or to know it."""
        return self._taking > 0 or not self._orderer

    def asks_for_address(self) -> bool:
        """True if the next request is for the orderer's address; else it is to let go."""
        if self._taking:
            return False
        self._in_vain += 1
        return self._in_vain <= MOST_IN_VAIN

    async def wait_end(self) -> bool:
        """Return when this gateway should let go. True: as another one wants the lease."""
        while True:
            if self._is_asked_for:
                await trio.sleep_until(self._since + TENURE)
                return True
            now = trio.current_time()
            idle_at = IDLE + (now if self._sends + self._waiting else self._used_at)
            if now >= idle_at:
                return False
            with trio.move_on_at(idle_at):
                await self.changes.wait_next()

    async def close(self) -> None:
        """Let no further send begin; return when none is under way."""
        self._is_closed = True
        for scope in self._bodies:
            scope.cancel()
        while self._sends:
            await self.changes.wait_next()

    def release(self) -> bool:
        """Be no orderer any more. False: sends are under way, so that the lease has to run out."""
        if self._sends:
            return False
        self._valid_until, self._is_held, self._is_last = -inf, False, False
        return True

    def reopen(self) -> None:
        """Let sends begin, as soon as the lease is valid."""
        self._is_closed = False
        self.changes.notify()

    def has_run_out(self) -> bool:
        """True, once, if the lease has run out without having been let go."""
        ran_out = self._is_held and not self.is_valid
        self._is_held &= not ran_out
        return ran_out


@attrs.define(eq=False, kw_only=True)
class OrderLeases:
    """Takes the leases of which this gateway has a use, keeps them, and lets them go."""

    secondary: Broker
    label: str
    queues: Sequence[OrderedQueue]
    goes_on: bool  # as in `OrderLease`
    new_id: NewId
    rng: random.Random
    observer: Observer
    # None: sends aren't forwarded.
    peers: OrderPeers | None = attrs.field(default=None, on_setattr=attrs.setters.frozen)
    _gateway: str = attrs.field(init=False)  # the id of this gateway, in this life
    _leases: Sequence[OrderLease] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._gateway = self.new_id()
        self._leases = [
            OrderLease(queue=queue, name=str(number), goes_on=self.goes_on)
            for number, queue in enumerate(self.queues)
        ]

    def of(self, key: OrderKey) -> OrderLease:
        """The lease that sends of that key need."""
        return self._leases[key.number]

    def record_orderer(self, queue: EntityPath, address: str) -> None:
        """
        The gateway with that address says that it is the orderer of that queue.

        Raises:
            NotSupported: this gateway doesn't forward sends of that queue.
        """
        found = [lease for lease in self._leases if lease.queue.path == queue]
        if self.peers is None or not found:
            raise NotSupported(f"sends of {queue} aren't forwarded by this gateway")
        found[0].record_orderer(address)

    @property
    def held(self) -> int:
        """The number of queues of which this gateway is the orderer."""
        return sum(lease.is_valid for lease in self._leases)

    async def close(self) -> None:
        """
        Let no further send begin; return when none is under way. Then `run` can be cancelled, which
        lets the leases go.
        """
        async with trio.open_nursery() as nursery:
            for lease in self._leases:
                nursery.start_soon(lease.close)

    @property
    def missed(self) -> int:
        """The number of sends that ended without having got the lease."""
        return sum(lease.missed for lease in self._leases)

    @property
    def forwarded(self) -> Mapping[str, int] | None:
        """The number of forwarded sends by their `ForwardResult`; None: sends aren't forwarded."""
        if self.peers is None:
            return None
        return {
            result.value: sum(lease.forwarded[result] for lease in self._leases)
            for result in ForwardResult
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the leases until cancelled. Then those without a send under way are let go."""
        UPKEEP.set(True)  # of this task
        async with trio.open_nursery() as nursery:
            for lease in self._leases:
                nursery.start_soon(self._keep, lease)
            task_status.started()

    async def _keep(self, lease: OrderLease) -> None:
        ask_at = -inf
        while True:
            await lease.wait_wanted()
            pause = 0.0
            try:
                if await self._be_orderer(lease):
                    lease.reason, pause = "another gateway has it", FOR_OTHERS
            except SessionNotAvailable:
                lease.record_other()
                lease.reason, pause = "another gateway has it", POLL
                if lease.is_missing and trio.current_time() >= ask_at:
                    ask_at = trio.current_time() + ASK
                    await self._ask(lease)
            except BrokerError as error:
                lease.record_failure(error)
                pause = RETRY
            finally:
                lease.reopen()
            if lease.has_run_out():
                self.observer.report(OrderLeaseLost(queue=lease.queue.path, reason=lease.reason))
            await trio.sleep(pause * self.rng.uniform(0.7, 1.3))

    async def _ask(self, lease: OrderLease) -> None:
        """Ask the orderer for its address, or to let go."""
        own: Properties = NO_PROPERTIES
        if self.peers is not None and lease.asks_for_address():
            own = {ADDRESS: self.peers.own}
        message = Message(
            message_id=self.new_id(),
            body=self._gateway.encode(),
            session_id=lease.name,
            properties=own,
            time_to_live=timedelta(seconds=2 * ASK),
        )
        with trio.move_on_after(ASK), suppress(BrokerError):
            await self.secondary.send(lease_queue(self.label), [message])

    async def _be_orderer(self, lease: OrderLease) -> bool:
        """
        Take the lease, and return when it was let go. True: for another gateway.

        Raises:
            SessionNotAvailable: another gateway has it.
            BrokerError: it can't be taken, or kept. It may still be valid for a while.
        """
        with self._answered(lease) as scope:
            sessions = required(self.secondary, Sessions)
            queue = lease_queue(self.label)
            async with sessions.open_session(queue, lease.name) as receiver:
                scope.deadline = inf
                try:
                    await self._acquire(lease, receiver)
                    for_other = await self._hold(lease, receiver)
                finally:
                    scope.deadline = trio.current_time() + LEAVE_LIMIT
        return for_other

    def _answered(self, lease: OrderLease) -> AnswerDeadline:
        return answered_within(ANSWER_LIMIT, f"about the lease of {lease.queue.path}")

    async def _acquire(self, lease: OrderLease, receiver: SessionReceiver) -> None:
        """Return when this gateway, which holds the lock, is the orderer."""
        began = trio.current_time()
        with self._answered(lease):
            last = await _last_orderer(receiver)
        was_other = last.gateway != self._gateway
        if was_other:
            lease.record_other()
            if not last.has_let_go:
                lease.reason = "the gateway that had it last hasn't let go"
                await self._wait_for_the_last(receiver, trio.current_time() + LEASE)
        requested = trio.current_time()
        with self._answered(lease):
            await receiver.set_state(_state(_LastOrderer(self._gateway, has_let_go=False)))
        if was_other:
            lease.queue.forget()
        lease.begin(requested)
        seconds = trio.current_time() - began
        self.observer.report(OrderLeaseTaken(queue=lease.queue.path, seconds=seconds))

    async def _wait_for_the_last(self, receiver: SessionReceiver, until: float) -> None:
        """Wait with the lock held, so that the last orderer can't renew its lease meanwhile."""
        while (left := until - trio.current_time()) > 0:
            await trio.sleep(min(RENEW, left))
            with trio.move_on_after(RENEW):
                await receiver.renew_session()

    async def _hold(self, lease: OrderLease, receiver: SessionReceiver) -> bool:
        """Renew the lease until it is time to let go; let go, and return as `_be_orderer`."""
        errors: list[BrokerError] = []
        for_other = False
        try:
            async with trio.open_nursery() as nursery:

                def fail(error: BrokerError) -> None:
                    errors.append(error)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(self._renew, lease, receiver, fail)
                nursery.start_soon(self._listen, lease, receiver, fail)
                for_other = await lease.wait_end()
                await lease.close()
                nursery.cancel_scope.cancel()
        finally:
            if not errors and lease.release():
                with trio.move_on_after(LET_GO_LIMIT, shield=True), suppress(BrokerError):
                    await receiver.set_state(_state(_LastOrderer(self._gateway, has_let_go=True)))
        if errors:
            raise errors[0]
        return for_other

    async def _renew(
        self, lease: OrderLease, receiver: SessionReceiver, fail: Callable[[BrokerError], None]
    ) -> None:
        while True:
            await trio.sleep(RENEW)
            requested = trio.current_time()
            with trio.move_on_after(RENEW) as scope:
                try:
                    await receiver.renew_session()
                except BrokerError as error:
                    fail(error)
                else:
                    lease.extend(requested)
            if scope.cancelled_caught and not lease.is_valid:
                fail(Unavailable("the secondary doesn't answer"))

    async def _listen(
        self, lease: OrderLease, receiver: SessionReceiver, fail: Callable[[BrokerError], None]
    ) -> None:
        """Receive the requests of others for this gateway's address, or to let go."""
        try:
            while True:
                for delivery in await receiver.receive(10):
                    if delivery.message.body != self._gateway.encode():
                        await self._answer(lease, delivery.message)
                    await receiver.settle(delivery, Complete())
        except BrokerError as error:
            fail(error)

    async def _answer(self, lease: OrderLease, request: Message) -> None:
        """Tell another gateway that this one is the orderer; if that can't be, let go."""
        address = request.properties.get(ADDRESS)
        if self.peers is not None and isinstance(address, str) and lease.may_be_named:
            with trio.move_on_after(ASK), suppress(BrokerError):
                await self.peers.notify_orderer(address, lease.queue.path)
                return
        lease.ask()


async def _last_orderer(receiver: SessionReceiver) -> _LastOrderer:
    try:
        state = await receiver.get_state()
    except StateDamaged:
        return _UNREADABLE
    if state is None:
        return _LastOrderer("", has_let_go=True)
    try:
        found: Any = json.loads(state)[_KEY]
        return _LastOrderer(str(found["gateway"]), has_let_go=found["has_let_go"] is True)
    except (ValueError, LookupError, TypeError, RecursionError):
        return _UNREADABLE


def _state(last: _LastOrderer) -> bytes:
    return json.dumps({_KEY: attrs.asdict(last)}).encode()
