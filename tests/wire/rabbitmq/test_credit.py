"""A consumer that gets nothing, as RabbitMQ up to 3.13 understands it."""

from pamqp import commands, frame

from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.queues import ConsumeWithoutCredit


def test_a_consumer_without_credit_says_so_in_64_bits() -> None:
    raw = method_frame(3, ConsumeWithoutCredit(queue="orders", consumer_tag="keeper"))
    length, channel, method = frame.unmarshal(raw)

    assert (length, channel) == (len(raw), 3)
    assert isinstance(method, commands.Basic.Consume)
    assert (method.queue, method.consumer_tag, method.no_ack) == ("orders", "keeper", False)
    assert method.arguments == {"x-credit": {"credit": 0, "drain": False}}
    assert b"\x06creditl" + bytes(8) in raw
