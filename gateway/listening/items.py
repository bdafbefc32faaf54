"""
Typed messages: the items that handlers get, and the formats that convert bodies to values and back.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs
import cattrs
from cattrs.preconf.json import make_converter

from gateway.domain.entity import EntityPath
from gateway.domain.message import DataBody, Delivery, Message, ValueBody
from gateway.listening.errors import FormatError

T = TypeVar("T")

CLIENT_ID: Final = "client-id"  # application properties
REQUEST_ID: Final = "request-id"
JSON: Final = "application/json"
MAX_LINE: Final = 500  # characters about one field's error


@attrs.frozen(kw_only=True)
class Item(Generic[T]):
    """A message with its value, as a handler gets it."""

    value: T
    delivery: Delivery
    queue: EntityPath
    account: str = ""  # names the namespace

    @property
    def message(self) -> Message:
        return self.delivery.message

    @property
    def attempt(self) -> int:
        """1 when the message is delivered for the first time."""
        return self.delivery.delivery_count

    @property
    def client_id(self) -> str | None:
        """The submitter, as it calls itself."""
        return _text(self.message.properties, CLIENT_ID)

    @property
    def request_id(self) -> str | None:
        """The request that the message belongs to; a reply has the same."""
        return _text(self.message.properties, REQUEST_ID)

    @property
    def queue_uri(self) -> str:
        """The queue that the message came from; `account_of` and `queue_of` parse it."""
        return f"queue://{self.account}/{self.queue}"


class Format(Protocol[T]):
    """Converts values of a type to messages and back."""

    def parse(self, message: Message) -> T:
        """
        The value of a message.

        Raises:
            FormatError: the message has no valid value; the text says why, and contains nothing of
                the body.
        """
        ...

    def build(self, value: T) -> Message:
        """A message with this value."""
        ...


@attrs.frozen
class Raw:
    """Messages as they are: nothing is parsed, so nothing can be invalid."""

    def parse(self, message: Message) -> Message:
        return message

    def build(self, value: Message) -> Message:
        return value


RAW: Final = Raw()


def _refuse_other(value: Any, kind: type[T]) -> T:
    """
    Refuse a value of another type. cattrs would convert "3" to 3 and None to "None", which in a
    message is an error.
    """
    is_number = kind is float and type(value) is int
    if type(value) is not kind and not is_number:
        raise TypeError(f"{kind.__name__} expected")
    return kind(value)  # type: ignore[call-arg]


def strict_converter() -> cattrs.Converter:
    """Converts attrs classes to JSON values and back; refuses values of other types."""
    converter = make_converter()
    for kind in (bool, float, int, str):
        converter.register_structure_hook(kind, _refuse_other)
    return converter


_CONVERTER: Final = strict_converter()


@attrs.frozen
class Json(Generic[T]):
    """Values of one attrs class (or any other type that cattrs knows) as JSON in UTF-8."""

    type: type[T]
    converter: cattrs.Converter = _CONVERTER

    def parse(self, message: Message) -> T:
        """As `Format.parse`. Fields that the class doesn't know are ignored."""
        try:
            tree = json.loads(_bytes_of(message))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"the body isn't JSON ({type(error).__name__})") from error
        try:
            return self.converter.structure(tree, self.type)
        except (cattrs.BaseValidationError, LookupError, TypeError, ValueError) as error:
            wrong = "; ".join(_lines(error))
            raise FormatError(f"the body isn't a {self.type.__name__}: {wrong}") from error

    def build(self, value: T) -> Message:
        """A message with the value as its body."""
        tree = self.converter.unstructure(value, unstructure_as=self.type)
        body = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
        return Message(body=body.encode(), content_type=JSON)


def account_of(queue_uri: str) -> str:
    return queue_uri.removeprefix("queue://").partition("/")[0]


def queue_of(queue_uri: str) -> EntityPath:
    return EntityPath.parse(queue_uri.removeprefix("queue://").partition("/")[2])


def _bytes_of(message: Message) -> bytes | str:
    match message.body:
        case bytes() as body:
            return body
        case DataBody(parts=parts):
            return b"".join(parts)
        case ValueBody(value=str() | bytes() as value):
            return value
    raise FormatError(f"the body is a {type(message.body).__name__}; bytes expected")


def _lines(error: Exception) -> list[str]:
    """The innermost errors that cattrs raises, each with its field and without a value."""
    lines = cattrs.transform_error(error, format_exception=_name_mistake)
    return [line[:MAX_LINE] for line in lines]


def _name_mistake(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError):
        return "required field missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return "unknown field"
    name = getattr(kind, "__name__", str(kind))
    return f"{name} expected"


def _text(properties: Mapping[str, Any], name: str) -> str | None:
    value = properties.get(name)
    return None if value is None else str(value)


def body_size(message: Message) -> int:
    """
    The size of a body in bytes, for a limit on memory; bodies other than bytes count as small.
    """
    if isinstance(message.body, bytes):
        return len(message.body)
    return sum(map(len, message.body.parts)) if isinstance(message.body, DataBody) else 0
