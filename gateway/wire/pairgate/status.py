"""`Status` as JSON: the response of `GET /status`, which `pairgate status` reads."""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import cattrs
import cattrs.preconf.json

from gateway.domain.billing import UsageReport
from gateway.domain.errors import MessageError
from gateway.domain.health.syphon_progress import progress_of
from gateway.domain.status.process import Status
from gateway.wire.pairgate.advice import problems_of

_converter: Final = cattrs.preconf.json.make_converter()


def status_value(status: Status) -> Mapping[str, Any]:
    """
    The status as a JSON value, with derived values: `good`, `problems`, `progress` of the backlog
    (null without a pair), and those of each usage report.
    """
    pair, problems = status.pair, problems_of(status)
    progress = None if pair is None else progress_of(pair, status.at)
    return {
        "good": not problems,
        "problems": list(problems),
        "progress": _converter.unstructure(progress),
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
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageError(f"this is not the status of a gateway: {error}") from error
    return status


def _unstructured_usage(usage: UsageReport) -> Mapping[str, Any]:
    kept = {field.name: getattr(usage, field.name) for field in attrs.fields(UsageReport)}
    return {
        **kept,
        "operations": {each.value: count for each, count in usage.operations.items()},
        "total": usage.total,
        "per_message": usage.per_message,
        "per_idle_day": usage.per_idle_day,
    }


_converter.register_unstructure_hook(UsageReport, _unstructured_usage)
