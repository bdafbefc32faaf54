"""Secrets that the configuration names: where they come from, and that no error shows one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.config.errors import ConfigError
from gateway.config.kinds import KINDS, options_class
from gateway.config.options import Config
from gateway.config.reading import FILLED_LATER, structure
from gateway.config.secrets import Secret, SecretSource, shown_reference
from gateway.domain import option_fields
from gateway.extensions.tables import kind_of
from tests.harness.known import ENTRIES, inner_type
from tests.harness.secret_files import write_secret

SECRET = "hush, a secret"


def command(program: str, **more: object) -> dict[str, object]:
    return {"command": [sys.executable, "-c", program], **more}


def source(folder: Path, **environ: str) -> SecretSource:
    return SecretSource(environ=environ, folder=folder)


def test_a_secret_is_a_credential_of_systemd(tmp_path: Path) -> None:
    (tmp_path / "orders-key").write_text(f"{SECRET}\n")
    (tmp_path / "orders-key").chmod(0o440)  # as systemd makes it, in a folder that it guards
    secrets = source(Path("/nowhere"), CREDENTIALS_DIRECTORY=str(tmp_path))

    assert secrets.read({"systemd_credential": "orders-key"}) == Secret(SECRET)
    assert secrets.warnings == []


@pytest.mark.parametrize("name", ["../key", "a/b", "..", "", "a b"])
def test_a_credential_is_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a name without slashes expected"):
        source(tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path)).read({"systemd_credential": name})


@pytest.mark.parametrize("kind", ["env", "systemd_credential"])
@pytest.mark.parametrize(
    "value",
    [
        "bm90IGZvciB5b3U=",
        "a+b/c",
        SECRET,
        "Endpoint=sb://a/;SharedAccessKeyName=a;SharedAccessKey=b",
    ],
)
def test_a_secret_in_the_place_of_its_name_is_not_shown(
    kind: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{kind}: .* expected, not its value$") as refused:
        source(tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path)).read({kind: value})

    assert value not in str(refused.value)


def test_without_systemd_a_credential_says_what_the_unit_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="LoadCredential=orders-key:PATH"):
        source(tmp_path).read({"systemd_credential": "orders-key"})


def test_a_missing_credential_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="orders-key: No such file"):
        source(tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path)).read(
            {"systemd_credential": "orders-key"}
        )


def test_a_file_that_is_too_long_for_a_secret_is_not_cut(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", "a" * 70000)

    with pytest.raises(ValueError, match="a secret of up to 65536 characters expected"):
        source(tmp_path).read({"file": "key"})


def test_a_secret_is_the_output_of_a_command_in_the_folder_of_the_configuration(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text(SECRET)
    program = "import os; print(open('key').read() + os.environ['MORE'] + '\\r\\n')"

    assert source(tmp_path, MORE="!").read(command(program)) == Secret(f"{SECRET}!")


def test_no_shell_reads_the_words_of_a_command(tmp_path: Path) -> None:
    words = ["/bin/echo", "$HOME", ";", "`id`"]

    assert source(tmp_path).read({"command": words}) == Secret("$HOME ; `id`")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (f"import sys; sys.stderr.write({SECRET!r}); sys.exit({SECRET!r})", "exit code 1"),
        ("pass", "a secret of up to 65536 characters expected"),
        ("print('a' * 70000)", "a secret of up to 65536 characters expected"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "isn't UTF-8 text"),
    ],
)
def test_a_command_that_fails_is_named_without_its_words_and_its_output(
    program: str, problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        source(tmp_path).read(command(f"{program}  # {SECRET}"))

    assert str(caught.value).startswith(f"command {sys.executable}: ")
    shown = f"{caught.value} {caught.value.__cause__} {capfd.readouterr()}"
    assert SECRET not in shown


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    program = f"print({SECRET!r}, flush=True); import time; time.sleep(3600)"

    with pytest.raises(ValueError, match=r"no output within 0\.2 s") as caught:
        source(tmp_path).read(command(program, timeout="200ms"))

    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("words", [[], [""], [7], ["a", 7], "a b"])
def test_a_command_is_a_list_of_texts(words: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a list of texts expected|must not be in this file"):
        source(tmp_path).read({"command": words})


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="command no-such-program: No such file"):
        source(tmp_path).read({"command": ["no-such-program", SECRET]})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"env": "KEY"}, {"env": "KEY"}),
        ({"file": "keys/a"}, {"file": "keys/a"}),
        ({"systemd_credential": "key"}, {"systemd_credential": "key"}),
        ({"command": ["vault"]}, {"command": ["vault"]}),
        (
            {"command": ["vault", "-t", SECRET], "timeout": "5s"},
            {"command": ["vault", "(2 more)"], "timeout": "5s"},
        ),
        ([{"env": "KEY"}, SECRET], [{"env": "KEY"}, "(not shown)"]),
        (SECRET, "(not shown)"),
        ({"env": "KEY", "text": SECRET}, "(not shown)"),
        (None, "(not shown)"),
    ],
)
def test_a_reference_is_shown_without_what_may_be_a_secret(value: object, shown: object) -> None:
    assert shown_reference(value) == shown
    assert SECRET not in json.dumps(shown)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n"])
def test_a_line_end_is_no_part_of_a_secret_wherever_it_comes_from(
    ends: str, tmp_path: Path
) -> None:
    """A variable has one where a Kubernetes Secret was made with `echo`."""
    write_secret(tmp_path / "key", f"{SECRET}{ends}")
    secrets = source(tmp_path, K=f"{SECRET}{ends}", CREDENTIALS_DIRECTORY=str(tmp_path))
    printed = command(f"print({SECRET + ends!r}, end='')")

    for reference in ({"env": "K"}, {"file": "key"}, {"systemd_credential": "key"}, printed):
        assert secrets.read(reference) == Secret(SECRET)


def test_a_variable_of_line_ends_is_empty(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="K: it is empty or missing"):
        source(tmp_path, K="\n").read({"env": "K"})


@attrs.frozen(kw_only=True)
class PlugInOptions:
    token: str = attrs.field(repr=False, metadata=option_fields.SECRET)
    old_tokens: tuple[str, ...] = attrs.field(default=(), repr=False, metadata=option_fields.SECRET)
    key: str = ""  # of a route


def test_an_option_is_a_secret_by_its_field_not_by_its_name(tmp_path: Path) -> None:
    secrets = source(tmp_path, NEW=SECRET, OLD=SECRET[::-1])
    table = {"token": {"env": "NEW"}, "old_tokens": [{"env": "OLD"}], "key": "orders"}

    options = structure(table, PlugInOptions, secrets)

    assert options == PlugInOptions(token=SECRET, old_tokens=(SECRET[::-1],), key="orders")
    with pytest.raises(ConfigError, match="token: a secret must not be in this file"):
        structure({"token": SECRET}, PlugInOptions, secrets)


READ_BY_OTHERS = {path.rpartition(".")[2] for path in ENTRIES}


def fields_of(kind: Any) -> Iterator["attrs.Attribute[Any]"]:
    attrs.resolve_types(kind)
    for field in attrs.fields(kind):
        if (kind, field.name) not in FILLED_LATER:
            yield field
            inner = inner_type(kind_of(kind, field))
            yield from (
                fields_of(inner) if attrs.has(inner) and field.name not in READ_BY_OTHERS else ()
            )


@pytest.mark.parametrize(
    "kind", [Config, *(options_class(f"{scheme}:x") for scheme in KINDS)], ids=str
)
def test_no_log_shows_an_option_that_is_a_secret(kind: type) -> None:
    found = list(fields_of(kind))

    assert [each.name for each in found if option_fields.is_secret(each) == each.repr] == []
