"""
A queue moves from one kind of namespace to another and back, by `pairgate move`, under load.

    eight senders, 100 a second ──┐
    four consumers ◀──────────────┴─ gateway ──▶ old namespace, new namespace

Each client has a connection of its own. A send's time begins when it was due, so that a sender that
waits hides nothing. A message that is lost is an error; so is one that comes twice without the
report naming it and, where the queue's order is kept, one that comes before an earlier one of its
sender: then there is one consumer.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import Fleet, open_fleet, token
from benchmarks.keepalive import RequestFailed, connect, request
from benchmarks.kinds_of_namespaces import NAMESPACES
from benchmarks.machine import facts
from benchmarks.over_http import location_of
from gateway.app.operations.admin_endpoint import AdminEndpoint
from gateway.app.operations.asking import give_to
from gateway.config.file import load
from gateway.demo.machines import DemoMachine
from gateway.extensions.move.order import MOVE, MOVES, MoveAction, MoveOrder, MoveState
from gateway.extensions.move.stages import MoveStage
from gateway.net.server_address import ServerAddress
from gateway.wire.pairgate.control_call import NoKeys

RATE: Final = 100  # sends a second
SENDERS: Final = 8
CONSUMERS: Final = 4
LONGEST: Final = 1.0  # seconds of a send
BEFORE: Final = 6.0  # seconds of load before the move, with which it is compared
AFTER: Final = 2.0  # seconds of load after it
HOLDS: Final = 2.5  # seconds until all act on a stage
LIMIT: Final = 120.0  # seconds for a move, and for what is left afterwards
WIDTH: Final = 110  # characters of the table
UNORDERED: Final = frozenset({"storage-queue"})  # the kinds that keep no order
QUEUE: Final = "orders"
BODY: Final = b" " + 1000 * b"x"
CONFIG: Final = """
[namespaces.old]
{old}

[namespaces.new]
{new}
{pair}
[move]
to = "new"
state = "moves"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "admin"
bind = "unix:admin.sock"
"""
# The pair keeps the order of a queue.
PAIR: Final = """
[namespaces.backlog]
url = "embedded:backlog.db"

