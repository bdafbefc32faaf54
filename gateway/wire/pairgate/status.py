"""`Status` as JSON: the response of `GET /status`, which `pairgate status` reads."""

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
    """
    The status as a JSON value, with derived values: `good`, `problems`, and those of each bill.
    """
    return {
        "good": not status.problems,
        "problems": list(status.problems),
        **_converter.unstructure(status),
    }


def build_status(status: Status) -> bytes:
    return json.dumps(status_value(status)).encode() + b"\n"


def parse_status(data: bytes) -> Status:
    """
    Parse a response of `GET /status`. Unknown keys, which another version may have, are ignored.

    Raises:
        MessageError: the response isn't JSON, or isn't a status.
    """
    try:
        status: Status = _converter.structure(json.loads(data), Status)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError) as error:
        raise MessageError(f"this is not the status of a gateway: {error}") from error
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
