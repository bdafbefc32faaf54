"""The kinds of namespace that the contract is checked on. A new adapter adds itself to `KINDS`."""

import enum
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio
from pairgate_beanstalkd.broker import KIND
from trio.abc import Clock

from gateway.config.kinds import Address, BrokerDependencies
from gateway.extensions.announcements.interceptor import Announcing
from gateway.extensions.drill.interceptor import Cut
from gateway.interception.broker import InterceptedBroker
from gateway.ports import Broker, WallClock
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.abilities import AbilityWatch
from tests.brokers.amqp import rabbit
from tests.brokers.amqp import served as amqp
from tests.brokers.elsewhere import Elsewhere
from tests.brokers.pairs import pair_of
from tests.brokers.rabbitmq.nodes import NEWER, Nodes
from tests.brokers.servicebus import served as servicebus_rest
from tests.brokers.storage_queue import served as storage_queue
from tests.brokers.storage_queue.azurites import Azurites
from tests.extensions.claims.harness import Events, claimed, packing
from tests.extensions.sharding.harness import EveryQueue, sharded
from tests.harness.beanstalkd import beanstalkd
from tests.harness.claim_store import MemoryClaimStore
from tests.harness.clocks import VirtualClock
from tests.harness.patience import PATIENCE
from tests.harness.watched import watched as watched_by

F = TypeVar("F", bound=Callable[..., Any])


class Capability(enum.Flag):
    """The capabilities that not every kind of namespace has."""

    PEEK = enum.auto()
    SCHEDULE = enum.auto()
    TIME_TO_LIVE = enum.auto()
    SHORT_LOCKS = enum.auto()  # lock durations of a second
    DEAD_LETTER = enum.auto()  # with reason, and a sub-queue to receive from
    ALL_TYPES = enum.auto()  # every AMQP type survives
    MANAGEMENT = enum.auto()  # create, delete, list, properties
    COUNTS = enum.auto()  # `inspect` counts exactly
    QUOTA = enum.auto()
    RECEIVE_AND_DELETE = enum.auto()
    PROMPT_RETURN = enum.auto()  # what is given back is visible at once
    ORDERLY_RETURN = enum.auto()  # and in the order in which it was taken
    PROMPT_CANCEL = enum.auto()  # a cancelled receive takes nothing, not even until a lock ends
    DUPLICATES = enum.auto()  # are detected
    UPDATE = enum.auto()  # of an entity's properties
    NUMBERED_SCHEDULE = enum.auto()  # that can be cancelled
    DEFERRAL = enum.auto()
    AMENDMENT = enum.auto()  # of a message's properties, when it is settled
    SESSIONS = enum.auto()
    FORWARDING = enum.auto()
    TOPICS = enum.auto()
    DEFERRED_COUNT = enum.auto()  # `inspect` counts what is deferred
    PROMPT_ABANDON = enum.auto()  # what is abandoned is in its place again at once
    DATES = enum.auto()  # a delivery says when it came, and how long it's locked
    ANY_CASE = enum.auto()  # the case of a path is ignored
    EXPIRY = enum.auto()  # a delivery says when it expires
    SETTLES_MANY = enum.auto()  # several deliveries in one step
    SIZES = enum.auto()  # a body counts whole against the limits of size
    SENDS_MANY = enum.auto()  # several batches in flight
    DELETE_BY_KIND = enum.auto()  # to delete a queue leaves a topic of that name alone
    IDENTITY = enum.auto()  # it says who it is, whatever its address
    BATCH_DELETE = enum.auto()  # of messages that nobody receives
    STRICT_LOCKS = enum.auto()  # a lock that ran out is lost, even if nobody took the message
    TRANSACTIONS = enum.auto()  # sends and settlements that are done together or not at all
    TRANSACTED_SCHEDULE = enum.auto()  # messages are scheduled and cancelled in transactions
    PROPERTIES = enum.auto()  # of a queue are kept, or refused by name
    OWN_NUMBERS = enum.auto()  # of each entity, from 1 on, without gaps
    TOKENS = enum.auto()  # any process settles with a delivery's token
    PEEKED_STATE = enum.auto()  # of a session, for those that don't hold it
    AVAILABLE = enum.auto()  # a receiver knows when nothing is available
    WRITTEN_DEAD_LETTERS = enum.auto()  # not only receivers add dead letters
    SUBSCRIPTION_SENDS = enum.auto()  # a subscription gets messages that are for it alone


