"""Orders to the endpoint `admin` and their answers as JSON, and the errors of malformed JSON."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import attrs
import cattrs
import cattrs.preconf.json

from gateway.domain.errors import BrokerError, InvalidRequest, MessageError
from gateway.wire.http import strict_json
from gateway.wire.http.messages import Headers, Response
from gateway.wire.pairgate.strict import strict_converter
from gateway.wire.servicebus.errors import PAIRGATE, parse_error

T = TypeVar("T")

MAX_ORDER: Final = 1024 * 1024  # bytes: a list of 10,000 entities, with long names
_order_converter: Final = strict_converter()
_answer_converter: Final = cattrs.preconf.json.make_converter()


def build_order(order: object) -> bytes:
    return json.dumps(_order_converter.unstructure(order)).encode()


def load(data: bytes, what: str) -> Any:
    """
    The JSON of an order, read strictly. `what` begins the sentence of an error.

    Raises:
        InvalidRequest: as `strict_json.load`.
    """
    return strict_json.load(data, what, max_bytes=MAX_ORDER)


def structured(value: object, kind: type[T]) -> T:
    """An order of that class. Call it inside `refusing`. Other keys and types are errors."""
    order: T = _order_converter.structure(value, kind)
    return order


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """
    Read an order inside this context. `what` begins the sentence of an error.

    Raises:
        InvalidRequest: the order is malformed.
    """
    try:
        yield
    except cattrs.BaseValidationError as error:
        raise InvalidRequest(f"{what}: {'; '.join(cattrs.transform_error(error))}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{what}: {error}") from error


def value_of(answer: object) -> dict[str, Any]:
    """The answer as a JSON value."""
    value: dict[str, Any] = _answer_converter.unstructure(answer)
    return value


def build_answer(answer: object) -> bytes:
    return json.dumps(value_of(answer)).encode() + b"\n"


def parse_answer(data: bytes, kind: type[T], what: str) -> T:
    """
    Parse an answer. Unknown keys, which another version may have, are ignored.

    Raises:
        MessageError: the answer isn't JSON, or isn't of that class; it says "this is not `what`".
    """
    try:
        answer: T = _answer_converter.structure(json.loads(data), kind)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
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
