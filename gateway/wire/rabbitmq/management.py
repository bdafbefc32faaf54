"""
RabbitMQ's management over HTTP: the gateway's requests and their responses.

The format follows the plugin's own documentation (`/api/index.html` of a broker with it), as of
3.10.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import attrs

from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    OutcomeUnknown,
    Unavailable,
)
from gateway.wire.http import strict_json
from gateway.wire.http.messages import Headers, Request, Response

MAX_PAGE: Final = 500  # queues; the plugin's own limit
MAX_ANSWER: Final = MAX_PAGE * 8 * 1024  # bytes; a queue has some columns and a few arguments
_BEYOND: Final = b"page_out_of_range"
_COLUMNS: Final = "name,type,arguments,policy,operator_policy,effective_policy_definition,messages"


@attrs.frozen(kw_only=True)
class ManagedQueue:
    """
    A queue as the plugin reports it.

    `policy` combines the policies that apply; `policy` and `messages` are None until the queue's
    statistics exist: up to ten seconds after its creation, or never if the broker collects none.
    """

    name: str
    kind: str
    arguments: Mapping[str, Any]
    policy: Mapping[str, Any] | None = None
    policies: tuple[str, ...] = ()  # names of the policies that apply
    messages: int | None = None  # including locked messages; seconds old


@attrs.frozen(kw_only=True)
class ManagementLogin:
    """The credentials, and the vhost."""

    user: str
    password: str = attrs.field(repr=False)
    vhost: str


def ask_for_queue(login: ManagementLogin, name: str) -> Request:
    return _request(login, f"/{quote(name, safe='')}", {"columns": _COLUMNS})


def ask_for_page(login: ManagementLogin, prefix: str, names: str, page: int) -> Request:
    """
    Queues by name, `MAX_PAGE` at once, from page 1 on.

    Their names begin with `prefix`, ignoring case, and match `names`: a regular expression simple
    enough to mean the same to Erlang.
    """
    pattern = f"^(?=(?i:{_escaped(prefix)})){names}$"
    query = {"name": pattern, "use_regex": "true", "sort": "name", "columns": _COLUMNS}
    return _request(login, "", {**query, "page": str(page), "page_size": str(MAX_PAGE)})


def queue_in(response: Response) -> ManagedQueue:
    """
    Return the queue in the response.

    Raises:
        BrokerError: the response has no queue; the class says why.
    """
    return _queue(_read(response))


def page_in(response: Response) -> tuple[Sequence[ManagedQueue], bool]:
    """The queues of a page, and whether it is the last. Raises as `queue_in`."""
    if response.status == 400 and _BEYOND in response.body:
        return (), True
    page = _read(response)
    items = _field(page, "items", list)
    is_last = _field(page, "page", int) >= _field(page, "page_count", int)
    return [_queue(strict_json.as_object(item, "items")) for item in items], is_last


def _request(login: ManagementLogin, rest: str, query: Mapping[str, str]) -> Request:
    known = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
    return Request(
        method="GET",
        target=f"/api/queues/{quote(login.vhost, safe='')}{rest}?{urlencode(query)}",
        headers=Headers((("Authorization", f"Basic {known}"), ("Accept", "application/json"))),
    )


def _escaped(text: str) -> str:
    """
    The text escaped for Erlang's `re`, which is PCRE: any character but letters and digits may
    follow a backslash.
    """
    return re.sub(r"([^A-Za-z0-9])", r"\\\1", text)


def _read(response: Response) -> dict[str, Any]:
    if response.status != 200:
        raise _error_of(response)
    try:
        answer = strict_json.load(response.body, "RabbitMQ's management", max_bytes=MAX_ANSWER)
        return strict_json.as_object(answer, "RabbitMQ's management")
    # not JSON: the broker is at fault, or another server that answered
    except InvalidRequest as error:
        raise OutcomeUnknown(str(error)) from error


def _error_of(response: Response) -> BrokerError:
    text = response.body[:200].decode(errors="replace")
    said = f"RabbitMQ's management: {text or 'no reason given'} ({response.status})"
    match response.status:
        case 401 | 403:
            return NotAuthorized(f"{said}; the user needs the tag management, and the vhost")
        case 404:
            return EntityNotFound(said)
        case status if status < 500:
            return InvalidRequest(said)
        case _:
            return Unavailable(said)


def _queue(item: Mapping[str, Any]) -> ManagedQueue:
    policy = item.get("effective_policy_definition")
    messages = item.get("messages")
    names = (item.get("policy"), item.get("operator_policy"))
    return ManagedQueue(
        name=_field(item, "name", str),
        kind=_field(item, "type", str),
        arguments=_mapping(item.get("arguments")),
        policy=None if policy is None else _mapping(policy),
        policies=tuple(str(name) for name in names if name),
        messages=messages if isinstance(messages, int) else None,
    )


def _mapping(value: object) -> Mapping[str, Any]:
    """
    The mapping; Erlang encodes an empty mapping as an empty list where it can't distinguish them.
    """
    return value if isinstance(value, dict) else {}


def _field(item: Mapping[str, Any], name: str, kind: type) -> Any:
    value = item.get(name)
    if not isinstance(value, kind):
        raise OutcomeUnknown(f"RabbitMQ's management: {name}: a {kind.__name__} expected")
    return value
