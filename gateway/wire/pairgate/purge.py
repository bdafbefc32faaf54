"""
Purges at the admin endpoint: `POST /v1/purge`, as JSON.

    {"queue": "east/x-servicebus-transfer/0", "dead_letters": false,
     "confirm": "east/x-servicebus-transfer/0", "messages": 12, "reason": "..."}

Without `confirm` nothing is deleted. The response is a `PurgeAnswer`.
"""

import json
from typing import Any, Final

import cattrs
import cattrs.preconf.json

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.operators.purge import PurgeAnswer, PurgeOrder

PATH: Final = "/v1/purge"

_converter: Final = cattrs.preconf.json.make_converter(forbid_extra_keys=True)
_reader: Final = cattrs.preconf.json.make_converter()


def build_order(order: PurgeOrder) -> bytes:
    return json.dumps(_converter.unstructure(order)).encode()


def parse_order(data: bytes) -> PurgeOrder:
    """
    Parse the body of a call.

    Raises:
        InvalidRequest: it is malformed.
    """
    try:
        value: Any = json.loads(data)
        counted = value.get("messages")
        if counted is not None and type(counted) is not int:
            raise InvalidRequest("messages: a whole number expected")
        order: PurgeOrder = _converter.structure(value, PurgeOrder)
    except cattrs.BaseValidationError as error:
        raise InvalidRequest(f"purge: {'; '.join(cattrs.transform_error(error))}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"purge: {error}") from error
    return order


def purge_value(answer: PurgeAnswer) -> dict[str, Any]:
    """The answer as a JSON value."""
    value: dict[str, Any] = _reader.unstructure(answer)
    return value


def build_answer(answer: PurgeAnswer) -> bytes:
    return json.dumps(purge_value(answer)).encode() + b"\n"


def parse_answer(data: bytes) -> PurgeAnswer:
    """
    Parse the answer to an order. Unknown keys are ignored.

    Raises:
        MessageError: it isn't one.
    """
    try:
        answer: PurgeAnswer = _reader.structure(json.loads(data), PurgeAnswer)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
        raise MessageError(f"this is not the answer to a purge: {error}") from error
    return answer
