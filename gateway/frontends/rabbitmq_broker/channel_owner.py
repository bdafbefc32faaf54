"""The parts of a connection that its channels use."""

from collections.abc import Callable
from typing import Any, Final

import attrs
from pamqp import base

from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.frontends.amqp.pending import Pending
from gateway.frontends.rabbitmq.outbox import Outbox
from gateway.frontends.rabbitmq_broker.direct_replies import DirectReplies
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused
from gateway.frontends.rabbitmq_broker.routed_sends import RoutedSends
from gateway.frontends.rabbitmq_broker.vhost import ServedVhost
from gateway.wire.rabbitmq.errors import NOT_ALLOWED
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.served import ServedContent, served_frames
from gateway.wire.rabbitmq.stored import StoredContent

MOST_CONSUMERS: Final = 5000  # of a connection, as on the wire


@attrs.define(eq=False)
class ConsumerCount:
    """The consumers of all channels of a connection."""

    _count: int = attrs.field(default=0, init=False)

    def begin(self) -> None:
        """Count one more. Raises ClientRefused: the connection has as many as it may."""
        if self._count >= MOST_CONSUMERS:
            text = f"reached maximum ({MOST_CONSUMERS}) of consumers per connection"
            raise ClientRefused(NOT_ALLOWED, text)
        self._count += 1

    def finish(self) -> None:
        self._count -= 1


@attrs.define(eq=False, kw_only=True)
class ChannelOwner:
    number: int  # of the channel
    vhost: ServedVhost
    sends: RoutedSends
    replies: DirectReplies
    outbox: Outbox
    user: str
    max_frame: int  # bytes, as in `connection.tune-ok`
    hears_cancels: bool
    check: Callable[[Right, EntityPath | None], None]  # raises ClientRefused
    # Ends the channel, or the connection; the number is the index of the method at fault.
    refuse: Callable[[ClientRefused, int], None]
    pending: Pending  # the methods and publishes of the connection that have no answer yet
    consumers: ConsumerCount
    identity: object  # that owns exclusive queues

    def say(self, method: base.Frame) -> None:
        """Send the client a method."""
        self.outbox.put_answer(method_frame(self.number, method))

    def say_content(self, method: ServedContent, content: StoredContent) -> None:
        """
        Send the client a method with a message.

        Raises:
            MessageError, MessageTooLarge: no frame can have its content header.
        """
        self.outbox.put_answer(served_frames(self.number, method, content, self.max_frame))

    def answer(self, request: Any, answer: base.Frame) -> None:
        """Send the answer, unless the client wants none."""
        if not getattr(request, "nowait", False):
            self.say(answer)
