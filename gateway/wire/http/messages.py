"""HTTP requests and responses as values that codecs build and parse, without I/O."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import attrs

from gateway.domain.bounded import remembered

REMEMBERED: Final = "X-Pairgate-Remembered"


def _as_tuple(items: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(items)


@attrs.frozen
class Headers:
    """
    Header fields in their original order and case; look-up ignores case (RFC 9110, 5.1).

    Values are text: bytes that aren't UTF-8 are read as Latin-1, as RFC 9110 5.5 allows.
    """

    items: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_as_tuple)
    # The first value of each name in lower case, made at the first lookup. This field is the only
    # one that changes, which has no visible effect.
    _by_name: dict[str, str] | None = attrs.field(default=None, init=False, eq=False, repr=False)

    @classmethod
    def of(cls, fields: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> "Headers":
        pairs: Iterable[tuple[str, str]] = fields.items() if isinstance(fields, Mapping) else fields
        return cls(tuple(pairs))

    def get(self, name: str) -> str | None:
        """The first value with that name, or None."""
        values = self._by_name
        if values is None:
            values = {key.lower(): value for key, value in reversed(self.items)}
            object.__setattr__(self, "_by_name", values)
        return values.get(name.lower())

    def all(self, name: str) -> list[str]:
        wanted = name.lower()
        return [value for key, value in self.items if key.lower() == wanted]


@attrs.frozen(kw_only=True)
class Request:
    """A whole request. `target` is in origin form, still percent-encoded."""

    method: str
    target: str
    headers: Headers = attrs.field(factory=Headers)
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, decoded once."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """
        The query's parameters; names keep their case, and of a repeated parameter the last counts.
        """
        return dict(_parameters(self.target.partition("?")[2]))


@remembered(128)  # receives of a client have the same one
def _parameters(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query, keep_blank_values=True)


@attrs.frozen(kw_only=True)
class Response:
    """A whole response. The server adds `Content-Length`, `Date` and `Connection`."""

    status: int
    headers: Headers = attrs.field(factory=Headers)
    body: bytes = b""
    close: bool = False  # end the connection after this response
    # Sent after the body, each part as it is yielded; then the connection ends.
    parts: AsyncGenerator[bytes, None] | None = None

    def remembered(self, from_memory: bool) -> "Response":
        """The response with the mark of an answer that is from memory, if it is."""
        return self.with_fields([(REMEMBERED, "true")]) if from_memory else self

    def with_fields(self, fields: Iterable[tuple[str, str]]) -> "Response":
        """The response with these header fields as well."""
        return attrs.evolve(self, headers=Headers((*self.headers.items, *fields)))
