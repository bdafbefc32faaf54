"""
Purges at the admin endpoint: `POST /v1/purge`, as JSON.

    {"queue": "east/x-servicebus-transfer/0", "dead_letters": false,
     "confirm": "east/x-servicebus-transfer/0", "messages": 12, "reason": "..."}

Without `confirm` nothing is deleted. The response is a `PurgeAnswer`.
"""

from typing import Any, Final

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.purge import PurgeAnswer, PurgeOrder
from gateway.wire.pairgate import admin_json

PATH: Final = "/v1/purge"


def build_order(order: PurgeOrder) -> bytes:
    return admin_json.build_order(order)


def parse_order(data: bytes) -> PurgeOrder:
    """
    Parse the body of a call.

    Raises:
        InvalidRequest: it is malformed.
    """
    with admin_json.refusing("purge"):
        value: Any = admin_json.load(data, "purge")
        counted = value.get("messages")
        if counted is not None and type(counted) is not int:
            raise InvalidRequest("messages: a whole number expected")
        return admin_json.structured(value, PurgeOrder)


def build_answer(answer: PurgeAnswer) -> bytes:
    return admin_json.build_answer(answer)


def parse_answer(data: bytes) -> PurgeAnswer:
    """
    Parse the answer to an order. Unknown keys are ignored.

    Raises:
        MessageError: it isn't one.
    """
    return admin_json.parse_answer(data, PurgeAnswer, "the answer to a purge")
