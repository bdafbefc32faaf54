"""
How much work a queue has, as the admin endpoint tells it to whoever scales listeners.

    {"entity": "orders", "status": "Active", "depth": 12, "age_seconds": 3.4}

What nobody can tell is missing, so that a scaler keeps what it had. KEDA's metrics-api scaler reads
one number of it, by `valueLocation`.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.wire import strict_json

_MAX_BYTES: Final = 16 * 1024


@attrs.frozen(kw_only=True)
class Figures:
    """One entity at a moment. None: the namespace can't tell."""

    entity: str
    status: str
    depth: int | None  # messages that wait, or are locked
    age: float | None  # seconds, of the oldest


def build_figures(figures: Figures) -> Mapping[str, object]:
    """The fields of the JSON object."""
    fields = {
        "entity": figures.entity,
        "status": figures.status,
        "depth": figures.depth,
        "age_seconds": figures.age,
    }
    return {name: value for name, value in fields.items() if value is not None}


def parse_figures(data: bytes) -> Figures:
    """
    Read such an object; fields that aren't known are passed over.

    Raises:
        InvalidRequest: it can't be read.
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
