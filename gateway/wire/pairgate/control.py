"""
Control at the admin endpoint, as JSON. `POST /v1/ACTION` has an order as its body:

    {"targets": ["orders", "bills/*"], "reason": "...", "until": DATE, "rate": NUMBER}

Each key may be missing; `rate` is for the action `rate` alone. The response is a `ControlAnswer`.
`GET /v1/control` returns a `ControlState`.

`POST /v1/reload` and `/v1/drain` concern the process as a whole; the response is a `ProcessAnswer`:

    {"reason": "...", "wait": BOOLEAN}
"""

import json
from datetime import datetime
from typing import Any, Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import EVERYTHING, Action, ControlAnswer, ControlState, Order
from gateway.domain.operators.process import ProcessAction, ProcessAnswer, ProcessOrder
from gateway.wire.pairgate import admin_json

PREFIX: Final = "/v1/"
STATE_PATH: Final = "/v1/control"
_ORDER: Final = "order"
_ANSWER: Final = "the answer to an order"


@attrs.frozen(kw_only=True)
class _Body:
    targets: tuple[str, ...] | None = None
    reason: str = ""
    until: datetime | None = None
    rate: float | None = None


@attrs.frozen(kw_only=True)
class _ProcessBody:
    reason: str = ""
    wait: bool = False


def path_of(action: Action | ProcessAction) -> str:
    return f"{PREFIX}{action.value}"


def action_of(path: str) -> Action | ProcessAction | None:
    """The action that the path names; None: it names none."""
    names: dict[str, Action | ProcessAction] = {path_of(each): each for each in Action}
    names |= {path_of(each): each for each in ProcessAction}
    return names.get(path)


def build_order(order: Order) -> bytes:
    body = _Body(targets=order.targets, reason=order.reason, until=order.until, rate=order.rate)
    return admin_json.build_order(body)


def parse_order(action: Action, data: bytes) -> Order:
    """
    Parse the body of a call; an empty one has no keys.

    Raises:
        InvalidRequest: the body is malformed, or names no targets where it must.
    """
    with admin_json.refusing(_ORDER):
        value: Any = admin_json.load(data, _ORDER) if data.strip() else {}
        body = admin_json.structured(value, _Body)
        targets = _targets(action, value.get("targets"))
        return Order(
            action=action,
            targets=targets,
            reason=body.reason,
            until=body.until,
            rate=body.rate,
        )


def build_process_order(order: ProcessOrder) -> bytes:
    return json.dumps({"reason": order.reason, "wait": order.wait}).encode()


def parse_process_order(action: ProcessAction, data: bytes) -> ProcessOrder:
    """
    Parse the body of a call; an empty one has no keys.

    Raises:
        InvalidRequest: the body is malformed.
    """
    with admin_json.refusing(_ORDER):
        value: Any = admin_json.load(data, _ORDER) if data.strip() else {}
        body = admin_json.structured(value, _ProcessBody)
    return ProcessOrder(action=action, reason=body.reason, wait=body.wait)


def _targets(action: Action, value: object) -> tuple[str, ...]:
    if value is None and action not in {Action.FAILOVER, Action.FAILBACK}:
        return (EVERYTHING,)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidRequest(f'targets: a list of entities, patterns or "{EVERYTHING}" expected')
    return tuple(value)


def build_answer(answer: ControlAnswer | ControlState | ProcessAnswer) -> bytes:
    return admin_json.build_answer(answer)


def parse_answer(data: bytes) -> ControlAnswer:
    """
    Parse the answer to an order. Unknown keys, which another version may have, are ignored.

    Raises:
        MessageError: it isn't one.
    """
    return admin_json.parse_answer(data, ControlAnswer, _ANSWER)


def parse_process_answer(data: bytes) -> ProcessAnswer:
    """As `parse_answer`, of an order to a process as a whole."""
    return admin_json.parse_answer(data, ProcessAnswer, _ANSWER)
