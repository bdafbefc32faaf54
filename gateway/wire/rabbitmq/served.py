"""
Methods that a broker sends, with any name of a queue or exchange: pamqp allows the characters that
AMQP 0-9-1 lists, and RabbitMQ takes any.
"""

from pamqp import commands

from gateway.wire.rabbitmq.frames import content_frames, method_frame
from gateway.wire.rabbitmq.stored import StoredContent


class ServedDelivery(commands.Basic.Deliver):
    """`basic.deliver`, with any names."""

    def validate(self) -> None:
        """Accept any name."""


class ServedGet(commands.Basic.GetOk):
    """`basic.get-ok`, with any names."""

    def validate(self) -> None:
        """Accept any name."""


class ServedReturn(commands.Basic.Return):
    """`basic.return`, with any names."""

    def validate(self) -> None:
        """Accept any name."""


class QueueDeclared(commands.Queue.DeclareOk):
    """`queue.declare-ok`, with any name."""

    def validate(self) -> None:
        """Accept any name."""


ServedContent = ServedDelivery | ServedGet | ServedReturn


def served_frames(
    channel: int, method: ServedContent, content: StoredContent, max_frame: int
) -> bytes:
    """
    The frames of a message for a client; `max_frame` is that of `connection.tune-ok`.

    Raises:
        MessageTooLarge: the content header doesn't fit a frame.
    """
    frames = content_frames(channel, content.header, content.body, max_frame)
    return method_frame(channel, method) + b"".join(frames)
