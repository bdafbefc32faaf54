"""
The configuration in effect as a TOML text: with each default, and a reference for each secret.
"""

import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import attrs

from gateway.config.options import (
    AccessEntry,
    AccountEntry,
    Config,
    EnvelopeKeyEntry,
    IssuerEntry,
)
from gateway.config.reading import FILLED_LATER, OFF, without_none
from gateway.config.secrets import Secret, shown_reference
from gateway.domain.option_fields import is_flat, is_number, is_secret, is_size

# Lists whose entries are read by a class of their own: shown as they are in the file.
_ENTRIES: Final[Mapping[str, type]] = {
    "issuers": IssuerEntry,
    "access": AccessEntry,
    "accounts": AccountEntry,
    "envelope_keys": EnvelopeKeyEntry,
}
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_USER_INFO: Final = re.compile(r"(://[^/@\s:]*):[^/@\s]*@")
_PARAMETER: Final = re.compile(
    r"\b(sig|signature|SharedAccessKey|SharedAccessSignature|AccountKey|password|token)=[^;&\s]+",
    re.IGNORECASE,
)
_MOST_INLINE: Final = 5  # entries of a table that is written in one line


def shown_table(config: Config, written: Mapping[str, Any]) -> dict[str, Any]:
    """
    The configuration as a table of plain values, without secrets. `written` is the table of its
    file, which has the references to secrets.
    """
    return _table_of(config, written)


def toml_of(table: Mapping[str, Any]) -> str:
    """The table as a TOML text, with a section for each large table in it."""
    return "\n".join(_sections(table, ())) + "\n"


def _table_of(value: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    kind = type(value)
    attrs.resolve_types(kind)
    found: dict[str, Any] = {}
    for field in attrs.fields(kind):
        if (kind, field.name) in FILLED_LATER or not field.init:
            continue
        inner = getattr(value, field.name)
        if is_flat(field):
            found |= _table_of(inner, written) if attrs.has(type(inner)) else {}
        elif is_secret(field) or field.name in _ENTRIES:
            if field.name in written:
                found[field.name] = _as_written(field.name, written[field.name])
        elif (shown := _shown(inner, field, written.get(field.name))) is not None:
            found[field.name] = shown
    return found


def _as_written(name: str, value: object) -> object:
    """A reference, or a list of tables with references in them."""
    if name not in _ENTRIES or not isinstance(value, list):
        return shown_reference(value)
    secrets = {f.name for f in attrs.fields(_ENTRIES[name]) if _has_secret(f)}
    return [
        {
            key: shown_reference(inner) if key in secrets else _plain(inner)
            for key, inner in each.items()
        }
        for each in value
        if isinstance(each, dict)
    ]


def _has_secret(field: "attrs.Attribute[Any]") -> bool:
    return "Secret" in str(field.type)


def _shown(value: Any, field: "attrs.Attribute[Any]", written: Any) -> Any:
    kind = without_none(field.type)
    if value is None:
        may_be_off = kind in {float, int, timedelta}
        return OFF if may_be_off else None
    if is_size(field):
        return round(value)
    if kind is float and not is_number(field):
        return _duration(value)
    if isinstance(value, timedelta):
        return _duration(value.total_seconds())
    return _nested(value, written)


def _nested(value: Any, written: Any) -> Any:
    if attrs.has(type(value)):
        return _table_of(value, written if isinstance(written, dict) else {})
    if isinstance(value, Mapping):
        tables = written if isinstance(written, dict) else {}
        return {str(key): _nested(each, tables.get(key)) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset):
        padded = [*(written if isinstance(written, list) else []), *[None] * len(value)]
        return [_nested(each, padded[index]) for index, each in enumerate(value)]
    return _plain(value)


def _plain(value: Any) -> Any:
    match value:
        case enum.Enum():
            return value.value
        case bool() | int() | float():
            return value
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case Secret():
            return shown_reference(None)
    text = _USER_INFO.sub(r"\1:(not shown)@", str(value))
    return _PARAMETER.sub(r"\1=(not shown)", text)


def _duration(seconds: float) -> str:
    whole = round(seconds * 1000)
    return f"{whole}ms" if whole % 1000 else f"{whole // 1000}s"


def _sections(table: Mapping[str, Any], path: Sequence[str]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if _needs_section(value, path)}
    simple = {key: value for key, value in table.items() if key not in inner}
    if path and (simple or not inner):
        yield f"\n[{'.'.join(map(_key, path))}]"
    yield from (f"{_key(key)} = {toml_value(value)}" for key, value in simple.items())
    for key, value in inner.items():
        here = (*path, key)
        if isinstance(value, dict):
            yield from _sections(value, here)
            continue
        for each in value:
            yield f"\n[[{'.'.join(map(_key, here))}]]"
            yield from (f"{_key(name)} = {toml_value(one)}" for name, one in each.items())


def _needs_section(value: Any, path: Sequence[str]) -> bool:
    if isinstance(value, list):
        return not path and bool(value) and all(isinstance(each, dict) for each in value)
    if not isinstance(value, dict):
        return False
    return not path or list(path) == ["namespaces"] or len(value) > _MOST_INLINE


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def toml_value(value: Any) -> str:
    """The value as TOML in one line."""
    if isinstance(value, Mapping):
        pairs = _joined(f"{_key(key)} = {toml_value(each)}" for key, each in value.items())
        return f"{{ {pairs} }}"
    if isinstance(value, list):
        return f"[{_joined(map(toml_value, value))}]"
    # A JSON string is a TOML string, except for characters that JSON writes as two halves.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
