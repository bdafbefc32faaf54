"""
A copy of the package without some extensions: neither their folders, nor their lines in the list.

As a plug-in of pytest this module refuses to run tests on any other package, and writes what that
one knows. As a program it does the same without tests.
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
_NAMES: Final = "PAIRGATE_WITHOUT"  # variable with the names of packages that must not be there
_KNOWN: Final = "PAIRGATE_KNOWN"  # variable with the file of what the copy knows


def copy_without(extensions: Sequence[Extension], folder: Path) -> None:
    """
    Put the package into that folder, without the extensions. All files but the list are links.

    Raises:
        ValueError: the list doesn't have each extension in two lines.
    """
    folders = (ROOT / "gateway", ROOT / "gateway/extensions")
    left_out = {folders[1], *(ROOT / each.package.replace(".", "/") for each in extensions)}
    for source in folders:
        target = folder / source.relative_to(ROOT)
        target.mkdir()
        for entry in os.scandir(source):
            if Path(entry.path) not in left_out and entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry.path)
    listing = folder / LISTING
    listing.unlink()
    text = (ROOT / LISTING).read_text()
    for each in extensions:
        text = _without_lines(each, text)
    listing.write_text(text)


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


def variables_of(extensions: Sequence[Extension], folder: Path) -> Mapping[str, str]:
    """The variables of a process whose package is the copy in that folder."""
    return {
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        "PYTHONSAFEPATH": "1",
        _NAMES: " ".join(each.package for each in extensions),
    }


def run_tests(extensions: Sequence[Extension], folder: Path, tests: Sequence[str]) -> Ran:
    """Run these tests on the copy in that folder, with it as the package."""
    known_file = folder / "known.json"
    environ = {**os.environ, **variables_of(extensions, folder), _KNOWN: str(known_file)}
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
    Path(os.environ[_KNOWN]).write_text(_known_here())


def _known_here() -> str:
    """
    Return as JSON the words that the package of this process knows.

    Raises:
        AssertionError: it is a whole one.
    """
    there = [each for each in os.environ[_NAMES].split() if find_spec(each) is not None]
    if there:
        raise AssertionError(f"{', '.join(there)} is still there")
    return json.dumps(known())


if __name__ == "__main__":
    sys.stdout.write(_known_here())
