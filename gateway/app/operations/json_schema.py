"""A JSON schema for the bodies of messages. Needs the extra `schema`."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.domain.errors import InvalidRequest, needs_extra
from gateway.wire.http import strict_json

# The library raises these for a schema that it can't compile; its own errors are ValueErrors.
_NO_SCHEMA = (
    *(ValueError, TypeError, LookupError, AttributeError, RecursionError, re.error),
    ZeroDivisionError,
)
_MOST_BYTES = 4 * 1024 * 1024  # of a schema's file
_DRAFTS = re.compile(r"https?://json-schema\.org/draft-0[467]/schema#?")
_ONE_OF_EACH_TYPE: tuple[Any, ...] = (None, True, 0, "", [], {})


@attrs.frozen(eq=False)
class Schema:
    """A compiled schema."""

    _problem_of: Callable[[Any], str | None]

    def check(self, tree: Any) -> None:
        """
        Raises:
            InvalidRequest: the value doesn't fit; the text names the place and the rule, and has
                nothing of the value but names of its fields.
        """
        problem = self._problem_of(tree)
        if problem is not None:
            raise InvalidRequest(problem)


def read_schema(path: Path) -> Schema:
    """
    Read and compile the schema in a file: JSON Schema, drafts 4, 6 and 7. A `$ref` may point into
    the file itself; nothing is fetched.

    Raises:
        Failure: the file can't be read, or isn't a schema; or the extra `schema` isn't installed.
    """
    try:
        import fastjsonschema  # only with the extra
    except ImportError as error:
        raise Failure(f"--schema: {needs_extra('schema')}", ExitCode.WRONG) from error
    tree = _loaded(path)
    try:
        _check_form(tree)
        validate = fastjsonschema.compile(
            tree, handlers={"http": _refuse, "https": _refuse, "file": _refuse}, use_default=False
        )
        _check_references(validate, fastjsonschema.JsonSchemaValueException)
    except _NO_SCHEMA as error:
        raise _wrong(path, f"not a schema of draft 4, 6 or 7: {error}") from error

    def problem_of(value: Any) -> str | None:
        try:
            validate(value)
        except fastjsonschema.JsonSchemaValueException as error:
            place = str(error.name).replace("data", "the body", 1)
            if error.rule is None:  # the schema is `false` here
                return f"{place}: no value expected"
            return f"{place}: {error.rule} {_short(error.rule_definition)} expected"
        except RecursionError:
            return "the body: it's nested too deeply for the schema"
        except ArithmeticError:  # `multipleOf` divides
            return "the body: a number is too large for the schema"
        return None

    return Schema(problem_of)


def _loaded(path: Path) -> Any:
    try:
        return strict_json.load(path.read_bytes(), "the schema", max_bytes=_MOST_BYTES)
    except OSError as error:
        raise _wrong(path, error.strerror or str(error)) from error
    except InvalidRequest as error:
        raise _wrong(path, str(error)) from error


def _check_form(tree: Any) -> None:
    """
    Check the draft: the library takes a schema of any other draft for one of draft 7. Raises
    ValueError.
    """
    if not isinstance(tree, dict | bool):
        raise ValueError("an object, true or false expected")  # noqa: TRY004 as all others
    draft = tree.get("$schema", "") if isinstance(tree, dict) else ""
    if draft != "" and not (isinstance(draft, str) and _DRAFTS.fullmatch(draft)):
        raise ValueError(f"$schema: {_short(draft)}")


def _check_references(validate: Callable[[Any], Any], misfit: type[Exception]) -> None:
    """Raises ValueError: a `$ref` leads in a circle, whatever the body is."""
    for value in _ONE_OF_EACH_TYPE:
        try:
            with suppress(misfit):
                validate(value)
        except RecursionError as error:
            raise ValueError("$ref: a reference leads back to itself") from error


def _refuse(uri: str) -> Any:
    raise ValueError(f"$ref: a place in this file expected, got {uri:.100}")


def _short(definition: Any) -> str:
    text = repr(definition)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _wrong(path: Path, text: str) -> Failure:
    return Failure(f"--schema {path}: {text}", ExitCode.WRONG)
