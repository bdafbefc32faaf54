"""`pairgate run`: a program finds its gateway, and its end is that of both."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command_line import pairgate
from tests.e2e.processes import ROOT, environment
from tests.harness.patience import PATIENCE
from tests.page_commands import commands
from tests.pages import blocks

pytestmark = pytest.mark.slow

PAGE = "docs/how-to/run/run-a-program.md"
[COMMAND] = [words for code in blocks(PAGE, "sh") for words in commands(code)]
[PROGRAM] = blocks(PAGE, "python")
AZURE = str(ROOT / ".venv-azure" / "bin" / "python")
# Writes its gateway's process and waits; writes the signal that ends it.
WAITS = """
import os, signal, sys, time
def end(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")  # print() can't interrupt print()
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print(os.environ["PAIRGATE_URL"], flush=True)
time.sleep(3600)
"""


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "run", *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with start(folder, *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(each) for each in listed.split()]


def is_there(process: int) -> bool:
    """True until the process has ended, also if nobody has waited for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_program_of_the_page_sends_and_its_code_is_handed_on(tmp_path: Path) -> None:
    """The same program in the same store, twice: its second message is behind the first."""
    (tmp_path / "app.py").write_text(PROGRAM + "raise SystemExit(5)\n")
    words = [AZURE if word == "python3" else word for word in COMMAND[1:]]

    codes = [ran(tmp_path, *words) for _ in range(2)]
    seen = pairgate_in(tmp_path, "peek", "orders", "--json")

    assert [code for code, _, _ in codes] == [5, 5], codes
    assert len(seen) == 2


def pairgate_in(folder: Path, *arguments: str) -> Sequence[object]:
    command = [sys.executable, "-m", "gateway", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sh -c 'kill -KILL $$'", 128 + signal.SIGKILL),
        ("no-such-program", 127),
    ],
)
def test_the_exit_code_is_that_of_a_shell(program: str, code: int, tmp_path: Path) -> None:
    assert ran(tmp_path, "--", *shlex.split(program))[0] == code


def test_a_signal_goes_to_the_program_and_the_gateway_ends_after_it(tmp_path: Path) -> None:
    with start(tmp_path, "--", sys.executable, "-c", WAITS) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        answered = pairgate("status", "--url", url, "--ready").exit_code
        both = children(process.pid)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)

    assert (answered, len(both)) == (0, 2)
    assert (process.returncode, out) == (7, "SIGTERM\n"), err
    assert not any(map(is_there, both))


def test_a_gateway_whose_command_was_killed_ends_too(tmp_path: Path) -> None:
    with start(tmp_path, "--", sys.executable, "-c", WAITS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        both = children(process.pid)
        process.kill()
        process.wait()
        left = both
        until = time.monotonic() + PATIENCE
        while len(left) > 1 and time.monotonic() < until:
            time.sleep(0.02)
            left = [each for each in both if is_there(each)]
        for each in left:
            os.kill(each, signal.SIGKILL)

    assert len(left) == 1  # the program itself, which nobody has told


@pytest.mark.parametrize(
    ("config", "text", "code"),
    [
        ("[[nonsense]]", "nonsense", 2),
        ('[namespaces.east]\nurl = "embedded:/dev/null/east.db"\n', "/dev/null", 1),
    ],
)
def test_a_gateway_that_can_not_start_says_why(
    config: str, text: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "pairgate.toml").write_text(config)

    ended, out, err = ran(tmp_path, "--", "echo", "started")

    assert (ended, out) == (code, ""), err
    assert text in err
    assert err.startswith("Error: ")