[pairing]
primary = "old"
secondary = "backlog"
label = "moved"
ordered = ["orders"]
"""


class MoveFailed(Exception):
    """A message was lost, or came twice or out of order."""


@attrs.frozen(kw_only=True)
class Moved:
    """A move there and back."""

    old: str
    new: str
    sent: int
    rate: float  # sends a second
    median: float  # seconds of a send
    before: float  # the longest of a send before the move
    longest: float
    moved: int  # by the mover; consumers have taken the others
    seconds: float  # for both ways
    doubtful: int


@attrs.define(eq=False)
class Traffic:
    """The senders and consumers of a run."""

    port: int
    consumers: int
    rate: float  # sends a second
    authorization: dict[str, str] = attrs.field(factory=lambda: {"Authorization": token()})
    times: dict[int, float] = attrs.field(factory=dict)  # of each accepted send, by number
    received: list[int] = attrs.field(factory=list)
    over: bool = False

    async def run(self) -> None:
        """Send until it is over, then receive what is left."""
        async with trio.open_nursery() as nursery:
            for _ in range(self.consumers):
                nursery.start_soon(self._consume)
            async with trio.open_nursery() as senders:
                for index in range(SENDERS):
                    senders.start_soon(self._send, index)
            with trio.move_on_after(LIMIT):
                while self.times.keys() - set(self.received):  # noqa: ASYNC110 over the network
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    async def _send(self, sender: int) -> None:
        """The numbers of one sender rise, and tell who it is."""
        due, number = trio.current_time() + sender / self.rate, sender
        async with connect(self.port) as connection:
            while not self.over:
                await trio.sleep_until(due)
                body = str(number).encode() + BODY
                await connection.ask(
                    request("POST", f"/{QUEUE}/messages", self.authorization, body), 201
                )
                self.times[number] = trio.current_time() - due
                due, number = due + SENDERS / self.rate, number + SENDERS

    async def _consume(self) -> None:
        receive = request("POST", f"/{QUEUE}/messages/head?timeout=5", self.authorization)
        async with connect(self.port) as connection:
            while True:
                answer = await connection.ask(receive, 201, 204)
                if answer.status == 201:
                    self.received.append(int(answer.body.split()[0]))
                    path = location_of(answer)
                    await connection.ask(request("DELETE", path, self.authorization), 200)


@attrs.frozen
class Operator:
    """Orders the move, as the command line does."""

    endpoint: AdminEndpoint

    @classmethod
    def of(cls, machine: DemoMachine) -> "Operator":
        place = ServerAddress(host="admin", port=0, unix=str(machine.folder / "admin.sock"))
        file = machine.folder / "pairgate.toml"
        config = load(file, environ=os.environ, here=machine.folder).config
        return cls(AdminEndpoint(place=place, config=config))

    async def order(self, action: MoveAction) -> None:
        order = MoveOrder(action=action, targets=(QUEUE,), force=True)
        await give_to(self.endpoint, MOVE, order)

    async def until(self, stage: MoveStage) -> MoveState:
        """Return the move once it has that stage, and all act on it."""
        with trio.fail_after(LIMIT):
            while True:
                [move] = (await give_to(self.endpoint, MOVES, NoKeys())).moves
                if move.stage is stage:
                    await trio.sleep(HOLDS)
                    return move
                await trio.sleep(0.5)


async def measure(
    old: str,
    new: str,
    folder: Path,
    *,
    ordered: bool,
    rate: float = RATE,
    before: float = BEFORE,
) -> Moved:
    """
    Move a queue there and back at `rate` sends a second, after `before` seconds of them.

    Raises:
        MoveFailed: a message is lost, or out of order.
    """
    async with AsyncExitStack() as stack:
        tables = []
        for name, kind in (("old", old), ("new", new)):
            place = folder / name
            place.mkdir()
            tables.append(await stack.enter_async_context(NAMESPACES[kind](place)))
        fleet: Fleet = await stack.enter_async_context(open_fleet(folder))
        pair = PAIR if ordered else ""
        config = CONFIG.format(old=tables[0], new=tables[1], pair=pair)
        gateway = await fleet.start("gateway", config)
        await _create(gateway.port)
        traffic = Traffic(gateway.port, 1 if ordered else CONSUMERS, rate)
        operator, began = Operator.of(gateway), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(traffic.run)
            await trio.sleep(before)
            started = trio.current_time()
            await operator.order(MoveAction.START)
            await operator.until(MoveStage.NEW)
            await operator.order(MoveAction.ROLLBACK)
            last = await operator.until(MoveStage.OLD)
            seconds = trio.current_time() - started
            await trio.sleep(AFTER)
            lasted = trio.current_time() - began
            traffic.over = True
        judge(traffic, last, ordered=ordered)
        times = traffic.times.values()
        calm = [took for number, took in traffic.times.items() if number < before * rate]
        return Moved(
            old=old,
            new=new,
            sent=len(times),
            rate=len(times) / lasted,
            median=statistics.median(times),
            before=max(calm),
            longest=max(times),
            moved=last.report.active,
            seconds=seconds,
            doubtful=len(last.report.doubtful),
        )


async def _create(port: int) -> None:
    properties = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/'
        'connect"/></content></entry>'
    )
    async with connect(port) as connection:
        headers = {"Authorization": token()}
        path = f"/{QUEUE}?api-version=2021-05"
        await connection.ask(request("PUT", path, headers, properties.encode()), 201)


def judge(traffic: Traffic, last: MoveState, *, ordered: bool) -> None:
    """Raises MoveFailed."""
    times = Counter(traffic.received)
    if lost := sorted(traffic.times.keys() - times.keys()):
        raise MoveFailed(f"{len(lost)} messages were lost, as number {lost[0]}")
    twice = [number for number, count in times.items() if count > 1]
    if len(twice) > len(last.report.doubtful):
        raise MoveFailed(f"{len(twice)} came twice, and {last.report.doubtful} were told")
    if not ordered:
        return
    for sender in range(SENDERS):
        numbers = [each for each in traffic.received if each % SENDERS == sender]
        if numbers != sorted(numbers):
            raise MoveFailed(f"the messages of sender {sender} came out of order")


def show(found: Sequence[Moved], console: Console, *, ordered: bool) -> None:
    names = (
        "from",
        "to",
        "sent",
        "a second",
        "median",
        "before",
        "longest",
        "moved",
        "there and back",
    )
    table = Table(*names, box=SIMPLE_HEAD)
    for each in found:
        table.add_row(
            each.old,
            each.new,
            str(each.sent),
            f"{each.rate:.0f}",
            f"{1e3 * each.median:.0f} ms",
            f"{each.before:.2f} s",
            f"{each.longest:.2f} s",
            str(each.moved),
            f"{each.seconds:.0f} s",
        )
    consumers = "one consumer, order is kept" if ordered else f"{CONSUMERS} consumers"
    console.print(f"{SENDERS} senders, {RATE} a second; {consumers}")
    console.print(table)
    longest = max(each.longest for each in found)
    verdict = "reached" if longest <= LONGEST else "missed"
    console.print(f"a send takes at most {LONGEST:g} s: {verdict}, {longest:.2f} s")
    console.print("None was lost, and none came twice that the report hadn't told.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=__doc__)
    parser.add_argument("--old", nargs="+", choices=NAMESPACES, default=[*NAMESPACES])
    parser.add_argument("--new", nargs="+", choices=NAMESPACES, default=[*NAMESPACES])
    parser.add_argument("--ordered", action="store_true", help="the order of the queue is kept")
    arguments = parser.parse_args()
    console, found, failed = Console(width=WIDTH), list[Moved](), False
    for old, new in permutations(NAMESPACES, 2):
        if old not in arguments.old or new not in arguments.new:
            continue
        if arguments.ordered and UNORDERED & {old, new}:
            continue
        with tempfile.TemporaryDirectory(prefix="pairgate-bench-") as name:
            folder = Path(name)
            about = facts(folder)
            move = partial(measure, old, new, folder, ordered=arguments.ordered)
            try:
                found.append(trio.run(move))
            except* (MoveFailed, RequestFailed, trio.TooSlowError) as errors:
                failed = True
                console.print(f"{old} to {new}:", *leaves(errors))
            else:
                console.print(found[-1])
    show(found, console, ordered=arguments.ordered)
    console.print(", ".join(f"{name}: {value}" for name, value in about.items()))
    return int(failed)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in groups of groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


if __name__ == "__main__":
    sys.exit(main())
