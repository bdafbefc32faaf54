"""Orders to the endpoint `admin` and their answers as JSON, and the errors of malformed JSON."""

import enum
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from types import NoneType
from typing import Any, Final, TypeVar, get_args

import attrs
import cattrs.preconf.json
from cattrs import BaseValidationError, ClassValidationError, Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn

from gateway.domain.errors import BrokerError, InvalidRequest, MessageError
from gateway.wire.http import strict_json
from gateway.wire.http.messages import Headers, Response
from gateway.wire.servicebus.errors import PAIRGATE, parse_error

T = TypeVar("T")

MAX_ORDER: Final = 1024 * 1024  # bytes: a list of 10,000 entities, with long names
_answer_converter: Final = cattrs.preconf.json.make_converter()


def value_of(answer: object) -> dict[str, Any]:
    """The order or answer as a JSON value."""
    value: dict[str, Any] = _answer_converter.unstructure(answer)
    return value


def build_answer(answer: object) -> bytes:
    return json.dumps(value_of(answer)).encode() + b"\n"


def load(data: bytes, what: str) -> dict[str, Any]:
    """
    The JSON object of an order; an empty text has no keys. `what` begins the sentence of an error.

    Raises:
        InvalidRequest: it is no object, or as `strict_json.load`.
    """
    value = strict_json.load(data, what, max_bytes=MAX_ORDER) if data.strip() else {}
    return strict_json.as_object(value, what)


def structured(value: object, kind: type[T], what: str) -> T:
    """
    An order of that class. Nothing is converted: a number is no text, and 1 isn't true.

    Raises:
        InvalidRequest: the value has another key, lacks one, or has a value that the class doesn't
            allow; the text begins with `what`, and names each key with what is expected.
    """
    try:
        order: T = _order_converter.structure(value, kind)
    except BaseValidationError as error:
        raise InvalidRequest(f"{what}: {'; '.join(_problems(error, ''))}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{what}: nested too deeply") from error
    return order


def parse_answer(data: bytes, kind: type[T], what: str) -> T:
    """
    Parse an answer. Unknown keys, which another version may have, are ignored.

    Raises:
        MessageError: the answer isn't JSON, or isn't of that class; it says "this is not `what`".
    """
    try:
        answer: T = _answer_converter.structure(json.loads(data), kind)
    except (BaseValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageError(f"this is not {what}: {error}") from error
    return answer


def parse_refusal(response: Response) -> BrokerError:
    """
    Parse an answer of the endpoint `admin` that isn't a success; never raises. One whose JSON has
    an error is by a gateway; another one may be by a proxy on the way, and is an unknown outcome.
    """
    try:
        text = json.loads(response.body)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        text = None
    if not isinstance(text, str):
        return parse_error(response)
    headers = Headers.of([*response.headers.items, PAIRGATE])
    return type(parse_error(attrs.evolve(response, headers=headers)))(text)


def _problems(error: BaseException, place: str) -> Iterator[str]:
    """The mistakes of an order, each behind the key that has it."""
    match error:
        case ClassValidationError():
            within, whole = error.group_exceptions()
            for each, note in within:
                yield from _problems(each, f"{place}.{note.name}" if place else note.name)
            for each in whole:
                yield from _problems(each, place)
        case ForbiddenExtraKeysError():
            names = ", ".join(f"{name:.100}" for name in sorted(error.extra_fields))
            yield _placed(place, f"unknown: {names}")
        case KeyError():
            yield _placed(place, "is missing")
        case _:
            yield _placed(place, str(error))


def _placed(place: str, text: str) -> str:
    return f"{place}: {text}" if place else text


def _strict_converter() -> Converter:
    """A converter that refuses unknown keys and values of another JSON type."""
    converter = cattrs.preconf.json.make_converter(forbid_extra_keys=True)
    converter.register_structure_hook(str, _exactly("a text", str))
    converter.register_structure_hook(bool, _exactly("true or false", bool))
    converter.register_structure_hook(int, _exactly("a whole number", int))
    converter.register_structure_hook(float, _exactly("a number", int, float))
    converter.register_structure_hook(datetime, _read_date)
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _read_texts)
    converter.register_structure_hook_func(_is_enum, _read_enum)

    def of_class(kind: Any) -> Callable[[Any, Any], Any]:
        fill = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)

        def read(value: Any, _: Any) -> Any:
            if type(value) is not dict:
                raise ValueError("an object expected")
            return fill(value, kind)

        return read

    def or_null(value: Any, kind: Any) -> Any:
        [other] = set(get_args(kind)) - {NoneType}
        return None if value is None else converter.structure(value, other)

    converter.register_structure_hook_factory(attrs.has, of_class)
    converter.register_structure_hook_func(lambda kind: NoneType in get_args(kind), or_null)
    return converter


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, enum.EnumMeta)


def _read_enum(value: Any, kind: Any) -> Any:
    values = [each.value for each in kind]
    if not isinstance(value, kind) and value not in values:
        raise ValueError(f"{', '.join(values[:-1])} or {values[-1]} expected")
    return kind(value)


def _read_date(value: Any, _: Any) -> datetime:
    date = None
    if isinstance(value, str):
        try:
            date = datetime.fromisoformat(value)
        except ValueError:
            date = None
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


_order_converter: Final = _strict_converter()
