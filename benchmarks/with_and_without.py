"""
Runs the same program with and without the gateway, while the primary is killed and frozen.

    program ──▶ gateway ──▶ primary (killed, or frozen)
                   └──────▶ a store of the gateway's own ──(its syphon)──▶ primary
    program ──────────────▶ primary                              the same program, without it

The programs are one in Python and one in Node, with the SDKs' own retries. All four run at once,
through the same outage. In the end each accepted message is looked for on the primary.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.demo.ports import free_port

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
PYTHON: Final = ROOT / ".venv-azure" / "bin" / "python"
MODULES: Final = ROOT / ".node" / "node_modules"
LANGUAGES: Final = ("Python", "Node")
WAYS: Final = ("directly", "through Pairgate")
BEFORE: Final = 5.0  # seconds, healthy
AFTER: Final = 15.0  # seconds: longer than an SDK waits before it tries again
SENDERS: Final = 4  # of each program
WIDTH: Final = 100  # characters of the table
PAUSE: Final = 0.05  # seconds of a sender after each answer: 80 messages a second at most
PATIENCE: Final = 240.0  # seconds for a start, and for the backlog's way home
STRING: Final = (
    "Endpoint=sb://127.0.0.1:{};SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
PRIMARY: Final = """
[namespaces.primary]
url = "embedded:primary.db"
queues = {queues}

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:{port}"
"""
GATEWAY: Final = """
[namespaces.primary]
url = "servicebus:"
connection_string = {{ env = "PRIMARY" }}

[namespaces.store]
url = "embedded:store.db"

[pairing]
primary = "primary"
secondary = "store"
label = "bench"
enable_syphon = true

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:{port}"
"""


@attrs.frozen(kw_only=True)
class Row:
    """A program's run: what it saw, and what became of its messages."""

    language: str
    outage: str
    way: str
    sends: int
    exceptions: int
    longest: float  # seconds of one send
    lost: int  # accepted, and not on the primary
    twice: int


def queue_of(language: str, way: str) -> str:
    return f"{language.lower()}-{way.split()[0]}"


QUEUES: Final = [queue_of(language, way) for language in LANGUAGES for way in WAYS]


@attrs.define(eq=False)
class Server:
    """A gateway's process, or a broker's, with a folder of its own."""

    folder: Path
    config: str
    variables: Mapping[str, str] = attrs.field(factory=dict)
    process: "subprocess.Popen[str] | None" = None

    def start(self) -> None:
        """Return when it has started. Raises: SystemExit: it hasn't, with the end of its log."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "pairgate.toml").write_text(self.config)
        log = self.folder / "log"
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--json"],
                cwd=self.folder,
                env={**os.environ, **self.variables},
                stderr=file,
                text=True,
            )
        until = time.monotonic() + PATIENCE
        while '"event": "started"' not in log.read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(log.read_text()[-2000:])
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill it."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


def program(language: str, port: int, queue: str, seconds: float) -> "subprocess.Popen[str]":
    name = f"with_and_without_{'python.py' if language == 'Python' else 'node.js'}"
    runtime: str | Path = PYTHON if language == "Python" else "node"
    return subprocess.Popen(
        [runtime, HERE / name, STRING.format(port), queue, *map(str, (seconds, SENDERS, PAUSE))],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        stdout=subprocess.PIPE,
        text=True,
    )


def on_primary(primary: Server, queue: str) -> list[str]:
    """The ids of the messages in that queue."""
    command = [sys.executable, "-m", "gateway", "receive", queue, "--count", "100000", "--json"]
    done = subprocess.run(command, cwd=primary.folder, capture_output=True, text=True, check=False)
    return [json.loads(line)["message_id"] for line in done.stdout.splitlines()]


def measured(outage: str, seconds: float, folder: Path) -> list[Row]:
    """Run one outage of the primary, under all four programs."""
    ports = dict(zip(WAYS, (free_port(), free_port()), strict=True))
    primary = Server(
        folder / "primary", PRIMARY.format(queues=json.dumps(QUEUES), port=ports["directly"])
    )
    gateway = Server(
        folder / "gateway",
        GATEWAY.format(port=ports["through Pairgate"]),
        {"PRIMARY": STRING.format(ports["directly"])},
    )
    with ExitStack() as stack:
        for server in (primary, gateway):
            stack.callback(server.end)
            server.start()
        pairs = [(language, way) for language in LANGUAGES for way in WAYS]
        long = BEFORE + seconds + AFTER
        programs = [program(name, ports[way], queue_of(name, way), long) for name, way in pairs]
        time.sleep(BEFORE)
        if outage == "killed":
            primary.end()
            time.sleep(seconds)
            primary.start()
        else:
            primary.signal(signal.SIGSTOP)
            time.sleep(seconds)
            primary.signal(signal.SIGCONT)
        results = [json.loads(each.communicate()[0]) for each in programs]
        found: dict[str, Counter[str]] = {queue: Counter() for queue in QUEUES}
        until = time.monotonic() + PATIENCE
        rows = list[Row]()
        while True:
            for queue in QUEUES:
                found[queue].update(on_primary(primary, queue))
            rows = [
                row_of(name, outage, way, result, found[queue_of(name, way)])
                for (name, way), result in zip(pairs, results, strict=True)
            ]
            if not any(row.lost for row in rows) or time.monotonic() > until:
                return rows
            time.sleep(1)


def row_of(
    language: str, outage: str, way: str, result: Mapping[str, Any], found: Counter[str]
) -> Row:
    accepted = result["accepted"]
    return Row(
        language=language,
        outage=outage,
        way=way,
        sends=len(accepted) + len(result["failed"]),
        exceptions=len(result["failed"]),
        longest=float(result["longest"]),
        lost=len([each for each in accepted if not found[each]]),
        twice=len([each for each, times in found.items() if times > 1]),
    )


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("program", "primary", "way", "sends", "exceptions", "longest", "lost", "twice"):
        table.add_column(heading)
    for row in rows:
        figures = (row.sends, row.exceptions, f"{row.longest:.1f} s", row.lost, row.twice)
        table.add_row(row.language, row.outage, row.way, *map(str, figures))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.with_and_without")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each outage")
    given = parser.parse_args()
    for outage in ("killed", "frozen"):
        with TemporaryDirectory() as folder:
            rows = measured(outage, given.seconds, Path(folder))
        Console(width=WIDTH).print(table_of(rows))


if __name__ == "__main__":
    main()
