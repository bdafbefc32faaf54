"""
A namespace on virtual time that costs no time itself and counts all requests: for models of many
gateways. It serves a limited number of requests a second, in the order of their arrival; a request
that would wait for too long is refused as busy. A `Link` is the way of one process to it: one
connection, dialled on demand by `gateway.net.reconnecting`, as that of an AMQP adapter.
"""

import enum
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    LockLost,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from gateway.domain.identity import Identity
from gateway.domain.message import (
    Abandon,
    Complete,
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.net.reconnecting import ANY_TIME, Failures, Reconnecting
from gateway.ports import Receiver

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
LOCK: Final = backlog.LOCK.total_seconds()
CONNECT: Final = 5.0  # requests that a connection costs: TLS, SASL, tokens, links
EACH: Final = 0.2  # of a request that each further message of it costs
BUSY_AFTER: Final = 2.0  # seconds that a request would wait at most
BUSY_FOR: Final = 10.0  # seconds that Service Bus asks its clients to wait
CONNECT_TIMEOUT: Final = 5.0
_DIALS: Final = Backoff(first=0.1, cap=5.0)  # as those of the AMQP adapter


class Kind(enum.Enum):
    """The requests that are told apart."""

    CONNECT = "connections"
    PROBE = "probes"
    TRIAL = "trials"
    SEND = "sends"
    SYPHON = "moves"  # sends of a syphon
    IDENTITY = "identity"
    INSPECT = "entities"  # questions about an entity
    DEPTH = "depth"  # lists, peeks and counts of the backlog
    RECEIVE = "receives"
    SETTLE = "settlements"
    HEARTBEAT = "heartbeats"

    __hash__ = object.__hash__


class Fault(enum.Enum):
    """The ways in which a namespace is down."""

    REFUSED = "refused"  # its port is closed, and its connections were reset
    FROZEN = "frozen"  # nothing is answered
    FAILING = "failing"  # each request is answered, by an error


def now() -> datetime:
    """The date, by the virtual clock."""
    return EPOCH + timedelta(seconds=trio.current_time())


@attrs.define(eq=False)
class Locked:
    """A message that a receiver has."""

    number: int
    message: Message
    count: int  # deliveries
    enqueued: datetime
    until: float = 0.0


@attrs.define(eq=False)
class StoredQueue:
    """The messages of a queue: the available ones in their order, and the locked ones."""

    available: deque[Locked] = attrs.field(factory=deque, init=False)
    locked: dict[int, Locked] = attrs.field(factory=dict, init=False)  # by the end of the lock
    accepted: int = attrs.field(default=0, init=False)
    most: int = attrs.field(default=0, init=False)  # messages at a time
    _more: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def depth(self) -> int:
        return len(self.available) + len(self.locked)

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.accepted += 1
            self.available.append(Locked(self.accepted, message, 0, now()))
        self.most = max(self.most, self.depth)
        self._more.unpark(count=len(messages))

    async def wait(self) -> None:
        """Return when a message may be available."""
        await trio.lowlevel.checkpoint()
        self.expire()
        while not self.available:
            first = next(iter(self.locked.values()), None)
            with trio.move_on_at(math.inf if first is None else first.until):
                await self._more.park()
            self.expire()

    def take(self, limit: int) -> list[Delivery]:
        """Lock the first messages."""
        found = []
        while self.available and len(found) < limit:
            one = self.available.popleft()
            one.count += 1
            one.until = trio.current_time() + LOCK
            self.locked[one.number] = one
            found.append(
                Delivery(
                    message=one.message,
                    sequence_number=one.number,
                    lock_token=str(one.count),
                    delivery_count=one.count,
                    enqueued=one.enqueued,
                    locked_until=EPOCH + timedelta(seconds=one.until),
                    received=now(),
                )
            )
        return found

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        one = self._held(delivery)
        del self.locked[one.number]
        if not isinstance(settlement, Complete):
            assert isinstance(settlement, Abandon), f"nothing is dead-lettered: {settlement}"
            self.available.appendleft(one)
            self._more.unpark()

    def renew(self, delivery: Delivery) -> datetime:
        one = self._held(delivery)
        del self.locked[one.number]
        one.until = trio.current_time() + LOCK
        self.locked[one.number] = one
        return EPOCH + timedelta(seconds=one.until)

    def expire(self) -> None:
        """Give back the messages whose locks have ended."""
        moment, given = trio.current_time(), 0
        while self.locked:
            one = next(iter(self.locked.values()))
            if one.until > moment:
                break
            del self.locked[one.number]
            self.available.appendleft(one)
            given += 1
        if given:
            self._more.unpark(count=given)

    def _held(self, delivery: Delivery) -> Locked:
        self.expire()
        one = self.locked.get(delivery.sequence_number)
        if one is None or str(one.count) != delivery.lock_token:
            raise LockLost("the lock has expired")
        return one


@attrs.define(eq=False, kw_only=True)
class Namespace:
    """Serves `capacity` requests a second, each `latency` seconds away."""

    name: str
    capacity: float
    latency: float
    # Called with each message of a namespace that keeps none; None: the namespace keeps them.
    consume: Callable[[Message], None] | None = None
    queues: dict[str, StoredQueue] = attrs.field(factory=dict, init=False)
    fault: Fault | None = attrs.field(default=None, init=False)
    resets: int = attrs.field(default=0, init=False)  # of all connections
    connections: int = attrs.field(default=0, init=False)
    # Requests by kind and second, also while the namespace is down.
    requests: dict[Kind, Counter[int]] = attrs.field(
        factory=lambda: defaultdict(Counter), init=False
    )
    busy: Counter[int] = attrs.field(factory=Counter, init=False)  # answers, by second
    _free: float = attrs.field(default=0.0, init=False)  # when the next request can be served
    _thaw: trio.Event = attrs.field(factory=trio.Event, init=False)

    def break_down(self, fault: Fault) -> None:
        self.fault, self._thaw = fault, trio.Event()
        self.resets += fault is Fault.REFUSED

    def come_back(self) -> None:
        self.fault, self._free = None, trio.current_time()
        self.resets += 1  # a namespace that was restarted, or behind a network that was cut
        self._thaw.set()

    async def connect(self, lag: float) -> int:
        """Return the number of resets so far, which is that of the connection."""
        if self.fault is Fault.FROZEN:
            self.requests[Kind.CONNECT][int(trio.current_time())] += 1
            with trio.move_on_after(CONNECT_TIMEOUT):
                await self._thaw.wait()
            raise Unreachable(f"{self.name}: no answer within {CONNECT_TIMEOUT:g} s")
        await self.serve(Kind.CONNECT, CONNECT, self.resets, lag)
        self.connections += 1
        return self.resets

    async def serve(self, kind: Kind, cost: float, connection: int, lag: float) -> None:
        """
        Return when the request was served.

        Raises:
            BrokerError: it wasn't, or the outcome is unknown.
        """
        began = trio.current_time()
        self.requests[kind][int(began)] += 1
        if self.fault is Fault.FROZEN:
            await trio.sleep_forever()
        if self.fault is not None:
            await trio.sleep(self.latency + lag)
            if self.fault is Fault.FAILING and kind is not Kind.CONNECT:
                raise Unavailable(f"{self.name}: 503")
            if self.fault is Fault.REFUSED:
                raise Unreachable(f"{self.name}: connection refused")
        waits = max(0.0, self._free - began)
        if waits > BUSY_AFTER:
            self.busy[int(began)] += 1
            await trio.sleep(self.latency + lag)
            raise Busy(f"{self.name} is busy", retry_after=BUSY_FOR)
        self._free = began + waits + cost / self.capacity
        await trio.sleep(waits + cost / self.capacity + self.latency + lag)
        if connection != self.resets:
            raise OutcomeUnknown(f"{self.name}: the connection was lost")

    def accept(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        if self.consume is None:
            self.queue(entity).add(messages)
        else:
            for message in messages:
                self.consume(message)

    def queue(self, entity: EntityPath) -> StoredQueue:
        found = self.queues.get(entity.key)
        if found is None:
            raise EntityNotFound(f"{entity} doesn't exist")
        return found

    @property
    def depth(self) -> int:
        return sum(queue.depth for queue in self.queues.values())


@attrs.frozen(eq=False)
class Connection:
    """A connection, until the namespace resets it."""

    namespace: Namespace
    number: int

    @property
    def is_over(self) -> bool:
        return self.number != self.namespace.resets

    def replaced(self) -> None:
        """Do nothing, as nothing is left open."""


@attrs.define(eq=False, kw_only=True)
class Link:
    """A process's way to a namespace, as a `Broker` with the capabilities that a pair asks for."""

    namespace: Namespace
    rng: random.Random
    lag: float = 0.0  # seconds that each of this process's requests takes longer
    kind_of: Callable[[EntityPath], Kind] = lambda entity: Kind.SEND  # of a send
    _connections: Reconnecting[Connection] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._connections = Reconnecting(
            dial=self._dial,
            failures=Failures(backoff=_DIALS, rng=self.rng),
            spawn=trio.lowlevel.spawn_system_task,
        )

    @property
    def address(self) -> str:
        return self.namespace.name

    async def identity(self) -> Identity:
        await self.ask(Kind.IDENTITY)
        return Identity("rabbitmq", self.namespace.name)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._send(entity, messages, trio.current_time())

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._send(entity, messages, ANY_TIME)

    async def probe(self, entity: EntityPath) -> None:
        await self.ask(Kind.PROBE)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        await self.ask(Kind.INSPECT if self.namespace.consume else Kind.DEPTH)
        return self._info(entity)

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        await self.ask(Kind.DEPTH)
        names = sorted(name for name in self.namespace.queues if name.startswith(prefix.lower()))
        return [self._info(EntityPath(name)) for name in names[skip : skip + top]]

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        await self.ask(Kind.DEPTH)
        queue = self.namespace.queue(entity)
        firsts = (next(iter(each), None) for each in (queue.available, queue.locked.values()))
        found = [one for one in firsts if one is not None and one.number >= from_sequence]
        found.sort(key=lambda one: one.number)
        return [
            Delivery(message=one.message, sequence_number=one.number, enqueued=one.enqueued)
            for one in found[:limit]
        ]

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        await self.ask(Kind.DEPTH)
        self.namespace.queues.setdefault(entity.key, StoredQueue())
        return self._info(entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        await self.ask(Kind.DEPTH)
        self.namespace.queues.pop(entity.key, None)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        await self.ask(Kind.RECEIVE)
        yield CountedReceiver(self, self.namespace.queue(entity))

    async def ask(self, kind: Kind, cost: float = 1.0, since: float | None = None) -> None:
        """
        Make one request.

        Raises:
            BrokerError: it failed.
        """
        since = trio.current_time() if since is None else since
        connection = await self._connections.get(since)
        await self.namespace.serve(kind, cost, connection.number, self.lag)

    async def _send(self, entity: EntityPath, messages: Sequence[Message], since: float) -> None:
        if backlog.is_beside(entity):
            await self.ask(Kind.HEARTBEAT, since=since)
        else:
            await self.ask(self.kind_of(entity), _cost(len(messages)), since)
        self.namespace.accept(entity, messages)

    async def _dial(self) -> Connection:
        return Connection(self.namespace, await self.namespace.connect(self.lag))

    def _info(self, entity: EntityPath) -> EntityInfo:
        queue = self.namespace.queues.get(entity.key)
        depth = 0 if queue is None else queue.depth
        return EntityInfo(
            path=entity, properties=backlog.QUEUE_PROPERTIES, active=depth, dead_lettered=0
        )


@attrs.frozen(eq=False)
class CountedReceiver:
    """A `Receiver` of one queue."""

    link: Link
    queue: StoredQueue

    async def receive(self, limit: int) -> Sequence[Delivery]:
        await self.queue.wait()
        await self.link.ask(Kind.RECEIVE, _cost(min(limit, len(self.queue.available))))
        while not (found := self.queue.take(limit)):
            await self.queue.wait()
        return found

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        await self.link.ask(Kind.SETTLE)
        self.queue.settle(delivery, settlement)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        await self.link.ask(Kind.SETTLE, _cost(len(settlements)))
        return [self._verdict(delivery, settlement) for delivery, settlement in settlements]

    async def renew(self, delivery: Delivery) -> datetime:
        await self.link.ask(Kind.SETTLE)
        return self.queue.renew(delivery)

    def _verdict(self, delivery: Delivery, settlement: Settlement) -> BrokerError | None:
        try:
            self.queue.settle(delivery, settlement)
        except LockLost as error:
            return error
        return None


def _cost(messages: int) -> float:
    return 1.0 + EACH * max(0, messages - 1)
