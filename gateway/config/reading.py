"""Converts tables to options classes by the types of their fields; reports all errors together."""

import enum
import types
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import ClassValidationError, Converter, IterableValidationError
from cattrs.gen import make_dict_structure_fn, override

from gateway.config.errors import ConfigError
from gateway.config.kinds import options_class
from gateway.config.options import (
    AccessEntry,
    AccountEntry,
    Config,
    EnvelopeKeyEntry,
    IssuerEntry,
    Namespace,
)
from gateway.config.problems import UnknownKeysError, problems_in
from gateway.config.secrets import Secret, SecretSource
from gateway.config.values import count, expected, not_one_of, seconds, size
from gateway.domain.access import AccessPolicy, TokenRule
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import InvalidRequest
from gateway.domain.option_fields import is_flat, is_number, is_secret, is_size
from gateway.domain.storage_queue import StorageAccount
from gateway.extensions.tables import kind_of
from gateway.frontends.issuers import IssuerOptions
from gateway.frontends.options import AmqpOptions, RestOptions, StorageQueueOptions
from gateway.pairing.options import PairOptions
from gateway.wire.amqp.options import EngineOptions

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]
Read = Callable[[Any], Any]

# Fields that are set from elsewhere in the file.
FILLED_LATER: Final = frozenset(
    {
        (Namespace, "name"),
        (Namespace, "plan"),
        (Namespace, "source"),
        (PairOptions, "entities"),
        (AmqpOptions, "namespace"),
        (AmqpOptions, "send_timeout"),
        (EngineOptions, "container_id"),
        (RestOptions, "secure"),
        (RestOptions, "send_timeout"),
        (StorageQueueOptions, "secure"),
    }
)
OFF: Final = "off"
_SECRET_LIST: Final = tuple[Secret, ...]


def structure(table: Mapping[str, Any], kind: type[T], secrets: SecretSource) -> T:
    """
    Create a value of that attrs class.

    Raises:
        ConfigError: keys are unknown or missing, or values are invalid.
    """
    try:
        value: T = _TableReader(secrets).read(table, kind)
    except ClassValidationError as error:
        raise ConfigError(problems_in(error)) from error
    return value


def option_names(kind: Any) -> set[str]:
    """The keys that a table of this class may have."""
    names: set[str] = set()
    for field in attrs.fields(kind) if attrs.has(kind) else ():
        if is_flat(field):
            names |= option_names(kind_of(kind, field))
        elif (kind, field.name) not in FILLED_LATER:
            names.add(field.name)
    return names


def without_none(kind: Any) -> Any:
    """The X of `X | None`; any other type as it is."""
    if get_origin(kind) in {Union, types.UnionType}:
        left = [arm for arm in get_args(kind) if arm is not types.NoneType]
        return left[0] if len(left) == 1 else kind
    return kind


