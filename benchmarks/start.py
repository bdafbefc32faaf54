"""
The processor time of a start: of each command that only answers, and of a gateway until it serves.

    python -m benchmarks.start [--rounds 5]

The baseline is Python that does nothing, in the same round.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.machine import facts_of_processor
from benchmarks.report import show_medians
from benchmarks.targets import Target, show_targets
from gateway.demo.ports import free_port

ROOT: Final = Path(__file__).parents[1]
BASELINE: Final = "python -c pass"
HELP: Final = "pairgate --help"
PROBE: Final = "pairgate status --ready"
SERVE: Final = "pairgate serve, until it serves"
GATEWAY: Final = (sys.executable, "-m", "gateway")
# By command: the most processor time, in seconds.
GOALS: Final[Mapping[str, float]] = {
    "pairgate --version": 0.1,
    HELP: 0.25,
    PROBE: 0.1,
    SERVE: 0.6,
}
WIDTH: Final = 110


def cost_of(command: Sequence[str], folder: Path, *, until: bytes = b"") -> float:
    """
    Run the command to its end; or until it prints `until` to standard error, and then kill it.
    Return the seconds of processor time that it took, user and system.

    Raises:
        RuntimeError: it ended before that.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        printed = b""
        while not (until and until in printed) and (line := process.stderr.readline()):
            printed += line
        if until:
            process.kill()
        # Instead of the process's own wait, which doesn't tell what it has used.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if until not in printed:
        raise RuntimeError(f"{' '.join(command)}: {printed.decode(errors='replace')}")
    return used.ru_utime + used.ru_stime


def round_of(folder: Path) -> dict[str, float]:
    """Start each once. The probe asks a gateway that runs meanwhile."""
    serve = [*GATEWAY, "serve", "--json"]
    found = {
        BASELINE: cost_of([sys.executable, "-c", "pass"], folder),
        "pairgate --version": cost_of([*GATEWAY, "--version"], folder),
        HELP: cost_of([*GATEWAY, "--help"], folder),
        SERVE: cost_of(serve, folder, until=b'"started"'),
    }
    with subprocess.Popen(serve, cwd=folder, stderr=subprocess.PIPE) as gateway:
        assert gateway.stderr is not None
        while b'"started"' not in gateway.stderr.readline():
            pass
        found[PROBE] = cost_of([*GATEWAY, "status", "--ready"], folder)
        gateway.kill()
    return found


def _configuration() -> str:
    ports = iter([free_port(), free_port()])
    endpoints = "".join(
        f'[[endpoints]]\nprotocol = "{protocol}"\nbind = "127.0.0.1:{next(ports)}"\n'
        for protocol in ("service-bus", "admin")
    )
    return f"""
[namespaces.east]
url = "embedded:east.db"
[namespaces.west]
url = "embedded:west.db"
[pairing]
primary = "east"
secondary = "west"
enable_syphon = true
{endpoints}"""


def measure(rounds: int) -> Sequence[Mapping[str, float]]:
    """Measure after a round that isn't counted, in which the modules are compiled."""
    with tempfile.TemporaryDirectory(prefix="pairgate-bench-") as name:
        folder = Path(name)
        (folder / "pairgate.toml").write_text(_configuration())
        return [round_of(folder) for _ in range(rounds + 1)][1:]


def show(found: Sequence[Mapping[str, float]], console: Console) -> None:
    table = Table("start", "CPU s", "times Python's")
    for name in found[0]:
        seconds = median(each[name] for each in found)
        times = median(each[name] / each[BASELINE] for each in found)
        table.add_row(name, f"{seconds:.3f}", f"{times:.1f}")
    console.print(table)
    show_medians(len(found), facts_of_processor(), console)


def targets_of(found: Sequence[Mapping[str, float]]) -> list[Target]:
    targets = []
    for name, most in GOALS.items():
        seconds = median(each[name] for each in found)
        text = f"{name}: at most {most:g} s of a processor"
        targets.append(Target(text=text, reached=seconds <= most, found=f"{seconds:.3f} s"))
    return targets


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a start.")
    parser.add_argument("--rounds", type=int, default=5)
    found, console = measure(parser.parse_args().rounds), Console(width=WIDTH)
    show(found, console)
    show_targets(targets_of(found), console)


if __name__ == "__main__":
    main()
