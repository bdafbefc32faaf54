"""
Clones of other people's repositories in `SOURCES`. Their tests are run, and never copied into this
repository; a suite without its clone isn't run.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import attrs

from tests.interop.gateways import BUILD

SOURCES: Final = BUILD / "sources"


@attrs.frozen
class Clone:
    """A repository of GitHub at a commit."""

    repository: str
    commit: str

    @property
    def place(self) -> Path:
        return SOURCES / self.repository.rpartition("/")[2]

    def missing(self) -> str:
        """The reason why it can't be unpacked on this machine; empty: it can."""
        if not self.place.exists():
            return f"a clone of {self.repository} in {self.place}"
        return "" if shutil.which("git") else "git"

    def unpack(self, folder: Path, *paths: str) -> None:
        """Leave in `folder` the files of that commit alone; with `paths`, only those."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        packed = subprocess.run(
            ["git", "archive", self.commit, *paths],
            cwd=self.place,
            stdout=subprocess.PIPE,
            check=True,
        )
        subprocess.run(["tar", "--extract"], cwd=folder, input=packed.stdout, check=True)