class _TableReader:
    """A cattrs converter for the types of a configuration; it never converts silently."""

    def __init__(self, secrets: SecretSource) -> None:
        self._secrets = secrets
        self._converter = Converter()
        for kind, name in ((str, "a text"), (bool, "true or false")):
            self._converter.register_structure_hook(kind, _exactly(kind, name))
        self._converter.register_structure_hook(int, lambda value, _: count(value))
        self._converter.register_structure_hook(Path, _read_path)
        by_type: dict[Any, Hook] = {
            Secret: lambda value, _: secrets.read(value),
            Namespace: lambda value, _: self._read_namespace(value),
            AccessPolicy: lambda value, _: self.read(value, AccessEntry).value(),
            TokenRule: lambda value, _: self._read_token_rule(value),
            IssuerOptions: lambda value, _: self.read(value, IssuerEntry).value(),
            StorageAccount: lambda value, _: self.read(value, AccountEntry).value(),
            EnvelopeKey: lambda value, _: self.read(value, EnvelopeKeyEntry).value(),
        }
        # Hooks that are registered later take precedence.
        self._converter.register_structure_hook_factory(
            attrs.has, lambda kind: self._class_hook(kind)
        )
        self._converter.register_structure_hook_func(_is_enum, _read_enum)
        self._converter.register_structure_hook_factory(
            lambda kind: kind in by_type, lambda kind: by_type[kind]
        )

    def read(self, value: Any, kind: Any) -> Any:
        if get_origin(kind) is tuple and not isinstance(value, list):
            raise expected("a list", value)
        if get_origin(kind) is Mapping and not isinstance(value, dict):
            raise expected("a table", value)
        return self._converter.structure(value, kind)

    def _in_table(self, name: str, hook: Hook) -> Hook:
        """The hook of a field of the file, with the secrets of that table alone."""

        def read(value: Any, kind: Any) -> Any:
            with self._secrets.within(name):
                return hook(value, kind)

        return read

    def _read_namespaces(self, tables: Any) -> Any:
        """Read each with its own secrets alone."""
        found: dict[str, Any] = {}
        problems: list[Exception] = []
        for name, table in tables.items() if isinstance(tables, dict) else ():
            with self._secrets.within(f"namespaces.{name}"):
                try:
                    found |= self.read({name: table}, Mapping[str, Namespace])
                except IterableValidationError as error:
                    problems.extend(error.exceptions)
        if problems:
            raise IterableValidationError("", problems, Mapping[str, Namespace])
        return found or self.read(tables, Mapping[str, Namespace])

    def _read_token_rule(self, table: Any) -> Any:
        """Read a token rule; cattrs would take a text for a list of its letters."""
        claims = table.get("claims") if isinstance(table, dict) else None
        for name, values in claims.items() if isinstance(claims, dict) else ():
            if not isinstance(values, list):
                raise expected(f"claims.{name}: a list", values)
        return self._class_hook(TokenRule)(table, TokenRule)

    def _read_namespace(self, table: Any) -> Any:
        """Read a namespace, whose other keys are those of its URL's kind."""
        url = table.get("url") if isinstance(table, dict) else None
        if not isinstance(url, str):
            return self._class_hook(Namespace)(table, Namespace)
        try:
            kind = options_class(url)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error
        return self._class_hook(Namespace, options=kind)(table, Namespace)

    def _class_hook(self, kind: Any, **flat_kinds: Any) -> Hook:
        """A hook that takes the options of flat fields from the same table."""
        attrs.resolve_types(kind)
        flat = {f.name: kind_of(kind, f) for f in attrs.fields(kind) if is_flat(f)}
        flat_kinds = flat | flat_kinds
        overrides: dict[str, Any] = {}
        for field in attrs.fields(kind):
            hook = self._field_hook(field, flat_kinds.get(field.name, field.type))
            overrides[field.name] = override(
                struct_hook=self._in_table(field.name, hook) if kind is Config else hook,
                omit=(kind, field.name) in FILLED_LATER,
            )
        fill = make_dict_structure_fn(kind, self._converter, **overrides)
        known = option_names(kind).union(*map(option_names, flat_kinds.values()))

        def read(table: Any, _: Any) -> Any:
            if not isinstance(table, dict):
                raise expected("a table", table)
            # The label may be derived from the primary's name, which isn't known here.
            left = {"label": "", **table} if kind is PairOptions else dict(table)
            unknown = [UnknownKeysError(left.keys() - known, known)] if left.keys() - known else []
            for name, part in flat_kinds.items():
                left[name] = {key: left[key] for key in option_names(part) & left.keys()}
            try:
                value = fill(left, kind)
            except ClassValidationError as error:
                raise ClassValidationError("", [*error.exceptions, *unknown], kind) from error
            if unknown:
                raise ClassValidationError("", unknown, kind)
            return value

        return read

    def _field_hook(self, field: "attrs.Attribute[Any]", full_kind: Any) -> Hook:
        kind = without_none(full_kind)
        may_be_off = kind is not full_kind and kind not in {str, Path}
        read = self._unit_reader(field, kind) or (lambda value: self.read(value, kind))
        if kind == Mapping[str, Namespace]:
            read = self._read_namespaces

        def hook(value: Any, _: Any) -> Any:
            if may_be_off and value == OFF:
                return None
            found = read(value)
            if field.validator is not None:
                field.validator(None, field, found)
            return found

        return hook

    def _unit_reader(self, field: "attrs.Attribute[Any]", kind: Any) -> Read | None:
        """The reader of a field whose metadata say more than its type."""
        if is_size(field):
            return lambda value: kind(size(value))
        if kind is float:
            return _number if is_number(field) else seconds
        if kind is timedelta:
            return lambda value: timedelta(seconds=seconds(value))
        if kind is str and is_secret(field):
            return lambda value: self._secrets.read(value).text
        if kind == tuple[str, ...] and is_secret(field):
            return lambda value: tuple(secret.text for secret in self.read(value, _SECRET_LIST))
        return None


def _exactly(kind: type, name: str) -> Hook:
    def read(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise expected(name, value)
        return value

    return read


def _read_path(value: Any, _: Any) -> Path:
    if not isinstance(value, str) or not value:
        raise expected("a path", value)
    path = Path(value)
    if path.is_absolute() and not path.name:
        raise expected("a path below /", value)
    return path


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _read_enum(value: Any, kind: Any) -> Any:
    allowed = [member.value for member in kind]
    if value not in allowed:
        raise not_one_of(allowed, value)
    return kind(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expected("a number", value)
    return float(value)
