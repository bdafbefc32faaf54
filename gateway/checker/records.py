"""
Reads and writes the records of a run as JSON lines, one record a line, so that each process can
append to its own file.

  {"k": "Acked", "t": 12.5, "message_id": "7", "accepted_by": "backlog"}

`k` is the kind, `t` the time. Fields with their default value are omitted. Infinite times are
"inf".
"""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from gateway.checker import history, operations
from gateway.checker.operations import Record

KINDS: Final[dict[str, type[Record]]] = {
    kind.__name__: kind
    for module in (operations, history)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
}


def build(records: Iterable[Record]) -> Iterator[bytes]:
    """Return a line for each record, including the line end."""
    for record in records:
        fields = {"k": type(record).__name__, **_CONVERTER.unstructure(record)}
        yield json.dumps(fields, allow_nan=False).encode() + b"\n"


def parse(lines: bytes) -> Iterator[Record]:
    """
    The records of a whole file.

    Raises:
        ValueError: a line isn't a valid record; names the line and the reason. A last line without
            its line end isn't valid either.
    """
    for number, line in enumerate(lines.splitlines(keepends=True), 1):
        try:
            yield _record(line)
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"line {number} is not a valid record: {error}") from error
        except cattrs.BaseValidationError as error:
            reasons = "; ".join(cattrs.transform_error(error))
            raise ValueError(f"line {number} is not a valid record: {reasons}") from error


def _record(line: bytes) -> Record:
    if not line.endswith(b"\n"):
        raise ValueError("the line is cut off")
    fields = json.loads(line)
    if not isinstance(fields, dict) or fields.get("k") not in KINDS:
        raise ValueError(f"k must be one of {', '.join(sorted(KINDS))}")
    record: Record = _CONVERTER.structure(fields, KINDS[fields.pop("k")])
    return record


def _finite_or_named(seconds: float) -> float | str:
    return seconds if math.isfinite(seconds) else str(seconds)


def _number(seconds: Any, _: type[float]) -> float:
    number = float(seconds)
    if math.isnan(number):
        raise ValueError("a number or inf expected")
    return number


_SETS: Final = (frozenset[str], frozenset[str] | None)


def _sorted(values: frozenset[str] | None) -> list[str] | None:
    return None if values is None else sorted(values)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(omit_if_default=True, forbid_extra_keys=True)
    converter.register_unstructure_hook(float, _finite_or_named)
    converter.register_structure_hook(float, _number)
    converter.register_unstructure_hook_func(lambda kind: kind in _SETS, _sorted)
    renamed: Any = override(rename="t")
    for kind in KINDS.values():
        converter.register_unstructure_hook(
            kind,
            make_dict_unstructure_fn(kind, converter, _cattrs_omit_if_default=True, at=renamed),
        )
        converter.register_structure_hook(kind, make_dict_structure_fn(kind, converter, at=renamed))
    return converter


_CONVERTER: Final = _converter()
