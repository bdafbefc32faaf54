"""
CPU of a message in the AMQP engine alone: our own beside Qpid Proton, in memory, in one process.

    sender ──bytes──▶ receiver     two engines of one kind; the client sends, or the server
           ◀─bytes──

A number of messages is in flight at most: the receiver settles the messages that have arrived when
no more may be sent, and renews the credit. Each cell is measured for both kinds in turn, in each
round.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.machine import facts_of_processor
from benchmarks.report import print_report, show_facts
from benchmarks.targets import Target, show_targets
from gateway.wire.amqp.engine import Engine as OwnEngine
from gateway.wire.amqp.events import (
    ACCEPTED,
    DispositionReceived,
    LinkAttached,
    NewLink,
    Terminus,
    TransferReceived,
)
from gateway.wire.amqp.options import EngineOptions
from tests.wire.amqp.proton.engine import Engine as ProtonEngine

SIZES: Final = (1, 1024, 256 * 1024)  # bytes of a message
WINDOWS: Final = (1, 100, 1000)
CLIENT, SERVER = "client sends", "server sends"
OWN, PROTON = "own", "Proton"
MAKE: Final[Mapping[str, Callable[..., Any]]] = {OWN: OwnEngine, PROTON: ProtonEngine}
PIECE: Final = 64 * 1024  # bytes that are written at once
UNSENT: Final = 1024 * 1024  # bytes after which a sender writes before it continues
MOST: Final = 1.05  # times Proton's cost, in each cell
WIDTH: Final = 100  # characters of the table


@attrs.frozen(kw_only=True)
class Effort:
    rounds: int
    seconds: float  # of processor time, in each measurement
    warm_up: int = 1  # rounds that don't count


FULL: Final = Effort(rounds=5, seconds=0.15)
QUICK: Final = Effort(rounds=1, seconds=0.0, warm_up=0)


@attrs.frozen(order=True)
class Shape:
    """The messages of a cell: their bytes, the number in flight, and the side that sends."""

    size: int
    window: int
    direction: str


@attrs.frozen(kw_only=True)
class Cell:
    """The medians of the rounds: seconds of processor time for a message, in both engines."""

    shape: Shape
    own: float
    proton: float
    ratio: float  # the median of the rounds' ratios


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    target: Target


Rounds = Mapping[Shape, Sequence[Mapping[str, float]]]  # for each round, the cost by kind


# --------------------------------------------------------------------------- two engines


@attrs.define(eq=False)
class Flow:
    """A link from one engine to the other, with messages in flight."""

    sender: Any
    receiver: Any
    sending: int  # the ids of the link at both ends
    receiving: int
    window: int
    payload: bytes
    sent: int = 0
    accepted: int = 0

    def run(self, seconds: float) -> float:
        """Send whole windows for that processor time; return the processor time of one message."""
        began, before = time.process_time(), self.accepted
        while True:
            self._send_a_window()
            if (passed := time.process_time() - began) >= seconds:
                return passed / (self.accepted - before)

    def _send_a_window(self) -> None:
        waiting: list[int] = []
        for _ in range(self.window):
            tag = self.sent.to_bytes(4, "big")
            self.sender.send(self.sending, tag, self.payload)
            self.sent += 1
            if self.sender.unsent > UNSENT:
                waiting += self._deliver()
        waiting += self._deliver()
        for delivery in waiting:
            self.receiver.settle(delivery, ACCEPTED)
        self.receiver.grant(self.receiving, len(waiting))
        _move(self.receiver, self.sender)
        for event in self.sender.events():
            if isinstance(event, DispositionReceived):
                self.accepted += event.settled

    def _deliver(self) -> list[int]:
        _move(self.sender, self.receiver)
        events = self.receiver.events()
        return [event.delivery for event in events if isinstance(event, TransferReceived)]


def connect(kind: str, shape: Shape) -> Flow:
    """Two engines of a kind with a link between them, and credit for the messages in flight."""
    make = MAKE[kind]
    client = make(EngineOptions(container_id="client"), sasl=None)
    server = make(EngineOptions(container_id="server"), sasl=None)
    client.open()
    server.open()
    new = NewLink(
        name="link",
        we_send=shape.direction == CLIENT,
        source=Terminus(address="source"),
        target=Terminus(address="target"),
    )
    ours = client.attach(client.begin(), new)
    _settle_down(client, server)
    (attached,) = [each for each in server.events() if isinstance(each, LinkAttached)]
    server.accept(attached.link)
    ends = ((client, ours), (server, attached.link))
    (sender, sending), (receiver, receiving) = ends if new.we_send else ends[::-1]
    receiver.grant(receiving, shape.window)
    _settle_down(client, server)
    for _ in (*client.events(), *server.events()):
        pass
    return Flow(sender, receiver, sending, receiving, shape.window, bytes(shape.size))


def _settle_down(one: Any, other: Any) -> None:
    while _move(one, other) + _move(other, one):
        pass


def _move(writer: Any, reader: Any) -> int:
    moved = 0
    while data := writer.data_to_send(PIECE):
        reader.feed(data)
        moved += len(data)
    return moved


# --------------------------------------------------------------------------- figures


def shapes(sizes: Sequence[int], windows: Sequence[int]) -> Iterator[Shape]:
    for size in sizes:
        for window in windows:
            for direction in (CLIENT, SERVER):
                yield Shape(size, window, direction)


def measure(wanted: Sequence[Shape], effort: Effort) -> Rounds:
    """Every shape with both kinds, once in each round."""
    found: dict[Shape, list[Mapping[str, float]]] = {}
    for number in range(effort.warm_up + effort.rounds):
        for shape in wanted:
            costs = {}
            for kind in (OWN, PROTON) if number % 2 else (PROTON, OWN):
                flow = connect(kind, shape)
                gc.collect()
                costs[kind] = flow.run(effort.seconds)
            if number >= effort.warm_up:
                found.setdefault(shape, []).append(costs)
    return found


def report(about: Mapping[str, str], rounds: Rounds) -> Report:
    cells = [
        Cell(
            shape=shape,
            own=statistics.median(each[OWN] for each in costs),
            proton=statistics.median(each[PROTON] for each in costs),
            ratio=statistics.median(each[OWN] / each[PROTON] for each in costs),
        )
        for shape, costs in sorted(rounds.items())
    ]
    worst = max(cells, key=lambda cell: cell.ratio)
    target = Target(
        text=f"nowhere more than {MOST} times Proton's cost",
        reached=worst.ratio <= MOST,
        found=f"{worst.ratio:.2f} times where it is most",
    )
    return Report(facts=about, cells=cells, target=target)


def _show(found: Report, console: Console) -> None:
    show_facts(found.facts, console)
    columns = ("bytes", "in flight", "direction", "own us", "Proton us", "own / Proton")
    table = Table(*columns, title="CPU of a message, sender and receiver", box=SIMPLE_HEAD)
    for cell in found.cells:
        table.add_row(
            str(cell.shape.size),
            str(cell.shape.window),
            cell.shape.direction,
            f"{1e6 * cell.own:.1f}",
            f"{1e6 * cell.proton:.1f}",
            f"{cell.ratio:.2f}",
        )
    console.print(table)
    show_targets([found.target], console)


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU of a message in the AMQP engine alone.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes of a message")
    parser.add_argument(
        "--windows", nargs="+", type=int, default=WINDOWS, help="messages in flight"
    )
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up")
    parser.add_argument("--quick", action="store_true", help="a short run; its figures don't count")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    effort = attrs.evolve(effort, rounds=arguments.rounds or effort.rounds)
    about = facts_of_processor()
    wanted = list(shapes(arguments.sizes, arguments.windows))
    found = report(about, measure(wanted, effort))
    print_report(found, _show, as_json=arguments.json, width=WIDTH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
