"""
Requests of `pairgate redrive` to a running gateway: `POST /redrive` at its admin endpoint, as JSON.

    {"selection": {"reasons": [...], "entities": [...], "after": DATE, "before": DATE},
     "spool": false, "executes": true, "rate": 100, "most": 500}

The response is a survey, or the result of the move. A gateway moves at most `most` messages for one
request, so that the client can stop and report progress.
"""

import json
from typing import Any, Final, TypeVar

import attrs
import cattrs
import cattrs.preconf.json
from attrs import validators

from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.redrive import Redriven, Selection, Survey
from gateway.wire.pairgate import admin_json
from gateway.wire.pairgate.strict import strict_converter

T = TypeVar("T")

MOST: Final = 1000  # messages
_converter: Final = cattrs.preconf.json.make_converter()
_order_reader: Final = strict_converter()  # a value that is no order must never move anything


@attrs.frozen(kw_only=True)
class RedriveOrder:
    """Counts the selected dead letters or (`executes`) moves them."""

    selection: Selection
    spool: bool = False  # the gateway's spool instead of the backlog
    executes: bool = False
    rate: float | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0.0))
    )  # messages/s
    most: int = attrs.field(default=MOST, validator=[validators.ge(1), validators.le(MOST)])
    # Dead letters to show without their bodies, where none is moved.
    peek: int = attrs.field(default=0, validator=[validators.ge(0), validators.le(MOST)])


def build_order(order: RedriveOrder) -> bytes:
    return _build(order)


def parse_order(data: bytes) -> RedriveOrder:
    """
    Parse an order.

    Raises:
        InvalidRequest: the order is malformed.
    """
    with admin_json.refusing("redrive"):
        order: RedriveOrder = _order_reader.structure(
            admin_json.load(data, "redrive"), RedriveOrder
        )
    return order


def build_answer(answer: Survey | Redriven) -> bytes:
    return _build(answer)


def parse_survey(data: bytes) -> Survey:
    """
    Parse a survey.

    Raises:
        InvalidRequest: the survey is malformed.
    """
    return _parse(data, Survey)


def parse_redriven(data: bytes) -> Redriven:
    """
    Parse the result of a move.

    Raises:
        InvalidRequest: the result is malformed.
    """
    return _parse(data, Redriven)


def _build(value: Any) -> bytes:
    return json.dumps(_converter.unstructure(value)).encode() + b"\n"


def _parse(data: bytes, kind: type[T]) -> T:
    try:
        found: T = _converter.structure(json.loads(data), kind)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidRequest(f"redrive: this can't be read: {error}") from error
    return found
