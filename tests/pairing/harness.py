"""Two namespaces in memory that fail on command, and a pair and syphons between them."""

import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.changes import Changes
from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.copies import Copies
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    QuotaExceeded,
    SessionRequired,
    Untrusted,
)
from gateway.domain.events.gateway import Event
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Complete, Delivery, Message, Value
from gateway.moments import Moments
from gateway.pairing.additions import PairDependencies, PairPeers
from gateway.pairing.control import Control
from gateway.pairing.options import PairOptions, SyphonOptions
from gateway.pairing.pair import Pair, PairParts, Spool
from gateway.pairing.provision import Backlog
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.backlog_message import Progress
from gateway.pairing.syphon.backoff import EntityBackoffs
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.drain import MAX_SUSPENDED, Drain
from gateway.pairing.syphon.drained_queue import DrainedQueue
from gateway.pairing.syphon.grace import Grace
from gateway.pairing.syphon.mover import Mover
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.primary_load import PrimaryLoad
from gateway.pairing.syphon.redelivery_guard import RedeliveryGuard
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Receiver
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.message import encode_sorted, encoded_size
from gateway.wire.pairgate.encryption import MessageEncryption
from tests.harness.clocks import VirtualClock
from tests.harness.faults import Call, Fault, FaultyBroker, Operation, Refuse, T, Work
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.harness.options import made

LABEL: Final = "east"
ORDERS: Final = EntityPath("orders")
BILLS: Final = EntityPath("Bills")
QUEUE: Final = backlog.queue_name(LABEL, 0)
KEY: Final = EnvelopeKey(id="1", key=b"a key for tests")
CALLERS_FAULT: Final = (
    EntityNotFound,
    EntityDisabled,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    QuotaExceeded,
    SessionRequired,
    Untrusted,
)
LONGEST_TEST: Final = 6 * 3600.0  # virtual seconds
BEGINNING: Final = 1024.0  # not 0, which would hide an error in a sum of moments

E = TypeVar("E", bound=Event)


def envelope(**changes: Any) -> Envelope:
    fields = {
        "pair": LABEL,
        "origin": "gateway-1",
        "keys": (KEY,),
        "encode": encode_sorted,
        "encryption": MessageEncryption(random.Random(0)),
    }
    return Envelope(**{**fields, **changes})


def message(message_id: str = "m1", **fields: Any) -> Message:
    return Message(message_id=message_id, body=b"body", **fields)


@attrs.frozen
class Slow:
    """Does the operation at once, and answers `seconds` later."""

    seconds: float

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        answer = await work()
        await trio.sleep(self.seconds)
        return answer


def refuse(error: type[BrokerError], *arguments: Any) -> Refuse:
    return Refuse(lambda: error(*arguments))


@attrs.define(eq=False)
class Events:
    """An observer that remembers."""

    all: list[Event] = attrs.field(factory=list)

    _changes: Changes = attrs.field(factory=Changes)

    def report(self, event: Event) -> None:
        self.all.append(event)
        self._changes.notify()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.all if isinstance(event, kind)]

    async def first(self, kind: type[E]) -> E:
        """Wait for it."""
        while not self.of(kind):
            await self._changes.wait(self._changes.version)
        return self.of(kind)[0]


@attrs.frozen
class Asked:
    """An operation that reached a namespace, or would have."""

    operation: Operation
    entity: EntityPath
    at: float


@attrs.define(eq=False)
class _Rule:
    fault: Fault | None
    operations: tuple[Operation, ...]
    entity: EntityPath | None
    times: float


@attrs.define(eq=False)
class Namespace:
    """A namespace: its messages, the requests that it got, and its faults."""

    store: MemoryBroker
    broker: FaultyBroker = attrs.field(init=False)
    asked: list[Asked] = attrs.field(factory=list)
    calls: list[Call] = attrs.field(factory=list)
    kind: type[FaultyBroker] = FaultyBroker
    _rules: list[_Rule] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.broker = self.kind(inner=self.store, fault=self._meet, watch=self.calls.append)

    def fail(
        self,
        fault: Fault | None,
        *operations: Operation,
        entity: EntityPath | None = None,
        times: float = float("inf"),
    ) -> None:
        """
        Let these operations (none named: all) meet that fault, or none, from now on.

        The first rule that fits an operation wins.
        """
        self._rules.append(_Rule(fault, operations, entity, times))

    def heal(self) -> None:
        self._rules.clear()

    def times(self, operation: Operation) -> list[float]:
        return [asked.at for asked in self.asked if asked.operation is operation]

    def sends(self, entity: EntityPath = ORDERS) -> int:
        wanted = [a for a in self.asked if a.operation is Operation.SEND and a.entity == entity]
        return len(wanted)

    async def deliveries(self, queue: EntityPath = ORDERS) -> Sequence[Delivery]:
        """Return the messages of the queue without receiving them; a peek shows a mebibyte."""
        found = list(await self.store.peek(queue, limit=10_000))
        while found and (
            more := await self.store.peek(
                queue, from_sequence=found[-1].sequence_number + 1, limit=10_000
            )
        ):
            found += more
        return found

    async def messages(self, queue: EntityPath = ORDERS) -> list[Message]:
        return [delivery.message for delivery in await self.deliveries(queue)]

    async def ids(self, queue: EntityPath = ORDERS) -> list[Value]:
        return [message.message_id for message in await self.messages(queue)]

    async def empty(self, queue: EntityPath) -> None:
        """Take all messages out of the queue."""
        async with self.store.open_receiver(queue) as receiver:
            while await self.store.peek(queue):
                for delivery in await receiver.receive(100):
                    await receiver.settle(delivery, Complete())

    def _meet(self, operation: Operation, entity: EntityPath) -> Fault | None:
        self.asked.append(Asked(operation, entity, trio.current_time()))
        for rule in self._rules:
            covered = not rule.operations or operation in rule.operations
            if covered and rule.entity in {None, entity} and rule.times > 0:
                rule.times -= 1
                return rule.fault
        return None


