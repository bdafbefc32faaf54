"""Reads orders from JSON without converting anything: a number is no text, and 1 isn't true."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import attrs
import cattrs.preconf.json
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn


def strict_converter() -> Converter:
    """A converter that refuses unknown keys and values of another JSON type."""
    converter = cattrs.preconf.json.make_converter(forbid_extra_keys=True)
    converter.register_structure_hook(str, _exactly("a text", str))
    converter.register_structure_hook(bool, _exactly("true or false", bool))
    converter.register_structure_hook(int, _exactly("a whole number", int))
    converter.register_structure_hook(float, _exactly("a number", int, float))
    converter.register_structure_hook(datetime, _read_date)
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _read_texts)

    def of_class(kind: Any) -> Callable[[Any, Any], Any]:
        fill = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)

        def read(value: Any, _: Any) -> Any:
            if type(value) is not dict:
                raise ValueError("an object expected")
            return fill(value, kind)

        return read

    converter.register_structure_hook_factory(attrs.has, of_class)
    return converter


def _read_date(value: Any, _: Any) -> datetime:
    date = datetime.fromisoformat(value) if isinstance(value, str) else None
    if date is None or date.tzinfo is None:
        raise ValueError("a date with a time zone expected")
    return date


def _read_texts(value: Any, _: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("a list of texts expected")
    return tuple(value)


def _exactly(named: str, *kinds: type) -> Callable[[Any, Any], Any]:
    def read(value: Any, _: Any) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"{named} expected")
        return value

    return read
