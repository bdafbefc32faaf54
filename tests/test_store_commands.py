"""`pairgate store ...`: its output and exit codes. As processes: tests/e2e/test_store.py."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from tests.stores import make_stores

CONFIG = """
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]
[namespaces.far]
url = "servicebus+http://127.0.0.1:1"
[pairing]
primary = "east"
secondary = "far"
label = "east"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pairgate.toml"
    file.write_text(CONFIG.partition("[namespaces.far]")[0])
    make_stores(file)
    file.write_text(CONFIG)
    pairgate("send", "orders", "hello", "--namespace", "east")
    return tmp_path


def pairgate(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("check nowhere", 2, "no such file, and no such namespace; there are east, far"),
        ("check far", 2, "namespace far isn't an embedded store"),
        ("check", 2, "Missing argument 'STORE'"),
        ("check east --config missing.toml", 2, "missing.toml"),
        ("check embedded:nowhere.db", 1, "nowhere.db: there is no store"),
        ("check pairgate.toml", 1, "not a store"),
        ("check /", 1, "there is no store"),
        ("backup east", 2, "Missing argument 'TARGET'"),
        ("backup east pairgate.toml", 1, "pairgate.toml: already there"),
        ("backup east missing/copy.db", 1, "No such file or directory"),
        ("backup pairgate.toml copy.db", 1, "not a store"),
        ("compact nowhere.db", 2, "no such file"),
        ("compact embedded:nowhere.db", 1, "nowhere.db: there is no store"),
        ("compact pairgate.toml", 1, "not a store"),
        ("copy east", 2, "No such command"),
    ],
)
def test_an_impossible_command_ends_in_words(
    folder: Path, arguments: str, code: int, text: str
) -> None:
    pairgate("provision")
    result = pairgate("store", *arguments.split())

    assert result.exit_code == code, result.output
    assert text in result.stderr
    assert isinstance(result.exception, SystemExit)
    assert not (folder / "nowhere.db").exists()


def test_people_and_machines_are_told_the_same(folder: Path) -> None:
    pairgate("provision")
    lines = pairgate("store", "check", "east")
    value = json.loads(pairgate("store", "check", "east.db", "--json").stdout)

    assert (lines.exit_code, value["good"], value["problems"]) == (0, True, [])
    assert f"good    {folder / 'east.db'}: " in lines.stdout
    assert "intact" in lines.stdout


def test_a_file_needs_no_configuration(folder: Path) -> None:
    pairgate("provision")
    (folder / "pairgate.toml").write_text("bogus")

    assert pairgate("store", "check", "east.db").exit_code == 0
    assert pairgate("store", "check", "east").exit_code == 2


def test_names_in_a_store_do_not_steer_a_terminal(folder: Path) -> None:
    pairgate("provision")
    copy = pairgate("store", "backup", "east", "a\x1b[2Jb.db")
    found = pairgate("store", "check", "a\x1b[2Jb.db")

    assert (copy.exit_code, found.exit_code) == (0, 0)
    assert "\x1b" not in copy.stdout + found.stdout
