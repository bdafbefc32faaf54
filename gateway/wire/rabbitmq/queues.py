"""
Methods that name a queue.

pamqp allows the characters that AMQP 0-9-1 lists for names. RabbitMQ takes any name, so that of an
entity with `~`, too; `brokers.rabbitmq.names` has checked it.
"""

from pamqp import commands


class DeclareQueue(commands.Queue.Declare):
    """`queue.declare`, with any name."""

    def validate(self) -> None:
        """Accept any name."""


class DeleteQueue(commands.Queue.Delete):
    """`queue.delete`, with any name."""

    def validate(self) -> None:
        """Accept any name."""


class ConsumeQueue(commands.Basic.Consume):
    """`basic.consume`, with any name of the queue."""

    def validate(self) -> None:
        """Accept any name."""
