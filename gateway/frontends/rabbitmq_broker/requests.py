"""The requests of a channel besides publishes and settlements, each with its handler."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
from pamqp import base, commands

from gateway.domain.access import Right
from gateway.frontends.rabbitmq.topology import is_large
from gateway.frontends.rabbitmq_broker.channel_owner import ChannelOwner
from gateway.frontends.rabbitmq_broker.deliveries import ChannelDeliveries
from gateway.frontends.rabbitmq_broker.direct_replies import PSEUDO_QUEUE, is_address
from gateway.frontends.rabbitmq_broker.names import entity_or_none
from gateway.frontends.rabbitmq_broker.publishing import ChannelPublishes
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, not_implemented
from gateway.frontends.rabbitmq_broker.vhost import VHOST, ServedQueue, ready_in
from gateway.wire.rabbitmq.errors import COMMAND_INVALID, NOT_FOUND, PRECONDITION_FAILED
from gateway.wire.rabbitmq.exchanges import entity_of_exchange
from gateway.wire.rabbitmq.served import QueueDeclared


@attrs.define(eq=False)
class ChannelRequests:
    _owner: ChannelOwner
    _publishes: ChannelPublishes
    _deliveries: ChannelDeliveries
    _last_queue: str = attrs.field(default="", init=False)  # that was declared here

    async def handle(self, requests: Sequence[base.Frame]) -> None:
        """
        Do what the client asks, and answer it.

        Raises:
            ClientRefused: the channel, or the connection, ends.
            BrokerError: the namespace refuses it, or doesn't answer.
        """
        for request in requests:
            if is_large(request):
                text = f"{request.name} has larger arguments than the gateway keeps"
                raise ClientRefused(PRECONDITION_FAILED, text)
            handler = _HANDLERS.get(type(request))
            if handler is None:
                text = f"{request.name} isn't a client's method here"
                raise ClientRefused(COMMAND_INVALID, text)
            _strip_names(request)
            await handler(self, request)

    # --- queues

    def _named(self, queue: str) -> str:
        """The queue of a request; without a name the one that was declared last here."""
        if queue:
            return queue
        if not self._last_queue:
            raise ClientRefused(NOT_FOUND, "no previously declared queue")
        return self._last_queue

    def _check_manage(self, queue: str) -> None:
        self._owner.check(Right.MANAGE, entity_or_none(queue))

    async def declare_queue(self, request: commands.Queue.Declare) -> None:
        owner, name = self._owner, request.queue
        if is_address(name) or name == PSEUDO_QUEUE:
            if name != PSEUDO_QUEUE and not owner.replies.has(name):
                raise ClientRefused(NOT_FOUND, f"no queue '{name}' in vhost '{VHOST}'")
            owner.answer(request, QueueDeclared(name, 0, 1))
            return
        if request.passive:
            request.queue = self._named(name)
        else:
            self._check_manage(name)
        queue, info = await owner.vhost.declare_queue(request, owner.identity)
        self._last_queue = queue.name
        answer = QueueDeclared(queue.name, ready_in(queue, info), len(queue.consumers))
        owner.answer(request, answer)

    async def delete_queue(self, request: commands.Queue.Delete) -> None:
        request.queue = self._named(request.queue)
        self._check_manage(request.queue)
        vhost = self._owner.vhost
        queue, count = await vhost.delete_queue(request, self._owner.identity)
        self._owner.answer(request, commands.Queue.DeleteOk(count))
        if queue is not None:
            vhost.remove(queue)

    async def purge_queue(self, request: commands.Queue.Purge) -> None:
        name, owner = self._named(request.queue), self._owner
        self._check_manage(name)
        queue = await owner.vhost.queue(name, owner.identity)
        count = await owner.sends.purge(queue)
        owner.answer(request, commands.Queue.PurgeOk(count))

    async def bind_queue(self, request: commands.Queue.Bind) -> None:
        self._complete(request)
        await self._owner.vhost.bind(request, self._owner.identity)
        self._owner.answer(request, commands.Queue.BindOk())

    async def unbind_queue(self, request: commands.Queue.Unbind) -> None:
        self._complete(request)
        await self._owner.vhost.unbind(request, self._owner.identity)
        self._owner.say(commands.Queue.UnbindOk())

    def _complete(self, request: commands.Queue.Bind | commands.Queue.Unbind) -> None:
        """Without a queue and a key, both are those of the last declaration (1.7.2.3.6)."""
        if not request.queue and not request.routing_key:
            request.routing_key = self._last_queue
        request.queue = self._named(request.queue)
        self._check_manage(request.queue)

    # --- exchanges

    async def declare_exchange(self, request: commands.Exchange.Declare) -> None:
        if not request.passive:
            self._owner.check(Right.MANAGE, entity_of_exchange(request.exchange))
        await self._owner.vhost.declare_exchange(request)
        self._owner.answer(request, commands.Exchange.DeclareOk())

    async def delete_exchange(self, request: commands.Exchange.Delete) -> None:
        self._owner.check(Right.MANAGE, entity_of_exchange(request.exchange))
        await self._owner.vhost.delete_exchange(request)
        self._owner.answer(request, commands.Exchange.DeleteOk())

    async def bind_exchange(self, request: commands.Exchange.Bind) -> None:
        self._owner.check(Right.MANAGE, entity_of_exchange(request.destination))
        await self._owner.vhost.bind(request, self._owner.identity)
        self._owner.answer(request, commands.Exchange.BindOk())

    async def unbind_exchange(self, request: commands.Exchange.Unbind) -> None:
        self._owner.check(Right.MANAGE, entity_of_exchange(request.destination))
        await self._owner.vhost.unbind(request, self._owner.identity)
        self._owner.answer(request, commands.Exchange.UnbindOk())

    # --- consumers

    async def _queue_to_receive(self, name: str) -> ServedQueue:
        owner = self._owner
        queue = await owner.vhost.queue(self._named(name), owner.identity)
        owner.check(Right.LISTEN, queue.entity)
        return queue

    async def consume(self, request: commands.Basic.Consume) -> None:
        if request.queue == PSEUDO_QUEUE:
            tag = self._deliveries.consume_replies(request)
            self._owner.answer(request, commands.Basic.ConsumeOk(tag))
            return
        queue = await self._queue_to_receive(request.queue)
        consumer = self._deliveries.consume(request, queue)
        self._owner.answer(request, commands.Basic.ConsumeOk(consumer.tag))
        self._deliveries.start(consumer)

    async def cancel(self, request: commands.Basic.Cancel) -> None:
        tag = request.consumer_tag or ""
        await self._deliveries.finish(tag)
        self._owner.answer(request, commands.Basic.CancelOk(tag))

    async def get(self, request: commands.Basic.Get) -> None:
        await self._deliveries.get(request, await self._queue_to_receive(request.queue))

    async def set_prefetch(self, request: commands.Basic.Qos) -> None:
        if request.prefetch_size:
            raise not_implemented(f"prefetch_size!=0 ({request.prefetch_size})")
        self._deliveries.set_prefetch(request.prefetch_count or 0, shared=bool(request.global_))
        self._owner.say(commands.Basic.QosOk())

    async def recover(self, request: Any) -> None:
        await self._deliveries.recover(request)
        if isinstance(request, commands.Basic.Recover):
            self._owner.say(commands.Basic.RecoverOk())

    # --- modes

    async def flow(self, request: commands.Channel.Flow) -> None:
        if not request.active:
            raise not_implemented("active=false")
        self._owner.say(commands.Channel.FlowOk(active=True))

    async def select_confirms(self, request: commands.Confirm.Select) -> None:
        self._publishes.select_confirms()
        self._owner.answer(request, commands.Confirm.SelectOk())

    async def select_transactions(self, _: commands.Tx.Select) -> None:
        self._publishes.select_transactions()
        self._owner.say(commands.Tx.SelectOk())

    async def commit(self, _: commands.Tx.Commit) -> None:
        await self._publishes.commit()
        self._owner.say(commands.Tx.CommitOk())

    async def roll_back(self, _: commands.Tx.Rollback) -> None:
        self._publishes.roll_back()
        self._owner.say(commands.Tx.RollbackOk())


_ADMINISTERS: Final = (
    commands.Queue.Declare,
    commands.Queue.Delete,
    commands.Queue.Purge,
    commands.Queue.Bind,
    commands.Queue.Unbind,
    commands.Exchange.Declare,
    commands.Exchange.Delete,
    commands.Exchange.Bind,
    commands.Exchange.Unbind,
)
_NAMES: Final = frozenset({"queue", "exchange", "source", "destination"})
_HANDLERS: Final[dict[type[base.Frame], Callable[[ChannelRequests, Any], Awaitable[None]]]] = {
    commands.Queue.Declare: ChannelRequests.declare_queue,
    commands.Queue.Delete: ChannelRequests.delete_queue,
    commands.Queue.Purge: ChannelRequests.purge_queue,
    commands.Queue.Bind: ChannelRequests.bind_queue,
    commands.Queue.Unbind: ChannelRequests.unbind_queue,
    commands.Exchange.Declare: ChannelRequests.declare_exchange,
    commands.Exchange.Delete: ChannelRequests.delete_exchange,
    commands.Exchange.Bind: ChannelRequests.bind_exchange,
    commands.Exchange.Unbind: ChannelRequests.unbind_exchange,
    commands.Basic.Consume: ChannelRequests.consume,
    commands.Basic.Cancel: ChannelRequests.cancel,
    commands.Basic.Get: ChannelRequests.get,
    commands.Basic.Qos: ChannelRequests.set_prefetch,
    commands.Basic.Recover: ChannelRequests.recover,
    commands.Basic.RecoverAsync: ChannelRequests.recover,
    commands.Channel.Flow: ChannelRequests.flow,
    commands.Confirm.Select: ChannelRequests.select_confirms,
    commands.Tx.Select: ChannelRequests.select_transactions,
    commands.Tx.Commit: ChannelRequests.commit,
    commands.Tx.Rollback: ChannelRequests.roll_back,
}


def _strip_names(request: base.Frame) -> None:
    """RabbitMQ takes line ends out of the names of queues and exchanges that are administered."""
    if isinstance(request, _ADMINISTERS):
        for field in _NAMES.intersection(request.__slots__):
            stripped = getattr(request, field).replace("\r", "").replace("\n", "")
            setattr(request, field, stripped)
