"""Changes of single values in the text of a configuration, whose comments and order stay."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

_HEADER: Final = re.compile(r"\s*\[\[?[^\[\]]+\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")


class CannotEdit(ValueError):
    """The configuration has a form that can't be edited; the error's text names the part."""


@attrs.frozen(kw_only=True)
class _Statement:
    """The lines of a header, or of one value."""

    first: int
    end: int  # behind the last line
    key: str = ""  # empty: a header


def with_value(text: str, section: str, wanted: dict[str, Any], key: str, value: str | None) -> str:
    """
    The text with `key = value` in the table `[section]` or `[[section]]` that has these values;
    `None` removes the key. `value` is TOML.

    Raises:
        CannotEdit: there is no such table with a header of its own, or several; or `key` is given
            by sections below it.
    """
    lines = text.splitlines(keepends=True)
    statements = list(_statements(lines))
    tables = [
        table
        for table in _tables(lines, statements, section)
        if wanted.items() <= _values(lines, table).items()
    ]
    if len(tables) != 1:
        name = ", ".join(f"{each} = {of!r}" for each, of in wanted.items())
        raise CannotEdit(f"no section [{section}] {name} with a header of its own".rstrip())
    (table,) = tables
    found = [each for each in table if each.key == key]
    new = [] if value is None else [f"{key} = {value}\n"]
    if found:
        (statement,) = found
        if new:
            new = [f"{key} = {value}{_comment_behind(lines[statement.first : statement.end])}"]
        lines[statement.first : statement.end] = new
    elif any(_header(f"{section}.{key}").match(line) for line in lines):
        raise CannotEdit(f"{key} has sections of its own, [[{section}.{key}]]")
    else:
        last = table[-1]
        if lines[last.end - 1 : last.end] and not lines[last.end - 1].endswith("\n"):
            lines[last.end - 1] += "\n"
        lines[last.end : last.end] = new
    return "".join(lines)


def _comment_behind(lines: Sequence[str]) -> str:
    """The end of a statement's last line: a comment, with the space before it, and the line end."""
    value = tomllib.loads("".join(lines))
    *before, last = lines
    for hash_sign in re.finditer(r"\s*#", last):
        try:
            if tomllib.loads("".join([*before, last[: hash_sign.start()]])) == value:
                return last[hash_sign.start() :]
        except tomllib.TOMLDecodeError:
            continue  # within a text
    return "\n"


def _header(section: str) -> re.Pattern[str]:
    return re.compile(rf"\s*\[{{1,2}}\s*{re.escape(section)}\s*\]{{1,2}}")


def _statements(lines: Sequence[str]) -> Iterator[_Statement]:
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        if not line or line.startswith("#"):
            number += 1
        elif _HEADER.match(lines[number]):
            yield _Statement(first=number, end=number + 1)
            number += 1
        else:
            end = _end_of_value(lines, number)
            found = _KEY.match(lines[number])
            yield _Statement(first=number, end=end, key=found[1] if found else "?")
            number = end


def _end_of_value(lines: Sequence[str], first: int) -> int:
    """The line behind the value that begins in that line and may have several."""
    for end in range(first + 1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[first:end]))
        except tomllib.TOMLDecodeError:
            continue
        return end
    raise CannotEdit(f"line {first + 1} isn't TOML")


def _tables(
    lines: Sequence[str], statements: Sequence[_Statement], section: str
) -> Iterator[list[_Statement]]:
    """The statements of each table with that name, its header first."""
    header = _header(section)
    current: list[_Statement] | None = None
    for statement in statements:
        if statement.key:
            if current is not None:
                current.append(statement)
            continue
        if current is not None:
            yield current
        current = [statement] if header.match(lines[statement.first]) else None
    if current is not None:
        yield current


def _values(lines: Sequence[str], table: Sequence[_Statement]) -> dict[str, Any]:
    return {
        key: value
        for each in table
        if each.key
        for key, value in tomllib.loads("".join(lines[each.first : each.end])).items()
    }
