"""
Planted bugs show the worth of a judge.

A planted bug is a diff of the package `gateway`, below a header of lines `key: text`:

    name   of the bug, for people and command lines; the name of the file is made of it
    rule   that the bug breaks
    law    a part of the sentence in which the simulation's judge must complain; may be repeated
    seeds  of the simulation in which it must do so
    found  the seeds that did so when the diff was made; they are tried first

The diff is applied to a copy of the package, and a process of its own runs there. So nothing of the
bug is left behind, and a diff changes the code as a person would, whatever is private.

The process that calls a function is forked from one that has imported the package, since the
imports are most of many calls. If a diff changes only the bodies of functions, the forked process
puts them in the place of those that it has. Otherwise it starts again, in the copy.
"""

import atexit
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, ParamSpec, TypeVar, cast

import attrs
import trio

from tests.harness.fork_server import ForkServer

ROOT: Final = Path(__file__).parents[2]
REQUIRED: Final = frozenset({"name", "rule"})
OPTIONAL: Final = frozenset({"law", "seeds", "found"})

P = ParamSpec("P")
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class PlantedBug:
    """A diff, and the fields of its header."""

    path: Path
    name: str
    rule: str
    laws: tuple[str, ...] = ()
    seeds: range = range(0)
    found: tuple[int, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "PlantedBug":
        """
        Raises:
            ValueError: a line of the header is missing or unknown.
        """
        header, _, _ = path.read_text().partition("\n\ndiff --git ")
        fields: dict[str, list[str]] = {}
        for line in header.splitlines():
            key, _, text = line.partition(":")
            fields.setdefault(key, []).append(text.strip())
        wrong = REQUIRED - fields.keys() | fields.keys() - REQUIRED - OPTIONAL
        if wrong:
            raise ValueError(f"{path}: missing or unknown in the header: {', '.join(wrong)}")
        first, _, last = fields.get("seeds", ["0--1"])[0].partition("-")
        return cls(
            path=path,
            name=fields["name"][0],
            rule=fields["rule"][0],
            laws=tuple(fields.get("law", ())),
            seeds=range(int(first), int(last) + 1),
            found=tuple(int(each) for each in fields.get("found", ())),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def slug(self) -> str:
        """The name of the file, as the name of the bug gives it."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.replace("'", "").lower())

    @property
    def in_order(self) -> tuple[int, ...]:
        """The seeds, those first that will probably find the bug."""
        return tuple(dict.fromkeys((*self.found, *self.seeds)))

    def run(self, *arguments: str) -> int:
        """
        Run `python ARGUMENTS` with the bug; return its exit code. Its output goes where ours goes.
        """
        with self._planted() as folder:
            return subprocess.run([sys.executable, *arguments], env=environment(folder)).returncode

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call a function with the bug; return its result. Both are pickled, and a function is pickled
        as its module's name: it can't be one of a test module, which pytest names otherwise.

        Raises:
            CalledProcessError: it raised; its traceback is on stderr.
        """
        with self._planted() as folder:
            question, answer = folder / "question", folder / "answer"
            question.write_bytes(pickle.dumps((function, args, kwargs)))
            call = partial(
                _fork_server().run,
                Path.cwd(),
                [str(folder), *_changed_files(self.path)],
                variables={"PYTHONPATH": environment(folder)["PYTHONPATH"]},
                module="tests.harness.planted_call",
                imports=[function.__module__],
            )
            done = trio.run(call)
            sys.stdout.write(done.stdout.decode())
            sys.stderr.write(done.stderr.decode())
            done.check_returncode()
            return cast(T, pickle.loads(answer.read_bytes()))

    @contextmanager
    def _planted(self) -> Iterator[Path]:
        """A temporary folder with the package, which has the bug."""
        with TemporaryDirectory(prefix="pairgate-planted-") as name:
            folder = Path(name)
            share_package(folder, self.path)
            apply(self.path, folder)
            yield folder


def bugs_below(folder: Path) -> tuple[PlantedBug, ...]:
    """
    All planted bugs of that folder and those in it, by their path.

    Raises:
        ValueError: there are none, so a test of each would pass without any.
    """
    bugs = tuple(PlantedBug.read(path) for path in sorted(folder.rglob("*.diff")))
    if not bugs:
        raise ValueError(f"no planted bugs in {folder}")
    return bugs


@cache
def _fork_server() -> ForkServer:
    """The one of this process of tests; it ends with it."""
    server = ForkServer.start(environment(ROOT))
    atexit.register(server.end)
    return server


def _changed_files(diff: Path) -> list[str]:
    return re.findall(r"^--- a/(.*)$", diff.read_text(), re.MULTILINE)


def share_package(folder: Path, diff: Path) -> None:
    """
    Put the package into that folder, with copies of the files that the diff changes. All others are
    links, with their compiled form: the copy costs little, and only changed files are compiled.
    """
    changed = {ROOT / name for name in _changed_files(diff)}
    parts = {parent for path in changed for parent in path.parents}

    def share(source: Path, target: Path) -> None:
        if source in changed:
            shutil.copyfile(source, target)
        elif source in parts or (source.name == "__pycache__" and source.parent in parts):
            target.mkdir()
            for entry in os.scandir(source):
                share(source / entry.name, target / entry.name)
        else:
            target.symlink_to(source)

    share(ROOT / "gateway", folder / "gateway")


def apply(diff: Path, folder: Path) -> None:
    """
    Apply a diff to the package in that folder.

    Raises:
        ValueError: the package has changed where the diff changes it; the text names the lines.
    """
    env = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    # Otherwise a repository around the folder would decide which files are there.
    env["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    command = ["git", "apply", str(diff)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"{diff.name} doesn't apply to gateway any more: {done.stderr.strip()}")


def environment(folder: Path) -> dict[str, str]:
    """The one in which `gateway` is that of the folder, and `tests` and `benchmarks` are ours."""
    found = os.pathsep.join((str(folder), str(ROOT)))
    return {**os.environ, "PYTHONPATH": found, "PYTHONSAFEPATH": "1"}