@attrs.define(eq=False, kw_only=True)
class Harness:
    """The namespaces, clocks and events of a test, which all end with the test."""

    nursery: trio.Nursery
    clock: VirtualClock = attrs.field(factory=VirtualClock)  # the gateway's
    # Of the others, by name; `clock` where there is none.
    clocks: dict[str, VirtualClock] = attrs.field(factory=dict)
    rng: random.Random = attrs.field(factory=partial(random.Random, 1))
    events: Events = attrs.field(factory=Events)
    numbers: "count[int]" = attrs.field(factory=count)
    primary: Namespace = attrs.field(init=False)
    secondary: Namespace = attrs.field(init=False)
    spool: Namespace = attrs.field(init=False)

    async def open(self, queues: int = 1, *, ordered: bool = False) -> None:
        """
        Start the namespaces: two entities here, that many backlog queues there; with `ordered` also
        those of ordered entities.
        """
        self.primary = await self.namespace(clock=self.clocks.get("primary"))
        kind = FaultySessionsBroker if ordered else FaultyBroker
        self.secondary = await self.namespace(clock=self.clocks.get("secondary"), kind=kind)
        self.spool = await self.namespace()
        for entity in (ORDERS, BILLS):
            await self.primary.store.create_queue(entity, QueueProperties())
        for queue in self.queues(queues):
            await self.secondary.store.create_queue(queue, backlog.LEGACY_PROPERTIES)
        if ordered:
            # Imported here: the tests of the core are also run without the extension.
            from gateway.extensions.order.queues import (
                LEASE_PROPERTIES,
                ORDERED_PROPERTIES,
                lease_queue,
                ordered_queues,
            )

            for queue in ordered_queues(LABEL):
                await self.secondary.store.create_queue(queue, ORDERED_PROPERTIES)
            leases = lease_queue(LABEL)
            await self.secondary.store.create_queue(leases, LEASE_PROPERTIES)
        await self.spool.store.create_queue(QUEUE, backlog.LEGACY_PROPERTIES)

    async def namespace(
        self,
        options: LocalOptions | None = None,
        *,
        clock: VirtualClock | None = None,
        kind: type[FaultyBroker] = FaultyBroker,
    ) -> Namespace:
        store = MemoryBroker(clock or self.clock, self.rng, options)
        namespace = Namespace(store, kind=kind)
        await self.nursery.start(namespace.broker.run)
        return namespace

    def queues(self, number: int) -> tuple[EntityPath, ...]:
        return tuple(backlog.queue_name(LABEL, index) for index in range(number))

    def parts(
        self,
        *,
        queues: int = 1,
        limit: int | None = None,
        spool: bool = False,
        encrypts: bool = False,
        peers: PairPeers | None = None,
        **options: Any,
    ) -> PairParts:
        return PairParts(
            primary=self.primary.broker,
            secondary=self.secondary.broker,
            options=made(PairOptions, label=LABEL, **options),
            backlog=Backlog(queues=self.queues(queues), max_message_size=limit),
            envelope=envelope(encrypts=encrypts),
            dependencies=PairDependencies(
                clock=self.clock,
                rng=self.rng,
                new_id=self.new_id,
                observer=self.events,
                measure=encoded_size,
            ),
            spool=Spool(broker=self.spool.broker, queue=QUEUE) if spool else None,
            peers=peers or PairPeers(),
        )

    async def pair(self, *, state: Path | None = None, **options: Any) -> Pair:
        """A pair that runs."""
        pair = attrs.evolve(self.parts(**options), state=state).assemble()
        await self.nursery.start(pair.run)
        return pair

    def make_syphon(
        self,
        *,
        source: Namespace | None = None,
        states: EntityStates | None = None,
        envelope: Envelope = envelope(),  # noqa: B008  # it is never renewed
        max_suspended: int = MAX_SUSPENDED,
        pauses: Pauses | None = None,
        **options: Any,
    ) -> Syphon:
        return Syphon(
            primary=self.primary.broker,
            source=(source or self.secondary).broker,
            label=LABEL,
            options=SyphonOptions(**options),
            envelope=envelope,
            clock=self.clocks.get("syphon", self.clock),
            rng=self.rng,
            observer=self.events,
            states=states,
            pauses=pauses or Pauses(),
            max_suspended=max_suspended,
        )

    def make_drain(
        self,
        *,
        envelope: Envelope = envelope(),  # noqa: B008  # it is never renewed
        max_suspended: int = MAX_SUSPENDED,
        **options: Any,
    ) -> Drain:
        """A drain of `QUEUE`, alone."""
        chosen, progress = SyphonOptions(**options), Progress(None)
        clock = self.clocks.get("syphon", self.clock)
        at = DrainedQueue(
            primary=self.primary.broker,
            source=self.secondary.broker,
            queue=QUEUE,
            envelope=envelope,
            destination=Destination(primary=self.primary.broker, observer=self.events),
            options=chosen,
            backoffs=EntityBackoffs(
                rng=self.rng,
                observer=self.events,
                load=load_of(self.primary.broker),
                largest=chosen.batch,
            ),
            copies=Copies(),
            progress=progress,
            wrong_macs=Grace(),
            redelivery_guard=RedeliveryGuard(began=progress.began, rng=self.rng),
            clock=clock,
            moments=Moments(clock),
            observer=self.events,
        )
        return Drain(at=at, max_suspended=max_suspended)

    def make_mover(self, drain: Drain, receiver: Receiver, *, lock: float = 15.0) -> Mover:
        """A mover at that receiver, with what the drain has. `lock` is in seconds."""
        at = drain.at
        return Mover(
            primary=at.primary,
            receiver=receiver,
            receiver_queue=at.queue,
            backoffs=at.backoffs,
            options=at.options,
            copies=at.copies,
            progress=at.progress,
            clock=at.clock,
            moments=at.moments,
            observer=at.observer,
            lock=lambda: lock,
        )

    async def syphon(self, **settings: Any) -> trio.CancelScope:
        """A syphon that runs until the scope is cancelled."""
        return await self.nursery.start(_in_scope, self.make_syphon(**settings).run)

    async def divert(
        self,
        *messages: Message,
        entity: EntityPath = ORDERS,
        queue: EntityPath = QUEUE,
        envelope: Envelope = envelope(),  # noqa: B008  # it is never renewed
    ) -> None:
        """Put messages on the backlog, as a gateway does."""
        now = self.clock()
        wrapped = [envelope.wrap(each, entity, attempt=self.new_id(), now=now) for each in messages]
        await self.secondary.store.send(queue, wrapped)

    def new_id(self) -> str:
        return f"id-{next(self.numbers)}"

    def after(self, seconds: float) -> Any:
        return self.clock() + timedelta(seconds=seconds)


