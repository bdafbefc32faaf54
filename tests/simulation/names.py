"""
Which of the clients' messages a stored one is.

Storage Queue has texts only, and its front end gives each an id of its own: what a client of it has
put is known by what its text says.
"""

import attrs

from gateway.domain.message import Message
from gateway.wire.storage_queue.body import parse_item
from gateway.wire.storage_queue.operations import QueueMessage
from tests.harness.clocks import START


@attrs.define(eq=False)
class Names:
    """Hears of each put from the front end that takes it."""

    _put: dict[str, str] = attrs.field(factory=dict)  # the client's ids, by the gateway's

    def note_put(self, message_id: str, text: bytes) -> None:
        """The gateway takes that text as the message with that id."""
        self._put[message_id] = str(_read(message_id, text).message_id)

    def of(self, message: Message) -> str:
        """The id that its client has given it."""
        own = str(message.message_id)
        return self._put.get(own, own)

    def read(self, message: Message) -> Message:
        """What a client gets out of one that has arrived."""
        if str(message.message_id) not in self._put or not isinstance(message.body, bytes):
            return message
        return _read(str(message.message_id), message.body)


def _read(message_id: str, text: bytes) -> Message:
    # Of its date nothing is asked.
    return parse_item(QueueMessage(message_id=message_id, inserted=START, body=text)).message
