"""The wheel and the source archive: their files, and a first message with nothing else."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from email import message_from_string
from pathlib import Path

import attrs
import pytest

from gateway.config.shipped import example_names
from gateway.demo.ports import free_port
from tests.e2e.processes import ROOT
from tests.page_commands import commands
from tests.pages import blocks

pytestmark = pytest.mark.slow

CONF = ROOT / "conf"
FIRST = "\n".join(blocks("docs/tutorial/first-message.md", "sh"))
WEB = "gateway/frontends/admin/web/"
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "locks/run.txt")
DATE = "1764000000"
ADDRESS = "https://pairgate.example/source"
[CHECK] = blocks("docs/how-to/secure/check-a-release.md", "sh")


@attrs.frozen
class Packages:
    commit: str  # of the sources
    wheel: Path
    archive: Path  # of sources
    again: Path  # the folder of a second build


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """
    Built twice from a clone, by users whose new files others may read and may not: the archive
    from its files, and the wheel from the archive.
    """
    folder = tmp_path_factory.mktemp("packages")
    source = folder / "source"
    (source / "locks").mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    for name in ("gateway", "conf", "examples"):
        ignored = shutil.ignore_patterns("__pycache__", "var")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    git = ["git", "-C", str(source), *who]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    for name, umask in {"first": 0o022, "again": 0o077}.items():
        make(source, "dist", f"URL={ADDRESS}", umask=umask)
        (source / "dist").rename(folder / name)
    [wheel] = (folder / "first").glob("*.whl")
    [archive] = (folder / "first").glob("*.tar.gz")
    return Packages(commit.stdout.strip(), wheel, archive, folder / "again")


def make(folder: Path, *arguments: str, umask: int = 0o022) -> None:
    """Run `make` there, with the environment of the tests."""
    python = folder / ".venv" / "bin" / "python"
    if not python.exists():
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
    ready = [word for name in (".venv/.test-stamp", ".venv-docs/.stamp") for word in ("-o", name)]
    subprocess.run(
        ["make", "-f", ROOT / "Makefile", *ready, *arguments, f"DATE={DATE}"],
        cwd=folder,
        check=True,
        capture_output=True,
        umask=umask,
    )


def write_keys(private: Path, public: Path) -> None:
    """A releaser's new keys, by the commands of docs/how-to/secure/check-a-release.md."""
    openssl = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private]
    subprocess.run(openssl, check=True, capture_output=True)
    openssl = ["openssl", "pkey", "-in", private, "-pubout", "-out", public]
    subprocess.run(openssl, check=True, capture_output=True)


def test_the_wheel_has_the_shipped_files(packages: Packages) -> None:
    with zipfile.ZipFile(packages.wheel) as archive:
        names = archive.namelist()
        default = archive.read("gateway/conf/pairgate.toml")
    folders = [CONF / "examples", CONF / "systemd"]
    examples = {
        f"gateway/conf/{folder.name}/{path.name}" for folder in folders for path in folder.iterdir()
    }

    packed = {name for name in names if name.startswith("gateway/conf/")}
    assert packed == {"gateway/conf/pairgate.toml", *examples}
    assert default == (CONF / "pairgate.toml").read_bytes()
    assert len(example_names()) == len(examples)
    page = {str(path.relative_to(ROOT)) for path in ROOT.glob("gateway/**/web/*")}
    assert f"{WEB}index.html" in page
    assert page == {name for name in names if "/web/" in name}


def test_the_wheel_has_no_more_than_the_product(packages: Packages) -> None:
    with zipfile.ZipFile(packages.wheel) as archive:
        names = archive.namelist()

    assert {name.partition("/")[0] for name in names} == {"gateway", "pairgate_mq-0.1.0.dist-info"}
    assert "gateway/py.typed" in names  # its types are those of its users, too
    assert packages.wheel.name.endswith("-py3-none-any.whl")  # needs no compiler


def test_the_metadata_is_complete(packages: Packages) -> None:
    with zipfile.ZipFile(packages.wheel) as archive:
        text = archive.read("pairgate_mq-0.1.0.dist-info/METADATA").decode()
    fields = message_from_string(text)

    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields.get_payload() == (ROOT / "README.md").read_text()
    assert fields["Project-URL"] == f"Homepage, {ADDRESS}"
    assert "Typing :: Typed" in fields.get_all("Classifier", [])
    assert (fields["License-Expression"], fields["Requires-Python"]) == ("Apache-2.0", ">=3.11")


