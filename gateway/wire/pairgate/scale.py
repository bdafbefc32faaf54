"""
The load of a queue, as the admin endpoint reports it to scalers of listeners.

    {"entity": "orders", "status": "Active", "depth": 12, "age_seconds": 3.4}

Of several queues it is {"queues": [...]}, with such an object for each. A queue that doesn't exist
is among them with the status `Missing`; asked about alone it is an error.

Unknown values are omitted, so that a scaler keeps its last ones. KEDA's metrics-api scaler reads
one number by `valueLocation`. Prometheus gets the same figures in its text format.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.wire.http import strict_json

MISSING: Final = "Missing"  # the status of a queue that doesn't exist
MOST_QUEUES: Final = 1000  # of one request
_MOST_TEXT: Final = 12 * 1024  # bytes of their names in a target: a whole head has 16 KiB at most
_MAX_BYTES: Final = 16 * 1024  # some figures of one queue take less than 1 KiB
_MAX_ALL_BYTES: Final = 1024 * 1024  # 1 KiB for each of `MOST_QUEUES`


@attrs.frozen(kw_only=True)
class EntityFigures:
    """A snapshot of one entity. None: the namespace doesn't report it."""

    entity: str
    status: str
    depth: int | None  # messages that wait or are locked
    age: float | None  # of the oldest message, in seconds


def build_figures(figures: EntityFigures) -> Mapping[str, object]:
    """The fields of the JSON object."""
    fields = {
        "entity": figures.entity,
        "status": figures.status,
        "depth": figures.depth,
        "age_seconds": figures.age,
    }
    return {name: value for name, value in fields.items() if value is not None}


def build_all_figures(figures: Sequence[EntityFigures]) -> Mapping[str, object]:
    """The JSON object of several queues."""
    return {"queues": [build_figures(each) for each in figures]}


def build_samples(figures: EntityFigures) -> bytes:
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


def parse_figures(data: bytes) -> EntityFigures:
    """
    Parse such an object; unknown fields are ignored.

    Raises:
        InvalidRequest: the object is malformed.
    """
    return _figures_in(strict_json.load(data, "figures", max_bytes=_MAX_BYTES))


def parse_all_figures(data: bytes) -> Sequence[EntityFigures]:
    """
    Parse the figures of several queues.

    Raises:
        InvalidRequest: they are malformed.
    """
    read = strict_json.load(data, "figures", max_bytes=_MAX_ALL_BYTES)
    queues = strict_json.as_object(read, "figures").get("queues")
    if not isinstance(queues, list):
        raise InvalidRequest("figures: a list `queues` expected")
    return [_figures_in(each) for each in queues]


def query_texts(queues: Sequence[EntityPath]) -> Iterator[tuple[str, Sequence[EntityPath]]]:
    """
    The queries for these queues, with the queues of each: as few as the length of a request's
    target allows.
    """
    text, part = "", list[EntityPath]()
    for queue in queues:
        name = quote(queue.name)
        if part and (len(part) == MOST_QUEUES or len(text) + len(name) >= _MOST_TEXT):
            yield f"queues={text}", part
            text, part = "", []
        text += f",{name}" if part else name
        part.append(queue)
    if part:
        yield f"queues={text}", part


def _figures_in(read: object) -> EntityFigures:
    fields = strict_json.as_object(read, "figures")
    entity, status = fields.get("entity"), fields.get("status")
    depth, age = fields.get("depth"), fields.get("age_seconds")
    if not isinstance(entity, str) or not isinstance(status, str):
        raise InvalidRequest("figures: texts `entity` and `status` expected")
    if depth is not None and (type(depth) is not int or depth < 0):
        raise InvalidRequest("figures: a whole number `depth` expected")
    if age is not None and (isinstance(age, bool) or not isinstance(age, int | float) or age < 0):
        raise InvalidRequest("figures: a number `age_seconds` expected")
    return EntityFigures(
        entity=entity, status=status, depth=depth, age=None if age is None else float(age)
    )
