"""
The status as JSON: the response of `GET /status`, which `pairgate status` reads; and the backlog of
the last hour, the response of `GET /v1/history`.

    {"at": [DATE, ...], "pending": [12, null, ...], "oldest_age": [3.5, null, ...],
     "queues": {"east/x-servicebus-transfer/0": {"pending": [...], "oldest_age": [...]}, ...}}

All lists are as long as `at`, the oldest sample first. null: not known.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

import attrs
import cattrs
import cattrs.gen
import cattrs.preconf.json

from gateway.domain.billing import UsageReport
from gateway.domain.errors import MessageError
from gateway.domain.health.depth_history import DepthSample, QueueDepth
from gateway.domain.health.problems import Problem
from gateway.domain.health.way_home import progress_of
from gateway.domain.status.process import Status
from gateway.domain.status.sections import Section
from gateway.wire.pairgate.advice import line_of, problems_of, words_of


def status_value(status: Status) -> Mapping[str, Any]:
    """
    The status as a JSON value, with derived values: `good`, `problems` as lines, `problem_details`
    the same as objects, `progress` of the backlog
    (null without a pair), and those of each usage report.
    """
    pair, problems = status.pair, problems_of(status)
    progress = None if pair is None else progress_of(pair, status.at)
    value = _converter().unstructure(status)
    for section, own in status.sections.items():
        around, name = section.place
        place = _at(value, around)
        if place is not None:
            place[name] = _converter().unstructure(own, unstructure_as=section.kind)
    return {
        "good": not problems,
        "problems": [line_of(each, status.at) for each in problems],
        "problem_details": [_parts(each, status.at) for each in problems],
        "progress": _converter().unstructure(progress),
        **value,
    }


def _parts(problem: Problem, at: datetime) -> Mapping[str, Any]:
    """The problem as an object, with `text` and `remedy` for people."""
    text, remedy = words_of(problem, at)
    kept = {"kind", "entity", "since", "last", "deadline", "processes", "here"}
    value: Mapping[str, Any] = _converter().unstructure(problem)
    return {name: value[name] for name in value if name in kept} | {"text": text, "remedy": remedy}


def _at(value: Any, keys: Sequence[str]) -> Any:
    """The JSON object in which a section is; None: the process has none."""
    for key in keys:
        value = None if value is None else value.get(key)
    return value


def build_status(status: Status) -> bytes:
    return json.dumps(status_value(status)).encode() + b"\n"


def parse_status(data: bytes, sections: Iterable[Section[Any]] = ()) -> Status:
    """
    Parse a response of `GET /status`, with those sections. Unknown keys, which another version may
    have, are ignored.

    Raises:
        MessageError: the response isn't JSON, or isn't a status.
    """
    try:
        value = json.loads(data)
        status: Status = _converter().structure(value, Status)
        found = {}
        for section in sections:
            around, name = section.place
            place = _at(value, around)
            if place is not None and name in place:
                found[section] = _converter().structure(place[name], section.kind)
    except (
        cattrs.BaseValidationError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise MessageError(f"this is not the status of a gateway: {error}") from error
    return attrs.evolve(status, sections=found)


def _unstructured_usage(usage: UsageReport) -> Mapping[str, Any]:
    kept = {field.name: getattr(usage, field.name) for field in attrs.fields(UsageReport)}
    return {
        **kept,
        "operations": {each.value: count for each, count in usage.operations.items()},
        "total": usage.total,
        "per_message": usage.per_message,
        "per_idle_day": usage.per_idle_day,
    }


@cache
def _converter() -> cattrs.preconf.json.JsonConverter:
    """Made at the first use, as it compiles a function for each class of a status."""
    converter = cattrs.preconf.json.make_converter()
    converter.register_unstructure_hook(UsageReport, _unstructured_usage)
    # Sections are written and read one by one, each as its own class.
    omit = cattrs.gen.override(omit=True)
    converter.register_unstructure_hook(
        Status, cattrs.gen.make_dict_unstructure_fn(Status, converter, sections=omit)
    )
    converter.register_structure_hook(
        Status, cattrs.gen.make_dict_structure_fn(Status, converter, sections=omit)
    )
    return converter


HISTORY_PATH: Final = "/v1/history"
_UNKNOWN: Final = QueueDepth(pending=None, oldest_age=None)


def build_history(samples: Iterable[DepthSample]) -> bytes:
    found = list(samples)
    names = sorted({name for each in found for name in each.queues})
    value = {
        "at": [each.at.isoformat() for each in found],
        **_columns([QueueDepth(pending=s.pending, oldest_age=s.oldest_age) for s in found]),
        "queues": {
            name: _columns([each.queues.get(name, _UNKNOWN) for each in found]) for name in names
        },
    }
    return json.dumps(value).encode() + b"\n"


def _columns(depths: list[QueueDepth]) -> dict[str, list[float | None]]:
    return {
        "pending": [each.pending for each in depths],
        "oldest_age": [
            None if each.oldest_age is None else round(each.oldest_age, 1) for each in depths
        ],
    }
