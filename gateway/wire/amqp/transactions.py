"""
The messages that control transactions (AMQP 1.0, part 4, 4.5): declare and discharge. The states of
deliveries in transactions are in `events`.
"""

from typing import Final

import attrs

from gateway.domain.errors import MessageError, NotSupported
from gateway.domain.message import Described, Message, ValueBody
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.performatives import (
    DECLARE,
    DISCHARGE,
    code_of,
    described,
    field,
    fields_of,
)

LOCAL: Final = "amqp:local-transactions"
MANY_ON_A_SESSION: Final = "amqp:multi-txns-per-ssn"
ACROSS_SESSIONS: Final = "amqp:multi-ssns-per-txn"
CAPABILITIES: Final = (LOCAL, MANY_ON_A_SESSION, ACROSS_SESSIONS)


@attrs.frozen
class Declare:
    """Begin a local transaction."""


@attrs.frozen(kw_only=True)
class Discharge:
    """End the transaction: commit it, or roll it back with `fail`."""

    txn_id: bytes
    fail: bool = False


Control = Declare | Discharge


def parse_control(payload: bytes) -> Control:
    """
    Parse a message to a coordinator.

    Raises:
        MessageError: the payload is neither a declare nor a discharge.
        NotSupported: a declare has a global id, so it asks for a distributed transaction (4.5.4).
    """
    body = decode_message(payload).body
    asked = body.value if isinstance(body, ValueBody) else None
    if isinstance(asked, Described):
        code, fields = code_of(asked), fields_of(asked)
        if code == DECLARE:
            if any(each is not None for each in fields):
                raise NotSupported("declare: no global-id expected: transactions are local")
            return Declare()
        if code == DISCHARGE:
            txn_id = field(fields, 0, bytes)
            if txn_id is None:
                raise MessageError("discharge: txn-id is missing")
            return Discharge(txn_id=txn_id, fail=field(fields, 1, bool, False))
    raise MessageError("a coordinator takes a declare or a discharge as its amqp-value")


def build_control(control: Control) -> bytes:
    """The payload of a message to a coordinator."""
    match control:
        case Declare():
            asked = described(DECLARE, [None])
        case Discharge(txn_id=txn_id, fail=fail):
            asked = described(DISCHARGE, [txn_id, fail])
    return encode_message(Message(body=ValueBody(asked)))
