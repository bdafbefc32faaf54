"""
Drills at the admin endpoint, as JSON. `POST /v1/drill` has an order as its body:

    {"seconds": 30, "fault": "refuse", "targets": ["orders"], "namespace": "east", "delay": 2}

Every key but `seconds` may be missing. `POST /v1/end-drill` takes the order back; its body is empty
or `{}`. Both are answered with a `DrillAnswer`, and `GET /v1/drill` with a `DrillState`.
"""

import json
from typing import Any, Final

import cattrs
import cattrs.preconf.json

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.operators.drill import DrillAnswer, DrillOrder, DrillState

PATH: Final = "/v1/drill"
END_PATH: Final = "/v1/end-drill"

_converter: Final = cattrs.preconf.json.make_converter(forbid_extra_keys=True)
_reader: Final = cattrs.preconf.json.make_converter()


def build_order(order: DrillOrder) -> bytes:
    return json.dumps(_converter.unstructure(order)).encode()


def parse_order(data: bytes) -> DrillOrder:
    """
    Parse the body of `POST /v1/drill`.

    Raises:
        InvalidRequest: it is malformed.
    """
    try:
        value: Any = json.loads(data)
        targets = value.get("targets", [])
        if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
            raise InvalidRequest("targets: a list of entities and patterns expected")
        order: DrillOrder = _converter.structure(value, DrillOrder)
    except cattrs.BaseValidationError as error:
        raise InvalidRequest(f"drill: {'; '.join(cattrs.transform_error(error))}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"drill: {error}") from error
    return order


def check_end(data: bytes) -> None:
    """
    Check the body of `POST /v1/end-drill`.

    Raises:
        InvalidRequest: it isn't empty, and isn't `{}`.
    """
    if data.strip() not in {b"", b"{}"}:
        raise InvalidRequest("an empty body or {} expected")


def drill_value(answer: DrillAnswer | DrillState) -> dict[str, Any]:
    """The answer as a JSON value."""
    value: dict[str, Any] = _reader.unstructure(answer)
    return value


def build_answer(answer: DrillAnswer | DrillState) -> bytes:
    return json.dumps(drill_value(answer)).encode() + b"\n"


def parse_state(data: bytes) -> DrillState:
    """
    Parse the answer to `GET /v1/drill`. Unknown keys are ignored.

    Raises:
        MessageError: it isn't one.
    """
    try:
        state: DrillState = _reader.structure(json.loads(data), DrillState)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
        raise MessageError(f"this is not the state of drills: {error}") from error
    return state


def parse_answer(data: bytes) -> DrillAnswer:
    """
    Parse the answer to an order. Unknown keys are ignored.

    Raises:
        MessageError: it isn't one.
    """
    try:
        answer: DrillAnswer = _reader.structure(json.loads(data), DrillAnswer)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
        raise MessageError(f"this is not the answer to a drill: {error}") from error
    return answer
