"""
A copy of the package without one extension: neither its folder, nor its line in the list.

As a plug-in of pytest this module refuses to run tests on any other package, and writes what that
one knows.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import attrs

from gateway.extensions.extension import Extension
from tests.harness.known import known

ROOT: Final = Path(__file__).parents[2]
LISTING: Final = "gateway/extensions/listing.py"
_NAME: Final = "PAIRGATE_WITHOUT"  # variable with the name of the package that must not be there
_KNOWN: Final = "PAIRGATE_KNOWN"  # variable with the file of what the copy knows


def copy_without(extension: Extension, folder: Path) -> None:
    """
    Put the package into that folder, without the extension. All files but the list are links.

    Raises:
        ValueError: the list doesn't have the extension in two lines.
    """
    removed, extensions = ROOT / extension.package.replace(".", "/"), ROOT / "gateway/extensions"
    for source in (ROOT / "gateway", extensions):
        target = folder / source.relative_to(ROOT)
        target.mkdir()
        for entry in os.scandir(source):
            if Path(entry.path) not in {extensions, removed} and entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry.path)
    listing = folder / LISTING
    listing.unlink()
    listing.write_text(_without_lines(extension, (ROOT / LISTING).read_text()))


def _without_lines(extension: Extension, listing: str) -> str:
    alias = re.search(rf"^from {extension.package} import EXTENSION as (\w+)\n", listing, re.M)
    if alias is None:
        raise ValueError(f"{LISTING} doesn't import {extension.package}")
    text, entries = re.subn(rf"^    {alias[1]},.*\n", "", listing, flags=re.M)
    if entries != 1:
        raise ValueError(f"{LISTING} has no line of its own for {alias[1]}")
    return text.replace(alias[0], "")


@attrs.frozen
class Ran:
    code: int  # pytest's
    output: str
    known: Mapping[str, Sequence[str]]  # as `known.known`


def run_tests(extension: Extension, folder: Path, tests: Sequence[str]) -> Ran:
    """Run these tests on the copy in that folder, with it as the package."""
    known_file = folder / "known.json"
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        "PYTHONSAFEPATH": "1",
        _NAME: extension.package,
        _KNOWN: str(known_file),
    }
    options = ["-p", __name__, "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-o", "pythonpath=", *tests],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
    )
    knows = json.loads(known_file.read_text()) if known_file.exists() else {}
    return Ran(done.returncode, done.stdout + done.stderr, knows)


def pytest_configure() -> None:
    """Fail if the package in this process is a whole one."""
    if find_spec(os.environ[_NAME]) is not None:
        raise AssertionError(f"{os.environ[_NAME]} is still there")
    Path(os.environ[_KNOWN]).write_text(json.dumps(known()))
