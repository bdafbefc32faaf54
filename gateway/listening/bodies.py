"""The size of a body."""

from gateway.domain.message import DataBody, Message


def body_size(message: Message) -> int:
    """
    The size of a body in bytes, for a limit on memory; bodies other than bytes count as small.
    """
    if isinstance(message.body, bytes):
        return len(message.body)
    return sum(map(len, message.body.parts)) if isinstance(message.body, DataBody) else 0
