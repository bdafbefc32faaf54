"""The publishes of a channel: their verdicts, returns and confirms; and its transaction."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
from pamqp import commands

from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import MESSAGE_FAULTS, BrokerError, MessageError
from gateway.frontends.rabbitmq_broker.channel_owner import ChannelOwner
from gateway.frontends.rabbitmq_broker.deliveries import ChannelDeliveries, ChosenDeliveries
from gateway.frontends.rabbitmq_broker.direct_replies import (
    asks_for_reply,
    is_address,
    with_address,
)
from gateway.frontends.rabbitmq_broker.names import entity_or_none
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, not_implemented, refusal_of
from gateway.frontends.rabbitmq_broker.routed_sends import RoutedPublish
from gateway.frontends.rabbitmq_broker.routing import OF_NAMESPACE
from gateway.frontends.rabbitmq_broker.vhost import VHOST
from gateway.wire.rabbitmq.errors import (
    ACCESS_REFUSED,
    FORCED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
)
from gateway.wire.rabbitmq.exchanges import entity_of_exchange
from gateway.wire.rabbitmq.properties import refusal_of_properties
from gateway.wire.rabbitmq.served import ServedReturn
from gateway.wire.rabbitmq.stored import StoredContent, without_bcc

SETTLES: Final = (commands.Basic.Ack, commands.Basic.Nack, commands.Basic.Reject)
# Of a transaction, which is in memory until its end.
_MOST_WORK: Final = 1000  # publishes and settlements
_MOST_BYTES: Final = 16 * 1024 * 1024
_NO_ROUTE: Final = 312


@attrs.define(eq=False)
class ArrivedPublish:
    method: commands.Basic.Publish
    content: StoredContent
    size: int  # bytes of memory


_Work = ArrivedPublish | ChosenDeliveries


@attrs.define(eq=False)
class ChannelPublishes:
    _owner: ChannelOwner
    _deliveries: ChannelDeliveries
    _confirms: bool = attrs.field(default=False, init=False)
    _tag: int = attrs.field(default=0, init=False)  # of the last publish
    # The work of a transaction; None: the channel has none.
    _work: list[_Work] | None = attrs.field(default=None, init=False)
    _held: int = attrs.field(default=0, init=False)  # bytes of that work

    async def publish(self, publishes: Sequence[ArrivedPublish]) -> None:
        """
        Return when each publish has its verdict, and the client its confirms.

        Raises:
            ClientRefused, BrokerError: of one publish; those before it have their verdicts.
        """
        if self._work is not None:
            for each in publishes:
                await self._check(each)
            self._add_work(publishes)
            return
        routed: list[tuple[ArrivedPublish, RoutedPublish]] = []
        refusal: ClientRefused | BrokerError | None = None
        for each in publishes:
            try:
                routed.append((each, await self._routed(each)))
            except (ClientRefused, BrokerError) as error:
                refusal = error
                break
        await self._send(routed)
        if refusal is not None:
            raise refusal

    async def settle(self, settlements: Sequence[Any]) -> None:
        """Settle deliveries, or let the transaction do so. Raises: ClientRefused."""
        if self._work is None:
            await self._deliveries.settle(settlements)
            return
        for each in settlements:  # a wrong tag is refused at once, as in RabbitMQ
            self._add_work([self._deliveries.choose(each)])

    async def _check(self, arrived: ArrivedPublish) -> None:
        method, owner = arrived.method, self._owner
        exchange = await owner.vhost.exchange(method.exchange)
        if method.immediate:
            raise not_implemented("immediate=true")
        if exchange.internal:
            text = f"cannot publish to internal exchange '{method.exchange}' in vhost '{VHOST}'"
            raise ClientRefused(ACCESS_REFUSED, text)
        if text := refusal_of_properties(arrived.content.header, owner.user):
            raise ClientRefused(PRECONDITION_FAILED, text)

    async def _routed(self, arrived: ArrivedPublish) -> RoutedPublish:
        """The publish with its queues; a direct reply has none. Raises as `publish`."""
        await self._check(arrived)
        content = arrived.content
        try:
            if asks_for_reply(content):
                content = with_address(content, self._deliveries.reply_address())
            routed = self._owner.sends.routed(content)
            routed.content = without_bcc(content)
        except MessageError as error:
            raise ClientRefused(SYNTAX_ERROR, str(error)) from error
        if not content.exchange and is_address(content.routing_key):
            routed.queues, routed.is_reply = (), True
            return routed
        for entity in self._targets(content, routed):
            self._owner.check(Right.SEND, entity)
        return routed

    def _targets(
        self, content: StoredContent, routed: RoutedPublish
    ) -> Sequence[EntityPath | None]:
        """The entities for which the client must have the right to send."""
        name = content.exchange
        if not name:
            return [entity_or_none(each) for each in routed.queues]
        is_topic = self._owner.vhost.check_exchange(name).kind == OF_NAMESPACE
        return [entity_or_none(name) if is_topic else entity_of_exchange(name)]

    async def _send(self, routed: Sequence[tuple[ArrivedPublish, RoutedPublish]]) -> None:
        await self._owner.sends.send([each for _, each in routed if each.queues])
        for _, each in routed:
            if each.is_reply:
                each.is_routed = await self._owner.replies.deliver(each.content)
        answered = self._tag
        for arrived, each in routed:
            if arrived.method.mandatory and not each.is_routed and each.error is None:
                self._return(each.content)
            self._tag += self._confirms
            if each.error is None:
                continue
            self._confirm(answered, self._tag - self._confirms)
            answered = self._tag
            self._refuse(each.error)
        self._confirm(answered, self._tag)

    def _refuse(self, error: BrokerError) -> None:
        """
        A queue hasn't taken a publish. A client without confirms hears so only by the end of its
        connection; a full queue drops it, as in RabbitMQ.

        Raises:
            ClientRefused: the publish is at fault, or nobody can tell the client otherwise.
        """
        if isinstance(error, MESSAGE_FAULTS):
            raise refusal_of(error)
        if self._confirms:
            self._owner.say(commands.Basic.Nack(delivery_tag=self._tag))
        elif error.counts_as_outage:
            raise ClientRefused(FORCED, f"a message wasn't stored: {error}")

    def _confirm(self, answered: int, last: int) -> None:
        """Confirm the publishes after the one that is answered, up to the last, in one frame."""
        if last > answered:
            self._owner.say(commands.Basic.Ack(last, multiple=last > answered + 1))

    def _return(self, content: StoredContent) -> None:
        method = ServedReturn(_NO_ROUTE, "NO_ROUTE", content.exchange, content.routing_key)
        self._owner.say_content(method, content)

    # --- modes

    def select_confirms(self) -> None:
        """Raises: ClientRefused: the channel has transactions."""
        if self._work is not None:
            raise ClientRefused(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self._confirms = True

    def select_transactions(self) -> None:
        """Raises: ClientRefused: the channel has confirms."""
        if self._confirms:
            raise ClientRefused(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        self._work = self._work or []

    def _add_work(self, work: Sequence[_Work]) -> None:
        """Raises QuotaExceeded: the client has as many bytes in flight as it may."""
        assert self._work is not None, "a transaction was begun"
        size = sum(each.size for each in work if isinstance(each, ArrivedPublish))
        if size:
            self._owner.pending.hold(size, in_flight=size)
        self._held += size
        self._work += work
        if len(self._work) > _MOST_WORK or self._held > _MOST_BYTES:
            text = f"a transaction of more than {_MOST_WORK} methods, or {_MOST_BYTES} bytes"
            raise ClientRefused(RESOURCE_ERROR, text)

    async def commit(self) -> None:
        """
        Do what the transaction holds: as in RabbitMQ publishes come first, and each is one of its
        own.

        Raises:
            ClientRefused: a part was refused.
            BrokerError: a part wasn't done.
        """
        try:
            await self._do(self._drain())
        finally:
            self.close()

    async def _do(self, work: Sequence[_Work]) -> None:
        publishes = [each for each in work if isinstance(each, ArrivedPublish)]
        routed = [(each, await self._routed(each)) for each in publishes]
        await self._send(routed)
        for _, each in routed:
            if each.error is not None:
                raise each.error
        chosen = [each for each in work if isinstance(each, ChosenDeliveries)]
        await self._deliveries.settle_chosen(chosen)

    def roll_back(self) -> None:
        """Forget the publishes and settlements. Raises: ClientRefused."""
        self._drain()
        self._deliveries.forget_choices()
        self.close()

    def close(self) -> None:
        """Nothing is left of a transaction."""
        self._owner.pending.release(self._held)
        self._held = 0

    def _drain(self) -> list[_Work]:
        if self._work is None:
            raise ClientRefused(PRECONDITION_FAILED, "channel is not transactional")
        work, self._work = self._work, []
        return work
