"""What a queue must know of the content of its messages, which only the storage knows to read."""

from collections.abc import Callable
from typing import Any

import attrs

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import Message, Properties
from gateway.domain.property_values import id_text


@attrs.frozen
class Packing:
    """How messages become content, with its size in bytes, and back. Both raise `MessageError`."""

    pack: Callable[[Message], tuple[Any, int]]
    unpack: Callable[[Any], Message]

    def id_of(self, content: Any) -> str | None:
        """The message id as text; None where it has none, or can't be read."""
        try:
            return id_text(self.unpack(content).message_id)
        except MessageError:
            return None

    def with_body(self, content: Any, body: bytes) -> tuple[Any, int]:
        """
        Content whose message has that body, and its size.

        Raises:
            InvalidRequest: it can't be said, or the content can't be read.
        """
        try:
            return self.pack(attrs.evolve(self.unpack(content), body=body))
        except MessageError as error:
            raise InvalidRequest(f"body: {error}") from error

    def amended(self, content: Any, properties: Properties) -> tuple[Any, int]:
        """
        Content with these properties set among the message's own, and its size.

        Raises:
            InvalidRequest: they can't be said, or the content can't be read.
        """
        try:
            message = self.unpack(content)
            merged = {**message.properties, **properties}
            return self.pack(attrs.evolve(message, properties=merged))
        except MessageError as error:
            raise InvalidRequest(f"properties: {error}") from error
