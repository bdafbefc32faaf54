"""
Drills at the admin endpoint, as JSON. `POST /v1/drill` has an order as its body:

    {"seconds": 30, "fault": "refuse", "targets": ["orders"], "namespace": "east", "delay": 2}

Every key but `seconds` may be missing. `POST /v1/end-drill` takes the order back; its body is empty
or `{}`. Both are answered with a `DrillAnswer`, and `GET /v1/drill` with a `DrillState`.
"""

from typing import Any, Final

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.drill import DrillAnswer, DrillOrder, DrillState
from gateway.wire.pairgate import admin_json

PATH: Final = "/v1/drill"
END_PATH: Final = "/v1/end-drill"


def build_order(order: DrillOrder) -> bytes:
    return admin_json.build_order(order)


def parse_order(data: bytes) -> DrillOrder:
    """
    Parse the body of `POST /v1/drill`.

    Raises:
        InvalidRequest: it is malformed.
    """
    with admin_json.refusing("drill"):
        value: Any = admin_json.load(data, "drill")
        targets = value.get("targets", [])
        if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
            raise InvalidRequest("targets: a list of entities and patterns expected")
        return admin_json.structured(value, DrillOrder)


def check_end(data: bytes) -> None:
    """
    Check the body of `POST /v1/end-drill`.

    Raises:
        InvalidRequest: it isn't empty, and isn't `{}`.
    """
    if data.strip() not in {b"", b"{}"}:
        raise InvalidRequest("an empty body or {} expected")


def build_answer(answer: DrillAnswer | DrillState) -> bytes:
    return admin_json.build_answer(answer)


def parse_state(data: bytes) -> DrillState:
    """
    Parse the answer to `GET /v1/drill`. Unknown keys are ignored.

    Raises:
        MessageError: it isn't one.
    """
    return admin_json.parse_answer(data, DrillState, "the state of drills")


def parse_answer(data: bytes) -> DrillAnswer:
    """
    Parse the answer to an order. Unknown keys are ignored.

    Raises:
        MessageError: it isn't one.
    """
    return admin_json.parse_answer(data, DrillAnswer, "the answer to a drill")
