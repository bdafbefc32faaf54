"""
A control call: one request of operators to the endpoint `admin`.

All of it comes from its row: the path, the right, the JSON of both sides, the line of the audit
log, the description in OpenAPI, and the client's request. A process executes it as the part says
that owns it (`frontends/admin/control`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import attrs

from gateway.domain.access import Right
from gateway.domain.errors import InvalidRequest
from gateway.wire.pairgate import admin_json

Q = TypeVar("Q")
A = TypeVar("A")

PREFIX: Final = "/v1/"
ANSWER_SECONDS: Final = 10.0  # longer than a namespace has for its own answer
OF_NAMESPACE: Final = (404, 503, 504)  # refusals of a call that asks a namespace


@attrs.frozen
class NoKeys:
    """A request that has nothing to say but its path."""


@attrs.frozen(kw_only=True, eq=False)
class ControlCall(Generic[Q, A]):
    """A row of the table. The classes of `request` and `answer` are the keys of their JSON."""

    name: str  # the last part of the path
    summary: str
    request: type[Q]
    answer: type[A]
    # or GET: it changes nothing, and its request is the query. A key of it that is no tuple has a
    # converter from text.
    method: str = "POST"
    fixed: Mapping[str, Any] = attrs.field(factory=dict)  # keys of `request` that the path implies
    required: Sequence[str] = ()  # keys of `request` that have a default elsewhere
    # The class of the answer to a request that only counts: its `executes` is false. The right
    # Listen is enough for it. None: the right Manage is needed for each request.
    survey: type[A] | None = None
    refusals: Sequence[int] = ()  # statuses that other calls don't have
    missing: str = ""  # what keeps a process from it that has no part for it
    audited: Sequence[str] = ("changed", "before", "after")  # keys of the answer
    patience: float = ANSWER_SECONDS  # of a client
    old_path: str = ""  # of commands of other versions, which don't send the type of the body

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.name}"

    def is_at(self, method: str, path: str) -> bool:
        """True if a request with that method and path is for this call."""
        read = self.reads and method == "HEAD"
        return (read or method == self.method) and path in {self.path, self.old_path or self.path}

    @property
    def why_not(self) -> str:
        """The refusal of a process without the part that executes the call."""
        return f"this process {self.missing or f'has nothing to {self.name}'}"

    @property
    def reads(self) -> bool:
        """True if no request changes anything."""
        return self.method == "GET"

    @property
    def least_right(self) -> Right:
        """The right that each request needs, on every entity."""
        return Right.LISTEN if self.reads or self.survey is not None else Right.MANAGE

    def right_of(self, request: Q) -> Right:
        """The right that this request needs, on every entity."""
        return self.least_right if self.reads or self._counts(request) else Right.MANAGE

    @property
    def keys(self) -> Sequence[Any]:
        """The attributes of `request` that a client gives."""
        request: Any = self.request
        return [each for each in attrs.fields(request) if each.name not in self.fixed]

    def is_required(self, key: Any) -> bool:
        return key.default is attrs.NOTHING or key.name in self.required

    def target(self, request: Q) -> str:
        """The path with the query."""
        values = self._values(request) if self.reads else {}
        texts = {name: _in_query(value) for name, value in values.items() if value is not None}
        query = urlencode(texts, safe="*,/")
        return f"{self.path}?{query}" if query else self.path

    def build(self, request: Q) -> bytes:
        """
        The body; empty for GET. Keys with their defaults aren't sent: an earlier version refuses
        those that it doesn't know.
        """
        if self.reads:
            return b""
        given = self._values(request)
        for key in self.keys:
            if key.name not in self.required and getattr(request, key.name) == key.default:
                del given[key.name]
        return json.dumps(given).encode()

    def parse(self, data: bytes, query: Mapping[str, str]) -> Q:
        """
        The request from its body, or for GET from the query, whose other keys are ignored. An empty
        body has no keys.

        Raises:
            InvalidRequest: it is malformed; the text names the call, the key and the limit.
        """
        if self.reads:
            given = {key.name: query[key.name] for key in self.keys if key.name in query}
            lists = {key.name for key in self.keys if isinstance(key.default, tuple)}
            return self.request(
                **{n: tuple(text.split(",")) if n in lists else text for n, text in given.items()}
            )
        value = admin_json.load(data, self.name)
        for name in self.required:
            if name not in value:
                raise InvalidRequest(f"{self.name}: {name}: is missing")
        request = admin_json.structured({**self.fixed, **value}, self.request, self.name)
        for name, fixed in self.fixed.items():
            if getattr(request, name) != fixed:
                raise InvalidRequest(f"{self.name}: {name}: the path says another one")
        return request

    def build_answer(self, answer: A) -> bytes:
        return admin_json.build_answer(answer)

    def parse_answer(self, data: bytes, request: Q) -> A:
        """
        Parse the answer to that request. Unknown keys, which another version may have, are ignored.

        Raises:
            MessageError: it isn't one.
        """
        kind = self.survey if self.survey is not None and self._counts(request) else self.answer
        return admin_json.parse_answer(data, kind, f"the answer to {self.path}")

    def _counts(self, request: Any) -> bool:
        return self.survey is not None and not request.executes

    def _values(self, request: Q) -> dict[str, Any]:
        value = admin_json.value_of(request)
        return {key.name: value[key.name] for key in self.keys}


def _in_query(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
