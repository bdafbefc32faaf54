"""Builds the packages. Each records the commit and the lock that it was built from."""

import gzip
import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
BUILT = Path("gateway", "built.json")


def built() -> str:
    """As JSON; of a source archive, which has no history, what it brings with it."""
    if (HERE / BUILT).exists():
        return (HERE / BUILT).read_text()
    commit = os.environ.get("PAIRGATE_COMMIT") or asked_commit()
    lock = hashlib.sha256((HERE / "locks" / "run.txt").read_bytes()).hexdigest()
    return json.dumps({"commit": commit, "lock": lock}) + "\n"


def asked_commit() -> str | None:
    """Of the history here; None: there is none, or no git."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        asked = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, BUILT).write_text(built())


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        Path(base_dir, BUILT).write_text(built())

    def make_archive(self, base_name: str, form: str, *where: str, **options: object) -> str:
        """
        The same sources make the same bytes: `SOURCE_DATE_EPOCH` is the date of all files, and
        the modes are not those that the umask of the clone has given them.
        """
        if form != "gztar" or "SOURCE_DATE_EPOCH" not in os.environ:
            return super().make_archive(base_name, form, *where, **options)
        date = int(os.environ["SOURCE_DATE_EPOCH"])

        def dated(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=date) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in sorted(Path(str(options["base_dir"])).rglob("*")):
                archive.add(path, recursive=False, filter=dated)
        return name


# The public address of the sources is the releaser's to give: `make dist URL=...`.
address = os.environ.get("PAIRGATE_URL")
setup(
    cmdclass={"build_py": BuildPy, "sdist": Sdist},
    project_urls={"Homepage": address} if address else {},
)