def load_of(primary: Broker, **options: Any) -> PrimaryLoad:
    """A syphon's load on that primary; each pause before a probe is twice as long as the last."""
    retry = Backoff(first=1.0, cap=30.0, jitter=0.0)
    return PrimaryLoad(
        primary=primary, rng=random.Random(1), retry=retry, attempt_timeout=10.0, **options
    )


def _run_in_time(test: Callable[[], Any], **_: Any) -> None:
    async def main() -> None:
        with trio.fail_after(LONGEST_TEST):
            await test()

    clock = MockClock(autojump_threshold=0)
    clock.jump(BEGINNING)
    trio.run(main, clock=clock)


# For `pytestmark`: virtual time, and a limit for a test that waits in vain.
virtual_time = pytest.mark.trio(run=_run_in_time)


async def _in_scope(
    run: Callable[..., Any], *, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            task_status.started(scope)


def control_of(harness: Harness, pair: Pair, *syphons: Syphon) -> Control:
    return Control(
        clock=harness.clock,
        observer=harness.events,
        pauses=pair.pauses,
        syphons=syphons,
        states=pair.states,
        entity_cache=pair.entity_cache,
        prober=pair.prober,
    )


async def outcome_of(action: Callable[[], Any]) -> BrokerError | None:
    """The error that it ends with."""
    try:
        await action()
    except BrokerError as error:
        return error
    return None


def send(
    pair: Pair, *messages: Message, entity: EntityPath = ORDERS
) -> Callable[[], Coroutine[Any, Any, AcceptedBy]]:
    """An action: one send of those messages, or of one."""
    return partial(pair.broker.send_diverting, entity, list(messages) or [message()])


async def suspect(harness: Harness, pair: Pair) -> None:
    """Make `orders` suspect with one send that is diverted; heal the primary."""
    harness.primary.fail(Refuse(), Operation.SEND)
    await send(pair, message("first"))()
    harness.primary.heal()
    assert pair.states.state_of(ORDERS) is State.SUSPECT


class Timed:
    """Measures the virtual seconds that the block takes."""

    seconds: float

    def __enter__(self) -> Self:
        self.started = trio.current_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = trio.current_time() - self.started


async def reaches(states: EntityStates, state: State, entity: EntityPath = ORDERS) -> None:
    """Return when the entity stands there."""
    while states.state_of(entity) is not state:
        await states.changes.wait(states.changes.version)
