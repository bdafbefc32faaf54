"""The transfer example: each intent is done once, wherever its worker is killed."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.patience import PATIENCE
from tests.pages import blocks

ROOT = Path(__file__).parents[2]
MADE = "ann has 985 after 3 transfers\nbob has 15 after 3 transfers\n"


def run(folder: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.transfer", str(folder), *parts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("step", ["0", "1", "2"])
def test_a_transfer_is_made_once_wherever_its_worker_is_killed(step: str, tmp_path: Path) -> None:
    assert run(tmp_path, "submit", "3").returncode == 0
    for _ in range(2):
        assert run(tmp_path, "work", "--crash-before", step).returncode == -signal.SIGKILL
    done = run(tmp_path, "work")

    assert (done.returncode, done.stderr) == (0, "")
    assert run(tmp_path, "show").stdout == MADE


@pytest.mark.slow
def test_the_commands_of_the_page_make_ten_transfers(tmp_path: Path) -> None:
    [typed] = blocks("examples/transfer/README.md", "sh")
    submit, work, show = (shlex.split(line, comments=True)[4:] for line in typed.splitlines())

    done = [run(tmp_path, *parts) for parts in (submit, work, show)]

    assert [each.returncode for each in done] == [0, 0, 0]
    assert "after 10 transfers" in done[2].stdout
