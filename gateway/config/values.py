"""Values of the file: durations and sizes, parsed from their text."""

import difflib
import re
from collections.abc import Iterable
from typing import Any, Final

_UNITS_OF_TIME: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h|d)", re.ASCII)
_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,9}(?:\.\d{1,6})?)S)?)?",
    re.ASCII,
)
_UNITS_OF_SIZE: Final = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SIZE: Final = re.compile(r"(?P<number>\d{1,12}) ?(?P<unit>B|KiB|MiB|GiB)", re.ASCII)
# Values above these limits are typing errors, and many of them would hang or exhaust the process.
_LONGEST: Final = 10 * 365 * 86400.0  # seconds
_LARGEST: Final = 1024**4  # bytes
_MOST: Final = 100_000_000


def seconds(value: object) -> float:
    """
    Parse `"250ms"`, `"10s"`, `"5m"`, `"1h"`, `"1d"` or ISO 8601's `"PT1M"` to seconds.

    Raises:
        ValueError: the text isn't a duration, or is above ten years.
    """
    if isinstance(value, str):
        if match := _DURATION.fullmatch(value):
            return _not_above(_LONGEST, float(match["number"]) * _UNITS_OF_TIME[match["unit"]])
        if match := _ISO_DURATION.fullmatch(value):
            found = sum(
                float(number or 0) * _UNITS_OF_TIME[unit]
                for unit, number in match.groupdict().items()
            )
            return _not_above(_LONGEST, found)
    raise expected('a duration such as "10s", "250ms" or "PT1M"', value)


def size(value: object) -> int:
    """
    Parse a number of bytes, or a text such as `"64KiB"`.

    Raises:
        ValueError: the value isn't a size, or is above 1 TiB.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return int(_not_above(_LARGEST, value))
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        return int(_not_above(_LARGEST, int(match["number"]) * _UNITS_OF_SIZE[match["unit"]]))
    raise expected('a size such as "64KiB" or "1MiB"', value)


def count(value: object) -> int:
    """
    Check a whole number.

    Raises:
        ValueError: the value isn't a whole number, or is above 100 million.
    """
    if type(value) is not int:
        raise expected("a whole number", value)
    return int(_not_above(_MOST, value))


def _not_above(most: float, value: float) -> float:
    if value > most:
        shown = value if isinstance(value, int) else f"{value:.0f}"
        raise ValueError(f"must be <= {most:.0f}: {shown}")
    return value


def expected(what: str, value: Any) -> ValueError:
    """
    The error that names the expected form and shows the start of the actual value; only the value's
    kind if that is wrong, since the value may be meant as a secret.
    """
    match value:
        case dict():
            found = "a table"
        case list():
            found = "a list"
        case str() if what.endswith(("a list", "a table")):
            found = "a text"
        case _:
            found = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return ValueError(f"{what} expected, found {found}")


def not_one_of(choices: Iterable[str], value: Any) -> ValueError:
    """The error that names the choices, and the choice that was probably meant."""
    names = ", ".join(f'"{each}"' for each in choices)
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{expected(f'one of {names}', value)}{hint}")
