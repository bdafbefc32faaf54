"""
The load of a queue, as the admin endpoint reports it to scalers of listeners.

    {"entity": "orders", "status": "Active", "depth": 12, "age_seconds": 3.4}

Unknown values are omitted, so that a scaler keeps its last ones. KEDA's metrics-api scaler reads
one number by `valueLocation`. Prometheus gets the same figures in its text format.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.wire.http import strict_json

_MAX_BYTES: Final = 16 * 1024


@attrs.frozen(kw_only=True)
class Figures:
    """A snapshot of one entity. None: the namespace can't tell."""

    entity: str
    status: str
    depth: int | None  # messages that wait or are locked
    age: float | None  # of the oldest message, in seconds


def build_figures(figures: Figures) -> Mapping[str, object]:
    """The fields of the JSON object."""
    fields = {
        "entity": figures.entity,
        "status": figures.status,
        "depth": figures.depth,
        "age_seconds": figures.age,
    }
    return {name: value for name, value in fields.items() if value is not None}


def build_samples(figures: Figures) -> bytes:
    """The figures in Prometheus's text format."""
    known = {
        "pairgate_entity_messages": ("Messages that wait or are locked.", figures.depth),
        "pairgate_entity_oldest_age_seconds": ("Age of the oldest message.", figures.age),
    }
    lines = [
        f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        f'{name}{{messaging_destination_name="{figures.entity}"}} {value}\n'
        for name, (text, value) in known.items()
        if value is not None
    ]
    return "".join(lines).encode()


def parse_figures(data: bytes) -> Figures:
    """
    Parse such an object; unknown fields are ignored.

    Raises:
        InvalidRequest: the object is malformed.
    """
    read = strict_json.load(data, "figures", max_bytes=_MAX_BYTES)
    fields = strict_json.as_object(read, "figures")
    entity, status = fields.get("entity"), fields.get("status")
    depth, age = fields.get("depth"), fields.get("age_seconds")
    if not isinstance(entity, str) or not isinstance(status, str):
        raise InvalidRequest("figures: texts `entity` and `status` expected")
    if depth is not None and (type(depth) is not int or depth < 0):
        raise InvalidRequest("figures: a whole number `depth` expected")
    if age is not None and (isinstance(age, bool) or not isinstance(age, int | float) or age < 0):
        raise InvalidRequest("figures: a number `age_seconds` expected")
    return Figures(
        entity=entity, status=status, depth=depth, age=None if age is None else float(age)
    )
