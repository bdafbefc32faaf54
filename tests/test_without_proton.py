"""Qpid Proton is a foreign peer of tests and benchmarks: Pairgate itself, with AMQP, needs none."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.harness.patience import PATIENCE

ROOT: Final = Path(__file__).parents[1]
# As if it had not been installed: the finder of installed modules doesn't find it.
HIDING: Final = """
import sys
from importlib.machinery import PathFinder

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {"cproton_ffi", "cproton", "proton"}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
sys.path.insert(0, sys.argv.pop(1))
"""
COMMAND: Final = f"{HIDING}from gateway.cli import main\nmain()"
IMPORTS: Final = f"""{HIDING}
import pkgutil
from importlib import import_module
import gateway

names = [each.name for each in pkgutil.walk_packages(gateway.__path__, "gateway.")]
for name in names:
    if not name.endswith("__main__"):
        import_module(name)
print(len(names), "gateway.wire.amqp.engine" in sys.modules)
"""


def hidden(folder: Path, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, str(ROOT), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_every_module_can_be_imported_without_proton(tmp_path: Path) -> None:
    done = hidden(tmp_path, IMPORTS)

    assert done.returncode == 0, done.stderr
    count, with_engine = done.stdout.split()
    assert int(count) > 400
    assert with_engine == "True"


@pytest.mark.slow
def test_a_user_without_a_configuration_has_amqp(tmp_path: Path) -> None:
    checked = hidden(tmp_path, COMMAND, "check")

    # The port may be free, or in use.
    assert "endpoints[0].bind: 127.0.0.1:5672" in checked.stdout


def test_an_installed_pairgate_has_no_proton() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run = (ROOT / "locks" / "run.txt").read_text()

    wanted = [project["dependencies"], *project["optional-dependencies"].values()]
    assert not [each for dependencies in wanted for each in dependencies if "proton" in each]
    assert "proton" not in run
