"""How large a body is."""

from gateway.domain.message import DataBody, Message


def body_size(message: Message) -> int:
    """The bytes of a body, for a bound on memory; other bodies than bytes are small."""
    if isinstance(message.body, bytes):
        return len(message.body)
    return sum(map(len, message.body.parts)) if isinstance(message.body, DataBody) else 0
