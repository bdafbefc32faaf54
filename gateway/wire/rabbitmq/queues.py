"""
Methods that name a queue.

pamqp allows the characters that AMQP 0-9-1 lists for names. RabbitMQ takes any name, so that of an
entity with `~`, too; `brokers.rabbitmq.names` has checked it.

A consumer may have no credit: RabbitMQ up to 3.13 accepts `x-credit`, which its AMQP 1.0 plugin
uses. The credit must be a 64-bit integer, and pamqp encodes small integers in fewer bits.
"""

from typing import Final

from pamqp import commands, encode


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


_CREDIT: Final = b"\x06creditl" + bytes(8) + b"\x05draint\x00"
_TABLE: Final = b"\x08x-creditF" + encode.long_uint(len(_CREDIT)) + _CREDIT
_ARGUMENTS: Final = encode.long_uint(len(_TABLE)) + _TABLE
_NO_ARGUMENTS: Final = encode.long_uint(0)  # the end of the method


class ConsumeWithoutCredit(ConsumeQueue):
    """`basic.consume` for a consumer that gets no deliveries."""

    def marshal(self) -> bytes:
        return super().marshal().removesuffix(_NO_ARGUMENTS) + _ARGUMENTS
