"""Messages of RabbitMQ's clients in a namespace of another kind, as such a client reads them."""

from gateway.domain.message import Message
from gateway.wire.rabbitmq.properties import read
from gateway.wire.rabbitmq.stored import CONTENT_HEADER, content_of


def as_published(message: Message) -> Message:
    """The message that its client has published; another protocol's as it is."""
    if CONTENT_HEADER not in message.annotations:
        return message
    content = content_of(message, "")
    return read(content.header, content.body).message
