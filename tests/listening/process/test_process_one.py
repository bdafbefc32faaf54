"""A process that inherits the children of ended processes, as process 1 of a container does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# The process inherits like process 1: a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER).
START = """
import ctypes, os, signal, subprocess, sys, time
from gateway.listening.process.process_one import leave_process_one
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
one = os.getpid()
leave_process_one(one)
"""


def run(script: str, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", START + script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        **options,
    )


def test_orphans_of_a_command_are_waited_for() -> None:
    script = "print(one, flush=True)\nsubprocess.run(['sh', '-c', 'sleep 0.1 & echo $!'])\n"
    script += "print('ready', flush=True)\nsys.stdin.read()\n"
    with run(script, stdin=subprocess.PIPE) as found:
        assert found.stdout is not None
        assert found.stdin is not None
        one, orphan, _ = (found.stdout.readline().strip() for _ in range(3))
        assert Path(f"/proc/{one}").exists()
        while Path(f"/proc/{orphan}").exists():
            os.sched_yield()
        found.stdin.close()

    assert found.returncode == 0


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_ends_with_the_code_of_its_worker(code: int) -> None:
    with run(f"sys.exit({code})") as ended:
        pass

    assert ended.returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_worker(number: signal.Signals) -> None:
    script = f"""
signal.signal({int(number)}, lambda *_: (os.write(1, b"told\\n"), sys.exit(5)))
print("ready", flush=True)
while True:
    time.sleep(60)
"""
    with run(script) as told:
        assert told.stdout is not None
        assert told.stdout.readline() == "ready\n"
        told.send_signal(number)
        text = told.stdout.read()

    assert (text, told.returncode) == ("told\n", 5)


def test_a_worker_that_a_signal_ends_has_the_code_that_shells_know() -> None:
    with run("os.kill(os.getpid(), signal.SIGKILL)") as ended:
        pass

    assert ended.returncode == 128 + signal.SIGKILL


def test_any_other_process_stays_as_it_is() -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os; from gateway.listening.process.process_one import leave_process_one;"
            "before = os.getpid(); leave_process_one(); assert os.getpid() == before",
        ],
        cwd=Path(__file__).parents[3],
    ) as same:
        pass

    assert same.returncode == 0