@pytest.mark.parametrize("changed", [False, True])
def test_a_release_is_signed(packages: Packages, tmp_path: Path, changed: bool) -> None:
    dist = tmp_path / "dist"
    shutil.copytree(packages.again, dist)
    write_keys(tmp_path / "release.pem", dist / "release.pub.pem")
    sign = ["make", "-f", ROOT / "Makefile", "sign", "KEY=release.pem"]
    subprocess.run(sign, cwd=tmp_path, check=True, capture_output=True)
    if changed:
        with (dist / packages.wheel.name).open("ab") as wheel:
            wheel.write(b"x")

    ended = subprocess.run(["sh", "-e"], cwd=dist, input=CHECK, capture_output=True, text=True)

    assert "Signature Verified Successfully" in ended.stdout
    assert f"{packages.wheel.name}: {'FAILED' if changed else 'OK'}" in ended.stdout
    assert (ended.returncode != 0) is changed


def test_sums_of_another_signature_are_refused(tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text("")
    (tmp_path / "SHA256SUMS.sig").write_bytes(bytes(64))
    write_keys(tmp_path / "release.pem", tmp_path / "release.pub.pem")

    ended = subprocess.run(["sh", "-e"], cwd=tmp_path, input=CHECK, capture_output=True, text=True)

    assert (ended.returncode != 0, "OK" in ended.stdout) == (True, False)


def test_the_same_sources_make_the_same_bytes(packages: Packages) -> None:
    for first in (packages.wheel, packages.archive):
        assert first.read_bytes() == (packages.again / first.name).read_bytes(), first.name


def test_the_chart_the_compose_files_and_the_site_are_the_same_bytes_again(tmp_path: Path) -> None:
    for name, umask in {"first": 0o022, "again": 0o077}.items():
        shutil.copytree(CONF, tmp_path / name / "conf")
        (tmp_path / name / "conf" / "compose" / ".env").write_text("a secret")
        (tmp_path / name / "build" / "docs" / "site").mkdir(parents=True)
        (tmp_path / name / "gateway").mkdir()
        shutil.copy(ROOT / "gateway" / "__init__.py", tmp_path / name / "gateway")
        (tmp_path / name / "conf" / "helm" / "pairgate" / "values.yaml").chmod(0o666 & ~umask)
        make(tmp_path / name, "bundles", "SITE=true", umask=umask)
    files = sorted((tmp_path / "first" / "dist").iterdir())
    with tarfile.open(files[0]) as compose:
        names = compose.getnames()

    assert [file.name.removeprefix("pairgate-mq-0.1.0") for file in files] == [
        *("-compose.tar.gz", "-site.tar.gz", ".tgz")
    ]
    assert [Path(name).name for name in names[1:]] == [
        *("compose.yaml", "example.env", "pairgate.toml")
    ]
    for file in files:
        assert file.read_bytes() == (tmp_path / "again" / "dist" / file.name).read_bytes()


def test_the_archive_knows_its_commit_without_a_history(packages: Packages) -> None:
    with tarfile.open(packages.archive) as archive:
        names = archive.getnames()
        built = archive.extractfile(f"{names[0].partition('/')[0]}/gateway/built.json")
        assert built is not None
        assert json.load(built)["commit"] == packages.commit
    assert not [name for name in names if "/.git/" in name]


def test_a_first_message_goes_through_what_was_installed_from_the_wheel(
    packages: Packages, tmp_path: Path
) -> None:
    """The commands of the first page run in their order, in an empty folder."""
    pairgate = installed(packages.wheel, tmp_path / "environment")
    here = tmp_path / "here"
    here.mkdir()
    protocols = ("service-bus", "service-bus-http", "storage-queue", "admin")
    binds = " ".join(f"{protocol}=127.0.0.1:{free_port()}" for protocol in protocols)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PAIRGATE_BIND": binds}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [pairgate, *arguments],
            cwd=here,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    version = run("--version")
    [serve, *_] = commands(FIRST)
    command = [pairgate, *serve, "--json"]
    with subprocess.Popen(command, cwd=here, env=environ, stderr=subprocess.PIPE, text=True) as it:
        assert it.stderr is not None
        try:
            lines = []
            for line in it.stderr:
                lines.append(line)
                if json.loads(line)["event"] == "started":
                    break
            assert it.poll() is None, lines
            shown = {name: run(name, *rest) for name, *rest in commands(FIRST) if name != "serve"}
        finally:
            it.terminate()
            it.stderr.read()

    lock = hashlib.sha256((ROOT / "locks" / "run.txt").read_bytes()).hexdigest()
    assert version == f"pairgate 0.1.0 (commit {packages.commit[:12]}, lock {lock[:12]})\n"
    assert list(shown) == ["send", "receive", "status"]
    assert "(primary)" in shown["send"]
    assert "hello" in shown["receive"]
    assert it.returncode == 0


def installed(wheel: Path, folder: Path) -> Path:
    """
    The command `pairgate` of an environment that has the wheel, and its dependencies from here:
    tests need no index.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    options: Sequence[str] = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)]
    subprocess.run(pip, check=True)
    return folder / "bin" / "pairgate"
