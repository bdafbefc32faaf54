"""What is asked of an entity's $management node."""

import math
from typing import Final, TypeVar

import trio

from gateway.brokers.amqp.peer import Peer
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, MessageError, OutcomeUnknown
from gateway.domain.message import Delivery
from gateway.wire.amqp import management as wire
from gateway.wire.amqp import management_operations as ops
from gateway.wire.amqp.deliveries import decode_delivery

A = TypeVar("A")

_LONGEST: Final = 60.0  # seconds that the namespace may take if our caller sets no deadline


async def manage(
    peer: Peer, entity: EntityPath, operation: ops.Operation, kind: type[A], link: str | None = None
) -> A:
    """
    Return the answer; `link` is the one for which it is asked.

    Raises:
        BrokerError: the one that the namespace tells of; `OutcomeUnknown` without an answer.
    """
    left = trio.current_effective_deadline() - trio.current_time()
    timeout = _LONGEST if left == math.inf else max(0.0, min(left, _LONGEST))
    try:
        request = wire.request_of(
            operation, request_id=None, reply_to="", timeout=timeout, link=link
        )
        reply = await peer.ask(f"{entity.name}/{wire.NODE}", request)
    except MessageError as error:
        raise InvalidRequest(str(error)) from error
    try:
        answer = wire.answer_of(operation, reply)
    except MessageError as error:
        raise OutcomeUnknown(f"the answer can't be read: {error}") from error
    if not isinstance(answer, kind):
        raise OutcomeUnknown(f"the answer is no {kind.__name__}")
    return answer


def deliveries_of(messages: ops.Messages, *, peeked: bool = False) -> list[Delivery]:
    """
    Raises:
        OutcomeUnknown: one of them can't be read.
    """
    try:
        return [
            decode_delivery(each.payload, lock_token=each.lock_token, peeked=peeked)
            for each in messages.messages
        ]
    except MessageError as error:
        raise OutcomeUnknown(f"the answer can't be read: {error}") from error
