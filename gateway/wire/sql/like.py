"""
LIKE: `%` matches any text, `_` any one character; the escape character makes the next one literal.

A pattern is its pieces between the `%`: the first is at the beginning, the last at the end, and the
others are found from left to right, each as early as possible. No piece is tried twice, so no
pattern takes more steps than its length times the text's. Where the steps of all LIKEs of a filter
are too many, the result is unknown.
"""

import re
from collections.abc import Callable
from typing import Final

_ANY_TEXT: Final = "%"
_ANY_CHARACTER: Final = "_"

Spend = Callable[[int], bool]
"""Takes that many steps; False: there are no more."""


def compile_like(pattern: str, escape: str | None = None) -> Callable[[str, Spend], bool | None]:
    """
    The test whether a text matches the pattern, case-sensitively. None: there are no more steps.

    Raises:
        ValueError: the escape isn't one character, or no character follows it.
    """
    if escape is not None and len(escape) != 1:
        raise ValueError("one character as escape")
    pieces = [_Piece(characters) for characters in _split(pattern, escape)]
    if len(pieces) == 1:
        return lambda text, spend: pieces[0].is_all(text)
    first, *middle, last = pieces

    def is_like(text: str, spend: Spend) -> bool | None:
        end = len(text) - last.length
        if end < first.length or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        start = first.length
        for piece in middle:
            if not spend(piece.wild_steps(end - start)):
                return None
            found = piece.find(text, start, end)
            spend((end if found < 0 else found) - start)
            if found < 0:
                return False
            start = found + piece.length
        return True

    return is_like


class _Piece:
    """Adjacent characters of a pattern; None matches any character."""

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        self._literal = "".join(c or "" for c in characters)
        self._wild: re.Pattern[str] | None = None
        if None in characters:
            source = "".join("." if c is None else re.escape(c) for c in characters)
            self._wild = re.compile(source, re.DOTALL)

    def wild_steps(self, distance: int) -> int:
        """The most steps of `find`, beside one for each character that it passes."""
        return 0 if self._wild is None else distance * self.length

    def is_all(self, text: str) -> bool:
        return len(text) == self.length and self.is_at(text, 0)

    def is_at(self, text: str, start: int) -> bool:
        if self._wild is None:
            return text.startswith(self._literal, start)
        return self._wild.match(text, start) is not None

    def find(self, text: str, start: int, end: int) -> int:
        """The start of the first match between the two positions; -1: no match."""
        if self._wild is None:  # ten times faster, and linear in the worst case
            return text.find(self._literal, start, end)
        match = self._wild.search(text, start, end)
        return -1 if match is None else match.start()


def _split(pattern: str, escape: str | None) -> list[list[str | None]]:
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise ValueError("a character after the escape")
            pieces[-1].append(literal)
        elif character == _ANY_TEXT:
            pieces.append([])
        else:
            pieces[-1].append(None if character == _ANY_CHARACTER else character)
    return pieces
