"""`Status` as JSON, which `GET /status` answers and `pairgate status` reads."""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import cattrs
import cattrs.preconf.json

from gateway.domain.billing import Bill
from gateway.domain.errors import MessageError
from gateway.domain.status import Status

_converter: Final = cattrs.preconf.json.make_converter()


def status_value(status: Status) -> Mapping[str, Any]:
    """As JSON has it, with what follows from the figures: `good`, `problems`, and each bill's."""
    return {
        "good": not status.problems,
        "problems": list(status.problems),
        **_converter.unstructure(status),
    }


def build_status(status: Status) -> bytes:
    return json.dumps(status_value(status)).encode() + b"\n"


def parse_status(data: bytes) -> Status:
    """
    Read an answer to `GET /status`. Keys that aren't known are left out: another version's.

    Raises:
        MessageError: it is no JSON, or not of that shape.
    """
    try:
        status: Status = _converter.structure(json.loads(data), Status)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
        raise MessageError(f"this is no status of a gateway: {error}") from error
    return status


def _unstructured_bill(bill: Bill) -> Mapping[str, Any]:
    kept = {field.name: getattr(bill, field.name) for field in attrs.fields(Bill)}
    return {
        **kept,
        "operations": {each.value: count for each, count in bill.operations.items()},
        "total": bill.total,
        "per_message": bill.per_message,
        "per_idle_day": bill.per_idle_day,
    }


_converter.register_unstructure_hook(Bill, _unstructured_bill)
