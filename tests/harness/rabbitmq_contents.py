"""Messages of RabbitMQ's clients: as they publish them, and as they read those of others."""

import attrs
import trio

from gateway.domain.errors import BrokerError
from gateway.domain.message import Message
from gateway.wire.rabbitmq.properties import read
from gateway.wire.rabbitmq.stored import CONTENT_HEADER, content_of


def as_published(message: Message) -> Message:
    """The message that its client has published; another protocol's as it is."""
    if CONTENT_HEADER not in message.annotations:
        return message
    content = content_of(message, "")
    return read(content.header, content.body).message


@attrs.define(eq=False)
class AwaitedPublish:
    """A publish that waits for its confirm."""

    error: BrokerError | None = None
    done: trio.Event = attrs.field(factory=trio.Event)

    def settle(self, error: BrokerError | None) -> None:
        self.error = error
        self.done.set()
