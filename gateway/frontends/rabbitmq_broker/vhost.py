"""
The vhost of the endpoint: its queues, exchanges and bindings, which all connections share.

The queues are those of the namespace, also such as others have made; its topics are exchanges, and
their subscriptions queues that others have made. Which queue a client made, with which arguments,
is kept with the exchanges and bindings in the file of `TopologyFile`, as the requests that made
them; they are in force again after a restart.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio
from pamqp import base, commands

from gateway.capabilities import Topology
from gateway.changes import Changes
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, EntityExists, EntityNotFound
from gateway.frontends.rabbitmq.known_topology import (
    Inequivalent,
    KnownTopology,
    check_declaration,
    compared_of_exchange,
)
from gateway.frontends.rabbitmq_broker.binding_requests import (
    binding_of,
    check_arguments,
    exchange_of,
    unbind_of,
    with_fields,
)
from gateway.frontends.rabbitmq_broker.names import entity_of, entity_or_none, subscription_in
from gateway.frontends.rabbitmq_broker.queue_terms import QueueTerms, read_terms
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, not_implemented, refusal_of
from gateway.frontends.rabbitmq_broker.routing import (
    KINDS,
    OF_NAMESPACE,
    Binding,
    RoutingExchange,
    RoutingTable,
)
from gateway.offering import offered
from gateway.ports import Broker
from gateway.wire.rabbitmq.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
)
from gateway.wire.rabbitmq.relayed import FrameReader

VHOST: Final = "/"  # the only one
_ANSWER: Final = 30.0  # seconds for a namespace: as long as the wire waits for the primary
# Queues, exchanges and bindings together; `KnownTopology` remembers as many.
_MOST: Final = 20_000


@attrs.define(eq=False)
class ServedQueue:
    name: str
    entity: EntityPath
    terms: QueueTerms
    auto_delete: bool = False
    owner: object | None = None  # the connection of an exclusive queue
    is_exclusive: bool = False
    # Called when the queue is gone, by consumer.
    consumers: dict[object, Callable[[], None]] = attrs.field(factory=dict)
    exclusive_consumer: bool = False
    unsettled: int = 0  # deliveries that clients here haven't settled
    # Of a bounded queue, by `CountedReceiver`: the messages that clients may have taken, ever, and
    # those of them that were settled, came back or weren't there. Clients hold the difference.
    taken: int = 0
    given: int = 0
    drops: int = 0  # that have begun, of what is in excess; one at a time
    drop_turn: trio.Lock = attrs.field(factory=trio.Lock)
    is_going: bool = False  # a client here deletes it, and hears that before its consumers
    used: float = 0.0  # when it was last, by Trio's clock


@attrs.define(eq=False, kw_only=True)
class ServedVhost:
    broker: Broker
    _known: KnownTopology
    _flush: Callable[[], Awaitable[None]]  # returns when what is known is kept
    queues: dict[str, ServedQueue] = attrs.field(factory=dict, init=False)
    table: RoutingTable = attrs.field(factory=RoutingTable, init=False)
    # The queues whose dead letters are moved, or that expire without use.
    tended: dict[ServedQueue, None] = attrs.field(factory=dict, init=False)
    # One of these was made, used or has gone, or a queue is doomed: `upkeep` follows that.
    changes: Changes = attrs.field(factory=Changes, init=False)
    # Names of queues that have gone with a client, and that the namespace still has.
    doomed: dict[EntityPath, str] = attrs.field(factory=dict, init=False)
    _names: dict[EntityPath, str] = attrs.field(factory=dict, init=False)
    # One change of the topology at a time.
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        for _, frame in self._known.requests():
            [arrived] = FrameReader().feed(frame)
            self._restore(arrived.method())

    def _restore(self, request: base.Frame) -> None:
        match request:
            case commands.Queue.Declare():
                queue = self._add(request)
                if queue.is_exclusive:  # its connection has ended
                    self.doom(queue)
            case commands.Exchange.Declare(passive=True):
                self._add_topic(request.exchange)
            case commands.Exchange.Declare():
                self.table.exchanges[request.exchange] = exchange_of(request)
            case commands.Queue.Bind() | commands.Exchange.Bind():
                self.table.bind(binding_of(request))

    # --- queues

    async def declare_queue(
        self, request: commands.Queue.Declare, owner: object
    ) -> tuple[ServedQueue, EntityInfo | None]:
        """
        Return when the queue is there, with what the namespace tells of it; None: it can't now.

        Raises:
            ClientRefused: the queue is missing, or has other arguments; or somebody else owns it.
        """
        if request.passive:
            queue = await self.queue(request.queue, owner)
            return queue, await self.info(queue)
        async with self._turn:
            if request.queue in self.queues:
                queue = self._declared(request, owner)
            else:
                there = await self._subscription(request)
                queue = there or await self._make(request, owner)
        if not queue.is_exclusive:  # such a queue doesn't outlive this process
            await self._flush()
        try:
            return queue, await self.info(queue)
        except ClientRefused as refusal:
            if refusal.code != NOT_FOUND:
                raise
        return await self.declare_queue(request, owner)  # others have deleted it

    def _declared(self, request: commands.Queue.Declare, owner: object) -> ServedQueue:
        """The queue that is there already. Raises ClientRefused."""
        queue = self.queues[request.queue]
        _check_owner(queue, owner)
        self._check_equivalent(request)
        self.use(queue)
        return queue

    def _check_equivalent(self, request: base.Frame) -> None:
        try:
            self._known.answer(VHOST, request)
        except Inequivalent as error:
            raise _refusal_of(error) from error

    async def _subscription(self, request: commands.Queue.Declare) -> ServedQueue | None:
        """The subscription that has the queue's name; None: there is none. Raises ClientRefused."""
        if subscription_in(request.queue) is None:
            return None
        try:
            queue = await self._find(request.queue)
        except ClientRefused as refusal:
            if refusal.code == NOT_FOUND:
                return None
            raise
        if read_terms(request.queue, request.arguments) != queue.terms:
            _check_own(queue, "arguments")
        return queue

    async def _make(self, request: commands.Queue.Declare, owner: object) -> ServedQueue:
        if not request.queue:
            request.queue = f"amq.gen-{secrets.token_hex(11)}"
        elif request.queue.startswith("amq."):
            text = f"queue name '{request.queue}' contains reserved prefix 'amq.*'"
            raise ClientRefused(ACCESS_REFUSED, text)
        self._check_room()
        terms, entity = read_terms(request.queue, request.arguments), entity_of(request.queue)
        if (other := self._names.get(entity)) is not None:
            raise not_implemented(f"queue '{request.queue}' beside '{other}': case alone differs")
        if entity in self.doomed:
            await self.delete_doomed(entity)
        try:
            with answered_within(_ANSWER, "to a declaration"):
                await self.broker.create_queue(entity, terms.properties)
        except EntityExists:
            await self._check_properties(request.queue, entity, terms)
        queue = self._add(request)
        queue.owner = owner if queue.is_exclusive else None
        self._known.record(VHOST, request)
        return queue

    async def _check_properties(self, name: str, entity: EntityPath, terms: QueueTerms) -> None:
        """Compare a queue that others have made with what a client declares."""
        found = (await self.broker.inspect(entity)).properties
        current, received = found.default_time_to_live, terms.life
        if received != current:
            raise ClientRefused(
                PRECONDITION_FAILED,
                f"inequivalent arg 'x-message-ttl' for queue '{name}' in vhost '{VHOST}':"
                f" received '{received}' but current is '{current}'",
            )

    def _add(
        self, request: commands.Queue.Declare, subscription: EntityPath | None = None
    ) -> ServedQueue:
        queue = ServedQueue(
            name=request.queue,
            entity=subscription or entity_of(request.queue),
            terms=read_terms(request.queue, request.arguments),
            auto_delete=bool(request.auto_delete),
            is_exclusive=bool(request.exclusive),
            used=_now(),
        )
        self.queues[queue.name] = queue
        self._names[queue.entity] = queue.name
        if queue.terms.dead_letter_exchange is not None or queue.terms.expires is not None:
            self.tended[queue] = None
            self.changes.notify()
        return queue

    def _check_room(self) -> None:
        if len(self.queues) + len(self.table.exchanges) + len(self.table) >= _MOST:
            text = f"more than {_MOST} queues, exchanges and bindings"
            raise ClientRefused(PRECONDITION_FAILED, text)

    async def queue(self, name: str, owner: object) -> ServedQueue:
        """
        The queue with that name, also if others have made it.

        Raises:
            ClientRefused: there is none, or another connection owns it.
        """
        queue = self.queues.get(name) or await self._find(name)
        _check_owner(queue, owner)
        self.use(queue)
        return queue

    def is_gone(self, name: str) -> bool:
        """
        True if the queue is missing whatever the namespace says: it has gone with a client, or is
        another one there, whose name differs in case alone.
        """
        entity = entity_or_none(name)
        if entity is None:
            return True
        return entity in self.doomed or self._names.get(entity, name) != name

    async def _find(self, name: str) -> ServedQueue:
        missing = ClientRefused(NOT_FOUND, f"no queue '{name}' in vhost '{VHOST}'")
        subscription = subscription_in(name)
        entity = subscription or (entity_of(name) if name else None)
        if entity is None or self.is_gone(name):
            raise missing
        try:
            with answered_within(_ANSWER, "to a question"):
                await self.broker.inspect(entity)
        except EntityNotFound as error:
            raise missing from error
        except BrokerError as error:
            raise refusal_of(error) from error
        if name not in self.queues:  # it was looked up meanwhile
            self._add(with_fields(commands.Queue.Declare(), queue=name), subscription)
        return self.queues[name]

    async def info(self, queue: ServedQueue) -> EntityInfo | None:
        """The namespace's facts about the queue; None: it can't be asked now."""
        try:
            with answered_within(_ANSWER, "to a question"):
                return await self.broker.inspect(queue.entity)
        except EntityNotFound as error:
            self.remove(queue)
            raise ClientRefused(NOT_FOUND, f"no queue '{queue.name}' in vhost '{VHOST}'") from error
        except BrokerError as error:
            if not error.counts_as_outage:
                raise refusal_of(error) from error
        return None

    async def ready(self, queue: ServedQueue) -> int:
        """The number of messages that nobody has received; 0 if it can't be known now."""
        return ready_in(queue, await self.info(queue))

    async def delete_queue(
        self, request: commands.Queue.Delete, owner: object
    ) -> tuple[ServedQueue | None, int]:
        """
        Return when the queue is gone, with the number of its messages. The caller answers, and
        calls `remove`: its consumers hear it after that, as in RabbitMQ. None: there was none.

        Raises:
            ClientRefused: it's in use, or has messages.
        """
        try:
            queue = await self.queue(request.queue, owner)
            ready = await self.ready(queue)
        except ClientRefused as refusal:
            if refusal.code == NOT_FOUND:  # RabbitMQ since 3.2: what is gone may be deleted
                return None, 0
            raise
        _check_own(queue, "deletion")
        async with self._turn:
            where = f"queue '{queue.name}' in vhost '{VHOST}'"
            if request.if_unused and queue.consumers:
                raise ClientRefused(PRECONDITION_FAILED, f"{where} in use")
            if request.if_empty and ready:
                raise ClientRefused(PRECONDITION_FAILED, f"{where} not empty")
            queue.is_going = True
            await self._delete_there(queue.entity)
            if self.queues.get(queue.name) is queue:
                self._forget(queue)
        await self._flush()
        return queue, ready

    async def delete(self, queue: ServedQueue) -> None:
        """
        Delete a queue, here and in the namespace.

        Raises:
            BrokerError: the namespace still has it.
        """
        await self._delete_there(queue.entity)
        self.remove(queue)

    async def _delete_there(self, entity: EntityPath) -> None:
        try:
            with answered_within(_ANSWER, "to a deletion"):
                await self.broker.delete_queue(entity)
        except EntityNotFound:
            await trio.lowlevel.checkpoint()  # somebody else has deleted it

    def remove(self, queue: ServedQueue) -> None:
        """The namespace hasn't the queue any more: tell its consumers, and forget it."""
        if self.queues.get(queue.name) is queue:
            self._forget(queue)
        consumers, queue.consumers = queue.consumers, {}
        for is_gone in consumers.values():
            is_gone()

    def _forget(self, queue: ServedQueue) -> None:
        del self.queues[queue.name], self._names[queue.entity]
        if queue in self.tended:
            del self.tended[queue]
            self.changes.notify()
        self.table.delete_queue(queue.name)
        self._record_removed()
        self._known.record(VHOST, with_fields(commands.Queue.Delete(), queue=queue.name))

    def doom(self, queue: ServedQueue) -> None:
        """Remove a queue at once, and from the namespace soon: also by the process after this."""
        self.doomed[queue.entity] = queue.name
        self.remove(queue)
        doomed = with_fields(commands.Queue.Declare(exclusive=True), queue=queue.name)
        self._known.record(VHOST, doomed)
        self.changes.notify()

    async def delete_doomed(self, entity: EntityPath) -> None:
        """Delete a queue that has gone with a client. Raises BrokerError."""
        await self._delete_there(entity)
        if (name := self.doomed.pop(entity, None)) is not None:
            self._known.record(VHOST, with_fields(commands.Queue.Delete(), queue=name))

    def use(self, queue: ServedQueue) -> None:
        """The queue is used: `x-expires` counts from now."""
        queue.used = _now()

    def finish_consumer(self, queue: ServedQueue, consumer: object) -> None:
        """A consumer has ended, and its queue may go with it."""
        if queue.consumers.pop(consumer, None) is None:
            return
        if not queue.consumers:
            queue.exclusive_consumer = False
            self.use(queue)
            if queue in self.tended:
                self.changes.notify()
            if queue.auto_delete and self.queues.get(queue.name) is queue:
                self.doom(queue)

    def finish_connection(self, owner: object) -> None:
        """The queues of the connection go with it."""
        for queue in list(self.queues.values()):
            if queue.owner is owner:
                self.doom(queue)

    # --- exchanges and bindings

    async def declare_exchange(self, request: commands.Exchange.Declare) -> None:
        """Raises: ClientRefused, BrokerError."""
        async with self._turn:
            name = request.exchange
            _check_not_default(name)
            if request.passive:
                await self.exchange(name)
                return
            if name in self.table.exchanges:
                self._check_exchange(request)
                return
            if request.exchange_type not in KINDS:
                text = f"unknown exchange type '{request.exchange_type}'"
                raise ClientRefused(PRECONDITION_FAILED, text)
            if name.startswith("amq."):
                text = f"exchange name '{name}' contains reserved prefix 'amq.*'"
                raise ClientRefused(ACCESS_REFUSED, text)
            self._check_room()
            if not await self.has_exchange(name):
                self.table.exchanges[name] = exchange_of(request)
                self._known.record(VHOST, request)
        await self._flush()

    def _check_exchange(self, request: commands.Exchange.Declare) -> None:
        there = self.table.exchanges[request.exchange]
        if there.kind == OF_NAMESPACE:
            return
        arguments = compared_of_exchange(there.arguments)
        current = there.kind, there.durable, there.auto_delete, there.internal, arguments
        try:
            check_declaration(VHOST, request, current)
        except Inequivalent as error:
            raise _refusal_of(error) from error

    async def exchange(self, name: str) -> RoutingExchange:
        """
        The exchange with that name, also if it's a topic of the namespace.

        Raises:
            ClientRefused: there is none.
            BrokerError: the namespace can't say so now.
        """
        await self.has_exchange(name)
        return self.check_exchange(name)

    async def has_exchange(self, name: str) -> bool:
        """True if clients have declared it here, or it's a topic. Raises: BrokerError."""
        if name in self.table.exchanges:
            return True
        topics, entity = offered(self.broker, Topology), entity_or_none(name)
        if topics is None or entity is None:
            return False
        try:
            with answered_within(_ANSWER, "to a question"):
                await topics.inspect_topic(entity)
        except BrokerError as error:
            if error.counts_as_outage:
                raise
            return False
        self._add_topic(name)
        self._known.record_exchange(VHOST, name)
        return True

    def _add_topic(self, name: str) -> None:
        self.table.exchanges[name] = RoutingExchange(name, OF_NAMESPACE)

    def record_missing(self, name: str) -> None:
        """The namespace has no queue and no topic of that name."""
        there = self.table.exchanges.get(name)
        if there is not None and there.kind == OF_NAMESPACE:
            self.table.delete_exchange(name)
            self._record_removed()

    def check_exchange(self, name: str) -> RoutingExchange:
        """Raises: ClientRefused: there is no such exchange."""
        if (found := self.table.exchanges.get(name)) is None:
            raise ClientRefused(NOT_FOUND, f"no exchange '{name}' in vhost '{VHOST}'")
        return found

    async def delete_exchange(self, request: commands.Exchange.Delete) -> None:
        """Raises: ClientRefused."""
        name = request.exchange
        if not name or name.startswith("amq."):
            text = f"deletion of system exchange '{name}' in vhost '{VHOST}' not permitted"
            raise ClientRefused(ACCESS_REFUSED, text)
        async with self._turn:
            if (there := self.table.exchanges.get(name)) is None:
                return
            if there.kind == OF_NAMESPACE:
                raise not_implemented(f"deletion of '{name}', a topic of the namespace")
            if request.if_unused and self.table.is_used(name):
                text = f"exchange '{name}' in vhost '{VHOST}' in use"
                raise ClientRefused(PRECONDITION_FAILED, text)
            self.table.delete_exchange(name)
            self._record_removed()
        await self._flush()

    def _record_removed(self) -> None:
        for each in self.table.drain_removed():
            if isinstance(each, Binding):
                request = unbind_of(each)
            else:
                request = with_fields(commands.Exchange.Delete(), exchange=each.name)
            self._known.record(VHOST, request)

    async def bind(self, request: commands.Queue.Bind | commands.Exchange.Bind, owner: Any) -> None:
        """Raises: ClientRefused, BrokerError."""
        await self._check_ends(request, owner)
        new = binding_of(request)
        async with self._turn:
            self._check_room()
            check_arguments(new, self.check_exchange(new.source))
            self.table.bind(new)
            self._known.record(VHOST, request)
        await self._flush()

    async def unbind(
        self, request: commands.Queue.Unbind | commands.Exchange.Unbind, owner: Any
    ) -> None:
        """Raises: ClientRefused. What isn't there may be unbound, as in RabbitMQ."""
        if isinstance(request, commands.Queue.Unbind):
            _check_not_default(request.exchange)
            if (queue := self.queues.get(request.queue)) is not None:
                _check_owner(queue, owner)
        else:
            _check_not_default(request.source)
        async with self._turn:
            self.table.unbind(binding_of(request))
            self._record_removed()
        await self._flush()

    async def _check_ends(self, request: Any, owner: object) -> None:
        of_queue = isinstance(request, commands.Queue.Bind)
        source = request.exchange if of_queue else request.source
        _check_not_default(source)
        exchange = await self.exchange(source)  # before the queue, as in RabbitMQ
        if exchange.kind == OF_NAMESPACE:
            raise not_implemented(
                f"a binding to '{source}', a topic of the namespace: make a subscription of it that"
                " forwards to the queue"
            )
        if of_queue:
            _check_own(await self.queue(request.queue, owner), "a binding")
        else:
            await self.exchange(request.destination)


def ready_in(queue: ServedQueue, info: EntityInfo | None) -> int:
    """The number of messages that nobody has received; 0 where it isn't known."""
    if info is None or info.active is None:
        return 0
    return max(0, info.active + info.locked_here - queue.unsettled)


def _now() -> float:
    return trio.current_time()


def _check_owner(queue: ServedQueue, owner: object) -> None:
    if queue.owner is not None and queue.owner is not owner:
        raise ClientRefused(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{VHOST}'",
        )


def _check_own(queue: ServedQueue, what: str) -> None:
    if queue.entity.is_subscription:
        raise not_implemented(f"{what} of '{queue.name}', a subscription of the namespace")


def _check_not_default(exchange: str) -> None:
    if not exchange:
        text = "operation not permitted on the default exchange"
        raise ClientRefused(ACCESS_REFUSED, text)


def _refusal_of(error: Inequivalent) -> ClientRefused:
    return ClientRefused(error.code, str(error).partition(" - ")[2])
