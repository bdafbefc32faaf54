"""Reads and changes the content of a stored message. Only the storage knows its encoding."""

from collections.abc import Callable
from typing import Any

import attrs

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Message, Properties
from gateway.domain.topics.property_values import id_text


@attrs.frozen
class Packing:
    """
    Encodes a message as content, with its size in bytes, and decodes it. Both raise `MessageError`.
    """

    pack: Callable[[Message], tuple[Any, int]]
    unpack: Callable[[Any], Message]

    def id_of(self, content: Any) -> str | None:
        """The message id as text; None if the message has none, or if the content can't be read."""
        try:
            return id_text(self.unpack(content).message_id)
        except MessageError:
            return None

    def with_body(self, content: Any, body: bytes) -> tuple[Any, int]:
        """
        Return the content with its message's body replaced, and its size in bytes.

        Raises:
            InvalidRequest: the content can't be read, or the message can't be encoded with this
                body.
        """
        try:
            return self.pack(attrs.evolve(self.unpack(content), body=body))
        except MessageError as error:
            raise InvalidRequest(f"body: {error}") from error

    def amended(self, content: Any, properties: Properties) -> tuple[Any, int]:
        """
        Return the content with `properties` set among the message's application properties, and its
        size in bytes.

        Raises:
            InvalidRequest: the content can't be read, or the message can't be encoded with these
                properties.
        """
        try:
            message = self.unpack(content)
            merged = {**message.properties, **properties}
            return self.pack(attrs.evolve(message, properties=merged))
        except MessageError as error:
            raise InvalidRequest(f"properties: {error}") from error
