"""
Tells which of the clients' messages a stored message is.

Storage Queue has texts only, and its front end gives each message an id of its own: the text tells
which message its client has put. That of RabbitMQ's clients is read as such a client does.
"""

import random
from typing import Final

import attrs

from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.envelope_fields import ENTITY, PAIR
from gateway.domain.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, Message
from gateway.wire.amqp.message import encode_sorted
from gateway.wire.pairgate.encryption import MessageEncryption
from gateway.wire.storage_queue.body import parse_item
from gateway.wire.storage_queue.operations import QueueMessage
from tests.harness.clocks import START
from tests.harness.rabbitmq_contents import as_published

OF_DEAD_LETTER: Final = frozenset({DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION})
KEY: Final = EnvelopeKey(id="1", key=b"a key for tests")


@attrs.define(eq=False)
class Names:
    """Hears of each put from the front end that takes it."""

    _put: dict[str, str] = attrs.field(factory=dict)  # the client's ids, by the gateway's

    _opened: dict[str, Message] = attrs.field(factory=dict)  # what was encrypted, by its outer id

    def note_put(self, message_id: str, text: bytes) -> None:
        """The gateway takes that text as the message with that id."""
        self._put[message_id] = str(_read(message_id, text).message_id)

    def of(self, message: Message) -> str:
        """The id that its client has given it."""
        inner = self.opened(message) if ENTITY in message.properties else message
        own = str(inner.message_id)
        return self._put.get(own, own)

    def opened(self, message: Message) -> Message:
        """The message inside of one that was diverted."""
        outer = str(message.message_id)
        if outer in self._opened:
            return self._opened[outer]
        found = message.properties
        # A dead letter says why it is one, which no MAC covers.
        own = {name: each for name, each in found.items() if name not in OF_DEAD_LETTER}
        codec = Envelope(
            pair=str(found[PAIR]),
            origin="",
            keys=(KEY,),
            encode=encode_sorted,
            encryption=MessageEncryption(random.Random(0)),
        )
        inner = codec.unwrap(attrs.evolve(message, properties=own)).message
        if ENTITY in found:
            self._opened[outer] = inner
        return inner

    def read(self, message: Message) -> Message:
        """Return the message as a client reads it."""
        if str(message.message_id) not in self._put or not isinstance(message.body, bytes):
            return as_published(message)
        return _read(str(message.message_id), message.body)


def _read(message_id: str, text: bytes) -> Message:
    # Of its date nothing is asked.
    return parse_item(QueueMessage(message_id=message_id, inserted=START, body=text)).message
