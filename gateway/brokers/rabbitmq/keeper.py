"""
A consumer without credit that stays on a receiver's channel while other consumers come and go.

A quorum queue requeues the unacknowledged messages of a channel once it learns that the channel is
gone. When a node is lost, the queue's leader requeues the messages of active consumers on that
node, and asks for the state of their channels when the node is back. It does neither for a channel
whose consumers were all cancelled: the messages of such a channel stay locked until another leader
is elected. With an active consumer on the channel, the leader asks, and all of the channel's
messages are requeued.

The keeper has no credit, by RabbitMQ's own argument `x-credit`, which RabbitMQ 4 has dropped. It
must not be used on a queue with a single active consumer, which it could become; so it is used on
backlog queues only.
"""

from typing import Final

import attrs

from gateway.brokers.rabbitmq.channels import Channels
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.net.rabbitmq.channel import Channel
from gateway.wire.rabbitmq.queues import ConsumeWithoutCredit

_KEEPER: Final = "keeper"
_WITH_CREDIT: Final = 3  # the last major version with that argument


@attrs.define(eq=False)
class Keeper:
    """The keeper of one receiver, opened again on each of its channels."""

    _channel: Channel | None = attrs.field(default=None, init=False)

    @property
    def is_there(self) -> bool:
        """True if the broker counts the keeper among the queue's consumers."""
        return self._channel is not None and not self._channel.is_over

    async def open(self, entity: EntityPath, channels: Channels) -> Channel:
        """
        Open a channel for a receiver of that queue. If the keeper is refused, the channel closes.

        Raises:
            BrokerError: as `Channels.open` and `Channels.name_of`.
        """
        if not backlog.is_backlog(entity):
            return await channels.open()
        _, version = await channels.server()
        major = version.partition(".")[0]
        if not major.isdecimal() or int(major) > _WITH_CREDIT:
            return await channels.open()
        queue = await channels.name_of(entity)
        self._channel = channel = await channels.open()
        channel.ask(ConsumeWithoutCredit(queue=queue, consumer_tag=_KEEPER))
        return channel

    def ends_by(self, tag: str | None) -> bool:
        """
        Note that the broker has cancelled a consumer. If it was the keeper, close its channel and
        return True.
        """
        if tag != _KEEPER or self._channel is None:
            return False
        self._channel.close()
        return True