_OWN = Capability.WRITTEN_DEAD_LETTERS | Capability.SUBSCRIPTION_SENDS
# The abilities of a namespace with locks of its own, but for those that wrappers withhold.
EVERYTHING = ~(Capability.TOKENS | _OWN)


@attrs.frozen
class Place:
    """The resources of a test: a folder of its own, and processes that all tests share."""

    folder: Path
    elsewhere: Elsewhere
    rabbits: Nodes
    azurites: Azurites


Open = Callable[[Place], AbstractAsyncContextManager[Broker]]


@attrs.frozen(kw_only=True)
class BrokerKind:
    """
    `open` gives an open broker, which is empty.

    `virtual_time`: no socket, thread or process, so that a test needn't wait. `shared`: it is on
    servers that all tests of a process share. `live`: it starts a server of its own. `slow`: it's
    dear, and `make quick` has its parts alone.
    """

    name: str
    open: Open
    can: Capability = EVERYTHING
    virtual_time: bool = False
    shared: bool = False
    live: bool = False
    slow: bool = False


def needs(capability: Capability) -> Callable[[F], F]:
    """The test is there only for the kinds that can do this."""

    def mark(test: F) -> F:
        test.needs = capability  # type: ignore[attr-defined]
        return test

    return mark


def waits(test: Callable[[Broker], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The test waits for time to pass: all kinds that live in real time do that at once."""

    async def at_once(
        kinds_at_once: Sequence[BrokerKind],
        clock: Clock | None,
        folder: Path,
        elsewhere: Elsewhere,
        rabbits: Nodes,
        azurites: Azurites,
    ) -> None:
        async def run(kind: BrokerKind, broker: Broker) -> None:
            try:
                await test(broker)
            except BaseException as error:
                error.add_note(f"on {kind.name}")
                raise

        # All are open before the first test begins: the start of their shared servers blocks for
        # seconds.
        async with AsyncExitStack() as stack:
            brokers = []
            for kind in kinds_at_once:
                place = Place(folder / kind.name, elsewhere, rabbits, azurites)
                place.folder.mkdir()
                brokers.append(await stack.enter_async_context(kind.open(place)))
            async with trio.open_nursery() as nursery:
                for kind, broker in zip(kinds_at_once, brokers, strict=True):
                    nursery.start_soon(run, kind, broker)

    at_once.__name__, at_once.__module__ = test.__name__, test.__module__
    return at_once


def real_date() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def memory(_place: Place) -> AsyncIterator[Broker]:
    async with MemoryBroker(VirtualClock(), random.Random(0)) as broker:
        yield broker


@asynccontextmanager
async def embedded(place: Place) -> AsyncIterator[Broker]:
    async with EmbeddedBroker(
        place.folder / "store" / "a.db", real_date, random.Random(0)
    ) as broker:
        yield broker


def with_claims(inner: Open, clock: WallClock) -> Open:
    """Every body that is more than a few bytes lies in a store."""

    @asynccontextmanager
    async def open_claimed(place: Place) -> AsyncIterator[Broker]:
        async with inner(place) as broker:
            yield claimed(broker, MemoryClaimStore(clock), clock, Events(), above=4)

    return open_claimed


def with_packs(inner: Open) -> Open:
    """Messages that are never packed pass unchanged."""

    @asynccontextmanager
    async def open_packed(place: Place) -> AsyncIterator[Broker]:
        async with inner(place) as broker, trio.open_nursery() as nursery:
            packed = packing(broker, match="none of them")
            await nursery.start(packed.run)
            yield packed
            nursery.cancel_scope.cancel()

    return open_packed


def announced(inner: Open) -> Open:
    """Each new message is announced, without a listener."""

    @asynccontextmanager
    async def open_announced(place: Place) -> AsyncIterator[Broker]:
        async with inner(place) as broker:
            yield InterceptedBroker(broker, [Announcing(lambda queue, size: None)])

    return open_announced


def watched(inner: Open, clock: WallClock) -> Open:
    """The namespace's successes and failures are recorded."""

    @asynccontextmanager
    async def open_watched(place: Place) -> AsyncIterator[Broker]:
        async with inner(place) as broker:
            yield watched_by(broker, AbilityWatch(clock=clock))

    return open_watched


def behind_a_cut(inner: Open) -> Open:
    """No drill is under way."""

    @asynccontextmanager
    async def open_behind(place: Place) -> AsyncIterator[Broker]:
        async with inner(place) as broker:
            yield InterceptedBroker(broker, [Cut()])

    return open_behind


def with_shards(inner: Open, clock: WallClock) -> Open:
    """Each queue is one of three shards, of which the last has all messages."""

    @asynccontextmanager
    async def open_sharded(place: Place) -> AsyncIterator[Broker]:
        async with inner(place) as broker:
            yield sharded(broker, EveryQueue(), clock)

    return open_sharded


@asynccontextmanager
async def on_beanstalkd(place: Place) -> AsyncIterator[Broker]:
    """A kind that another distribution adds: examples/beanstalkd."""
    async with beanstalkd(place.folder) as (_, port):
        address = Address(
            name="tubes",
            scheme="beanstalkd",
            rest=f"//127.0.0.1:{port}",
            options=None,
            dependencies=BrokerDependencies(
                clock=real_date, rng=random.Random(0), observer=Events()
            ),
        )
        async with KIND.make(address) as broker:
            yield broker


def in_this_process(open_broker: Callable[[Path], AbstractAsyncContextManager[Broker]]) -> Open:
    return lambda place: open_broker(place.folder)


def in_process(name: str) -> Open:
    return lambda place: place.elsewhere.namespace(name)


def on_rabbitmq(name: str) -> Open:
    return lambda place: place.rabbits.namespace(name, connect_timeout=PATIENCE)


def over_amqp_on(name: str) -> Open:
    return lambda place: rabbit.namespace_at(place.rabbits, name)


def on_azurite(name: str) -> Open:
    return lambda place: place.azurites.namespace(name, connect_timeout=PATIENCE)


# The contract is about a healthy pair: a stall of the machine, on which all kinds run at once, is
# no outage. A pair that takes it for one diverts messages, which then may arrive twice, or late.
PATIENT = {"slow_call_duration": None, "attempt_timeout": PATIENCE, "send_timeout": 3 * PATIENCE}


def pair(primary: Open, secondary: Open, clock: WallClock) -> Open:
    """The pair itself is in this process."""

    @asynccontextmanager
    async def open_pair(place: Place) -> AsyncIterator[Broker]:
        async with AsyncExitStack() as stack:
            sides = []
            for name, open_side in (("primary", primary), ("secondary", secondary)):
                folder = place.folder / name
                folder.mkdir()
                sides.append(
                    await stack.enter_async_context(open_side(attrs.evolve(place, folder=folder)))
                )
            patient = pair_of(*sides, clock, **PATIENT)
            yield (await stack.enter_async_context(patient)).broker

    return open_pair


OVER_HTTP = ~(
    Capability.PROMPT_CANCEL
    | Capability.NUMBERED_SCHEDULE
    | Capability.DEFERRAL
    | Capability.AMENDMENT
    | Capability.SESSIONS
    | Capability.SETTLES_MANY
    | Capability.SENDS_MANY
    | Capability.DELETE_BY_KIND
    | Capability.TRANSACTIONS
    | Capability.TRANSACTED_SCHEDULE
    | Capability.BATCH_DELETE
    | Capability.PEEKED_STATE
    | _OWN
)

# Messages that a cancelled receive had on their way stay locked until their locks end.
OVER_AMQP = EVERYTHING & ~(
    Capability.PROMPT_CANCEL
    | Capability.DEFERRED_COUNT
    | Capability.EXPIRY
    | Capability.DELETE_BY_KIND
    | Capability.TRANSACTED_SCHEDULE
    | Capability.PEEKED_STATE
)

_TRANSACTED = Capability.TRANSACTIONS | Capability.TRANSACTED_SCHEDULE

# Large bodies lie in a store, and the namespace sees their references.
WITH_CLAIMS = EVERYTHING & ~(Capability.QUOTA | Capability.SIZES | _TRANSACTED)

# A name is that of a queue, and what goes on to another one goes on from its first shard.
WITH_SHARDS = ~(
    Capability.TOPICS
    | Capability.FORWARDING
    | Capability.DUPLICATES
    | Capability.TRANSACTED_SCHEDULE
    | Capability.TOKENS
    | _OWN
)

# Plain AMQP 1.0, and RabbitMQ's plugin for it: a quorum queue puts each message that comes back
# behind all others, by a way that promises no order among them; and a link answers one drain.
PLAIN = (
    Capability.SENDS_MANY
    | Capability.SETTLES_MANY
    | Capability.RECEIVE_AND_DELETE
    | Capability.PROMPT_RETURN
    | Capability.TIME_TO_LIVE
    | Capability.IDENTITY
)

RABBITMQ = (
    Capability.PROPERTIES
    | Capability.SIZES
    | Capability.TIME_TO_LIVE
    | Capability.DEAD_LETTER
    | Capability.ALL_TYPES
    | Capability.RECEIVE_AND_DELETE
    | Capability.PROMPT_RETURN
    | Capability.ORDERLY_RETURN
    | Capability.PROMPT_CANCEL
    | Capability.SETTLES_MANY
    | Capability.SENDS_MANY
    | Capability.IDENTITY
    | Capability.AVAILABLE
)

# Messages that a cancelled receive had on their way stay hidden until their locks end.
STORAGE_QUEUE = (
    Capability.PROPERTIES
    | Capability.TIME_TO_LIVE
    | Capability.SCHEDULE
    | Capability.SHORT_LOCKS
    | Capability.DEAD_LETTER
    | Capability.ALL_TYPES
    | Capability.RECEIVE_AND_DELETE
    | Capability.PROMPT_RETURN
    | Capability.ORDERLY_RETURN
    | Capability.DATES
    | Capability.ANY_CASE
    | Capability.TOKENS
    | Capability.AVAILABLE
)

# Tubes have names and jobs, and no properties.
BEANSTALKD = (
    Capability.DEAD_LETTER
    | Capability.ALL_TYPES
    | Capability.RECEIVE_AND_DELETE
    | Capability.PROMPT_RETURN
    | Capability.ORDERLY_RETURN
    | Capability.PROMPT_ABANDON
    | Capability.PROMPT_CANCEL
    | Capability.DATES
    | Capability.ANY_CASE
)

KINDS = [
    BrokerKind(name="memory", open=memory, can=EVERYTHING | _OWN, virtual_time=True),
    BrokerKind(name="embedded", open=embedded, can=EVERYTHING | _OWN),
    BrokerKind(
        name="servicebus+http", open=in_this_process(servicebus_rest.pairgate), can=OVER_HTTP
    ),
    BrokerKind(
        name="servicebus+http, no Pairgate",
        open=in_this_process(servicebus_rest.stranger),
        can=OVER_HTTP
        & ~(Capability.PEEK | Capability.DEAD_LETTER | Capability.ALL_TYPES | Capability.IDENTITY),
    ),
    BrokerKind(
        name="servicebus+http to another process",
        open=in_process("primary"),
        shared=True,
        can=OVER_HTTP,
    ),
    BrokerKind(name="servicebus", open=in_this_process(amqp.pairgate), can=OVER_AMQP),
    BrokerKind(
        name="amqp, RabbitMQ",
        open=over_amqp_on("primary"),
        shared=True,
        can=PLAIN,
    ),
    BrokerKind(
        name="amqp, RabbitMQ 4",
        open=over_amqp_on(NEWER),
        shared=True,
        slow=True,
        can=PLAIN,
    ),
    BrokerKind(name="beanstalkd", open=on_beanstalkd, can=BEANSTALKD, live=True),
    BrokerKind(
        name="pair of memory",
        open=pair(memory, memory, VirtualClock()),
        virtual_time=True,
    ),
    BrokerKind(name="pair of embedded", open=pair(embedded, embedded, real_date)),
    BrokerKind(
        name="pair of servicebus+http",
        open=pair(in_process("primary"), in_process("secondary"), real_date),
        shared=True,
        can=OVER_HTTP,
    ),
    BrokerKind(
        name="memory with claims",
        open=with_claims(memory, VirtualClock()),
        can=WITH_CLAIMS,
        virtual_time=True,
    ),
    BrokerKind(
        name="rabbitmq with claims",
        open=with_claims(on_rabbitmq("primary"), real_date),
        shared=True,
        can=RABBITMQ & ~Capability.SIZES,
    ),
    BrokerKind(
        name="memory, with packs",
        open=with_packs(memory),
        can=EVERYTHING & ~(_TRANSACTED | Capability.BATCH_DELETE),
        virtual_time=True,
    ),
    BrokerKind(
        name="memory, intercepted",
        open=watched(behind_a_cut(announced(memory)), VirtualClock()),
        can=EVERYTHING | _OWN,
        virtual_time=True,
    ),
    BrokerKind(
        name="pair of memory in all wrappers",
        open=with_packs(
            with_claims(
                pair(
                    watched(announced(memory), VirtualClock()),
                    watched(memory, VirtualClock()),
                    VirtualClock(),
                ),
                VirtualClock(),
            )
        ),
        can=WITH_CLAIMS & ~Capability.BATCH_DELETE,
        virtual_time=True,
    ),
    BrokerKind(
        name="memory, sharded",
        open=with_shards(memory, VirtualClock()),
        can=WITH_SHARDS,
        virtual_time=True,
    ),
    BrokerKind(
        name="pair of memory, sharded",
        open=with_shards(pair(memory, memory, VirtualClock()), VirtualClock()),
        can=WITH_SHARDS,
        virtual_time=True,
    ),
    BrokerKind(
        name="rabbitmq, sharded",
        open=with_shards(on_rabbitmq("primary"), real_date),
        shared=True,
        can=RABBITMQ & WITH_SHARDS,
    ),
    BrokerKind(
        name="servicebus, sharded",
        open=with_shards(in_this_process(amqp.pairgate), real_date),
        can=OVER_AMQP & WITH_SHARDS,
        slow=True,
    ),
    BrokerKind(
        name="amqp, RabbitMQ, sharded",
        open=with_shards(over_amqp_on("primary"), real_date),
        shared=True,
        can=PLAIN & WITH_SHARDS,
    ),
    BrokerKind(
        name="storage-queue, sharded",
        open=with_shards(on_azurite("primary"), real_date),
        shared=True,
        can=STORAGE_QUEUE & WITH_SHARDS,
    ),
    BrokerKind(
        name="rabbitmq",
        open=on_rabbitmq("primary"),
        shared=True,
        can=RABBITMQ | Capability.WRITTEN_DEAD_LETTERS,
    ),
    BrokerKind(
        name="rabbitmq 4",
        open=on_rabbitmq(NEWER),
        shared=True,
        slow=True,
        can=RABBITMQ | Capability.WRITTEN_DEAD_LETTERS,
    ),
    BrokerKind(
        name="pair of rabbitmq",
        open=pair(on_rabbitmq("primary"), on_rabbitmq("secondary"), real_date),
        shared=True,
        can=RABBITMQ,
    ),
    BrokerKind(
        name="pair of rabbitmq and embedded",
        open=pair(on_rabbitmq("primary"), embedded, real_date),
        shared=True,
        can=RABBITMQ,
    ),
    BrokerKind(
        name="storage-queue, Azurite",
        open=on_azurite("primary"),
        shared=True,
        can=STORAGE_QUEUE | Capability.WRITTEN_DEAD_LETTERS,
    ),
    BrokerKind(
        name="storage-queue, a Pairgate",
        open=in_this_process(storage_queue.pairgate),
        can=STORAGE_QUEUE | Capability.WRITTEN_DEAD_LETTERS,
    ),
    BrokerKind(
        name="pair of storage-queue",
        open=pair(on_azurite("primary"), on_azurite("secondary"), real_date),
        shared=True,
        can=STORAGE_QUEUE,
    ),
]
