"""The page of controls names tests that exist; and a control that is a rule for the source."""

import ast
import re
import tomllib
from pathlib import Path

import apsw
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "security-controls.md"
# Modules and builtins that make code or commands of text.
MODULES = {"pickle", "marshal", "shelve", "yaml", "code", "runpy"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
# Writes the constructor of a class from the names of its fields, as attrs does.
ALLOWED = {"gateway/domain/values.py"}


def test_each_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", PAGE.read_text())

    assert len(named) > 50
    for path, test in named:
        assert re.search(rf"def {test}\(", (ROOT / path).read_text()), f"{path}::{test}"


@pytest.mark.slow
def test_the_product_runs_no_text_as_code() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {what}"
        for path in (ROOT / "gateway").rglob("*.py")
        if str(path.relative_to(ROOT)) not in ALLOWED
        for node in ast.walk(ast.parse(path.read_text()))
        if (what := _dangerous(node))
    ]

    assert found == []


def test_h11_has_its_fix_of_malformed_chunks() -> None:
    (version,) = re.findall(
        r"^h11==([\d.]+)", (ROOT / "locks" / "run.txt").read_text(), re.MULTILINE
    )

    assert tuple(map(int, version.split("."))) >= (0, 16)


def test_sqlite_has_its_fix_of_the_reset_of_logs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert "apsw>=3.51.3" in project["dependencies"]
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)


def test_the_audit_asks_about_the_packages_of_each_extra() -> None:
    (recipe,) = re.findall(
        r"^audit:.*\n((?:\t.*\n)+)", (ROOT / "release.mk").read_text(), re.MULTILINE
    )
    asked = "".join((ROOT / lock).read_text() for lock in re.findall(r"-r (\S+)", recipe))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [package for extra in project["optional-dependencies"].values() for package in extra]

    assert extras
    for package in extras:
        assert re.search(rf"^{package.partition('>')[0]}==", asked, re.MULTILINE), package


def test_the_image_with_the_extras_has_the_versions_that_are_tested_and_audited() -> None:
    locks = {
        name: set(re.findall(r"^[\w.-]+==\S+", (ROOT / "locks" / name).read_text(), re.MULTILINE))
        for name in ("run.txt", "extras.txt", "test.txt")
    }

    assert locks["run.txt"] < locks["extras.txt"] < locks["test.txt"]


def _dangerous(node: ast.AST) -> str:
    match node:
        case ast.Import(names=names) if MODULES & {name.name.partition(".")[0] for name in names}:
            return "import"
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
            return "import"
        case ast.Call(func=ast.Name(id=name)) if name in BUILTINS:
            return name
        case ast.keyword(arg="shell", value=ast.Constant(value=True)):
            return "shell=True"
        case _:
            return ""
