"""
Tokens of Service Bus's SQL: names, constants, parameters, operators, each with its position.

    regular name    Color                   a letter, then letters, digits, '_'
    delimited name  [HR-Id]  "Contoso & N"  the closing mark is doubled inside
    text            'it''s'
    number          1894  1894.1204  0.5E-2
    parameter       @p
"""

import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs

from gateway.domain.errors import InvalidRequest

MAX_NESTING: Final = 32  # far from Python's limit of recursion
_MAX_INTEGER: Final = 2**63 - 1  # of a signed 64-bit number
_SHOWN: Final = 24  # characters of a token that an error repeats
_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IS", "NULL", "IN", "LIKE", "ESCAPE", "EXISTS", "TRUE", "FALSE"}
)
_WORD: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<name>[^\W\d_]\w*)
    | (?P<brackets>\[ (?: [^\]] | \]\] )+ \] (?!\]))
    | (?P<quotes>"    (?: [^"]  | ""   )+ "  (?!"))
    | (?P<text>'      (?: [^']  | ''   )* '  (?!'))
    | (?P<decimal>(?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? | [0-9]+[eE][+-]?[0-9]+)
    | (?P<integer>[0-9]+)
    | (?P<parameter>@\w+)
    | (?P<symbol><> | != | <= | >= | [-=<>+*/%().,;])
    """,
    re.VERBOSE,
)
_T = TypeVar("_T")
_UNCLOSED: Final = {"'": "closing '", '"': 'a name and closing "', "[": "a name and closing ]"}


class Sort(enum.Enum):
    NAME = "name"  # value: the name
    KEYWORD = "keyword"  # value: in capitals
    CONSTANT = "constant"  # value: str, int or float
    PARAMETER = "parameter"  # value: with its @
    SYMBOL = "symbol"
    END = "end"


@attrs.frozen
class Token:
    sort: Sort
    value: Any
    position: int  # of its first character, counted from 1
    written: str

    def __str__(self) -> str:
        """The token as errors show it."""
        shown = self.written[:_SHOWN] + ("..." if len(self.written) > _SHOWN else "")
        return "the end" if self.sort is Sort.END else repr(shown)


def refusal(what: str, position: int, expected: str, found: object) -> InvalidRequest:
    """The common form of errors in an expression."""
    return InvalidRequest(f"{what}, position {position}: {expected} expected, found {found}")


def tokenize(what: str, text: str) -> tuple[Token, ...]:
    """
    Split an expression; the last token is END. Linear in the length of the text.

    Raises:
        InvalidRequest: the text has `what`, the position and what is expected there.
    """
    tokens: list[Token] = []
    start = 0
    while start < len(text):
        match = _WORD.match(text, start)
        if match is None:
            expected = _UNCLOSED.get(text[start], "a name, a constant or an operator")
            raise refusal(what, start + 1, expected, repr(text[start : start + _SHOWN]))
        if match.lastgroup != "space":
            tokens.append(_token(what, match))
        start = match.end()
    return (*tokens, Token(Sort.END, None, len(text) + 1, ""))


@attrs.define(eq=False)
class Cursor:
    """A parser's position in the tokens of an expression, and its nesting depth."""

    what: str
    _tokens: tuple[Token, ...]
    _at: int = 0
    _nesting: int = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._at]

    @property
    def position(self) -> int:
        return self.token.position

    def advance(self) -> Token:
        """Return the current token, which must not be END, and move past it."""
        token = self.token
        self._at += 1
        return token

    def sees(self, sort: Sort, *values: str) -> bool:
        return self.token.sort is sort and self.token.value in values

    def sees_call(self) -> bool:
        """True if a name and an opening parenthesis are next."""
        if self.token.sort is not Sort.NAME:
            return False
        following = self._tokens[self._at + 1]  # at least END
        return following.sort is Sort.SYMBOL and following.value == "("

    def accept(self, sort: Sort, *values: str) -> bool:
        """Move past the current token if it is one of these; return True if it was."""
        seen = self.sees(sort, *values)
        self._at += seen
        return seen

    def expect(self, sort: Sort, value: str) -> None:
        if not self.accept(sort, value):
            raise self.unexpected(value)

    def unexpected(self, expected: str) -> InvalidRequest:
        return refusal(self.what, self.position, expected, self.token)

    def nested(self, parse: Callable[[], _T]) -> _T:
        """The result of `parse`, one level deeper. Raises InvalidRequest if that is too deep."""
        if self._nesting == MAX_NESTING:
            raise self.unexpected(f"up to {MAX_NESTING} levels of nesting")
        self._nesting += 1
        read = parse()
        self._nesting -= 1
        return read


def _token(what: str, match: re.Match[str]) -> Token:
    sort, value = _SORTS[match.lastgroup or ""]
    written, position = match[0], match.start() + 1
    if match.lastgroup == "name" and written.upper() in _KEYWORDS:
        return Token(Sort.KEYWORD, written.upper(), position, written)
    token = Token(sort, value(written), position, written)
    if sort is Sort.CONSTANT and not _in_range(token.value):
        raise refusal(what, position, "a number of 64 bits", token)
    return token


def _in_range(value: str | float) -> bool:
    if isinstance(value, int):
        return value <= _MAX_INTEGER
    return isinstance(value, str) or math.isfinite(value)


_SORTS: Final[Mapping[str, tuple[Sort, Callable[[str], Any]]]] = {
    "name": (Sort.NAME, str),
    "brackets": (Sort.NAME, lambda written: written[1:-1].replace("]]", "]")),
    "quotes": (Sort.NAME, lambda written: written[1:-1].replace('""', '"')),
    "text": (Sort.CONSTANT, lambda written: written[1:-1].replace("''", "'")),
    "decimal": (Sort.CONSTANT, float),
    "integer": (Sort.CONSTANT, int),
    "parameter": (Sort.PARAMETER, str),
    "symbol": (Sort.SYMBOL, str),
}
