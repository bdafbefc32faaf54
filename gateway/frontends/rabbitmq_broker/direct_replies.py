"""
Direct reply-to: a reply goes straight to the channel that has asked, and no queue has it. Both must
be clients of the same endpoint.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from gateway.wire.rabbitmq.content import read_content_header
from gateway.wire.rabbitmq.stored import StoredContent, with_property

PSEUDO_QUEUE: Final = "amq.rabbitmq.reply-to"
_ADDRESS: Final = f"{PSEUDO_QUEUE}."

Deliver = Callable[[StoredContent], Awaitable[bool]]
"""Delivers a reply; False: the client doesn't read."""


@attrs.define(eq=False)
class DirectReplies:
    _channels: dict[str, Deliver] = attrs.field(factory=dict)  # by address

    def begin(self, deliver: Deliver) -> str:
        """Return the address of a channel that consumes its replies."""
        address = f"{_ADDRESS}{secrets.token_urlsafe(24)}"
        self._channels[address] = deliver
        return address

    def finish(self, address: str) -> None:
        self._channels.pop(address, None)

    def has(self, address: str) -> bool:
        return address in self._channels

    async def deliver(self, content: StoredContent) -> bool:
        """Deliver a reply by its routing key. False: nobody waits for it."""
        found = self._channels.get(content.routing_key)
        return found is not None and await found(content)


def is_address(name: str) -> bool:
    return name.startswith(_ADDRESS)


def asks_for_reply(content: StoredContent) -> bool:
    """
    True if the reply is to go to the channel that publishes.

    Raises:
        MessageError: the content header is malformed.
    """
    if PSEUDO_QUEUE.encode() not in content.header:  # as nearly always
        return False
    return bool(read_content_header(content.header).get("reply_to") == PSEUDO_QUEUE)


def with_address(content: StoredContent, address: str) -> StoredContent:
    """The message with the address of its replies. Raises MessageError."""
    return with_property(content, "reply_to", address)
