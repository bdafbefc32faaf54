"""
JSON from outside, parsed strictly: texts that parsers could read differently are refused (RFC
8259).
"""

import json
import math
from typing import Any, Final

from gateway.domain.errors import InvalidRequest

_MAX_DIGITS: Final = 20  # of an integer: no 64-bit number has more


def load(data: bytes | str, what: str, *, max_bytes: int) -> Any:
    """
    Parse one JSON text. `what` names it in errors. A byte order mark before it doesn't count
    (section 8.1): editors on Windows write one.

    Raises:
        InvalidRequest: the text is too large, isn't JSON, is nested too deep, repeats a name, or
            has a number that isn't finite or an integer of more than 20 digits.
    """
    if len(data) > max_bytes:
        raise InvalidRequest(f"{what}: up to {max_bytes} bytes expected, got {len(data)}")
    try:
        return _DECODER.decode(data.decode("utf-8-sig") if isinstance(data, bytes) else data)
    except RecursionError as error:
        raise InvalidRequest(f"{what}: nested too deeply") from error
    except ValueError as error:  # also from the decoder of UTF-8
        raise InvalidRequest(f"{what}: {error}") from error


def as_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what}: an object expected, got {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:80]!r} is given twice")
        found[name] = value
    return found


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _short(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits is out of range")
    return int(text)


# Kept, because `json.loads` with options creates a new decoder for each text.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refused, parse_float=_finite, parse_int=_short
)
