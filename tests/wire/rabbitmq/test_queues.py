"""Methods that name a queue."""

import pytest
from pamqp import base, frame

from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.queues import ConsumeQueue, DeclareQueue, DeleteQueue

NAME = "shop.messages~placed"


@pytest.mark.parametrize(
    "asked", [DeclareQueue(queue=NAME), DeleteQueue(queue=NAME), ConsumeQueue(queue=NAME)]
)
def test_a_queue_may_have_any_name(asked: base.Frame) -> None:
    _, _, method = frame.unmarshal(method_frame(3, asked))

    assert isinstance(method, type(asked).__bases__[0])
    assert method.queue == NAME
