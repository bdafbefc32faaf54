"""Requests to an entity's $management node."""

import math
from collections.abc import Mapping
from typing import Final, TypeVar

import attrs
import trio

from gateway.brokers.amqp.peer import NamespaceConnection
from gateway.brokers.meter import Meter
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, MessageError, OutcomeUnknown
from gateway.domain.message import Delivery
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management import requests as wire
from gateway.wire.amqp.message import encoded_size
from gateway.wire.amqp.servicebus.deliveries import decode_delivery

A = TypeVar("A")

_BILLED: Final[Mapping[type, Operation]] = {
    ops.Peek: Operation.PEEK,
    ops.RenewLocks: Operation.RENEW,
    ops.RenewSession: Operation.RENEW,
    ops.UpdateDisposition: Operation.SETTLE,
}

_LONGEST: Final = 60.0  # seconds that a request may take if the caller has no deadline


@attrs.frozen(kw_only=True)
class PartOf:
    """The link that a request concerns, by its name, and the transaction that it is part of."""

    link: str | None = None
    txn_id: bytes | None = None


NOTHING: Final = PartOf()


async def manage(
    peer: NamespaceConnection,
    meter: Meter,
    entity: EntityPath,
    operation: ops.Operation,
    kind: type[A],
    part_of: PartOf = NOTHING,
) -> A:
    """
    Return the answer, counted by `meter`.

    Raises:
        BrokerError: the namespace refused; `OutcomeUnknown` without an answer.
    """
    left = trio.current_effective_deadline() - trio.current_time()
    timeout = _LONGEST if left == math.inf else max(0.0, min(left, _LONGEST))
    try:
        request = wire.request_of(
            operation, request_id=None, reply_to="", timeout=timeout, link=part_of.link
        )
        request = attrs.evolve(request, txn_id=part_of.txn_id)
        reply = await peer.ask(f"{entity.name}/{wire.NODE}", request)
    except MessageError as error:
        raise InvalidRequest(str(error)) from error
    try:
        answer = wire.answer_of(operation, reply)
    except MessageError as error:
        raise OutcomeUnknown(f"the answer can't be read: {error}") from error
    if not isinstance(answer, kind):
        raise OutcomeUnknown(f"the answer isn't a {kind.__name__}")
    _count(meter, operation, answer)
    return answer


def _count(meter: Meter, operation: ops.Operation, answer: object) -> None:
    match operation, answer:
        case ops.Schedule(messages=sent), _:
            meter.carried(Operation.SEND, len(sent), sum(map(encoded_size, sent)))
        case ops.ReceiveDeferred(), ops.Messages(messages=found) if found:
            size = sum(len(each.payload) for each in found)
            meter.carried(Operation.RECEIVE, len(found), size)
        case _:
            meter.request(_BILLED.get(type(operation), Operation.MANAGE))


def deliveries_of(messages: ops.Messages, *, peeked: bool = False) -> list[Delivery]:
    """
    Decode the messages of an answer.

    Raises:
        OutcomeUnknown: a message can't be read.
    """
    try:
        return [
            decode_delivery(each.payload, lock_token=each.lock_token, peeked=peeked)
            for each in messages.messages
        ]
    except MessageError as error:
        raise OutcomeUnknown(f"the answer can't be read: {error}") from error
