"""
Dead letters of a queue, shown and moved back as an operator does it: by `pairgate dead-letters` and
`pairgate redrive`, before each kind of namespace.

    10,000 messages, half of them dead-lettered for the reason "even", half for "odd"
    ──shown──▶ those of "even" moved with a property, 100 a second, stopped by Ctrl-C in between
    ──moved on──▶ those of "odd" moved without a limit ──▶ all received

A message that is lost, or twice without having been told, is an error; so is one of the other
reason with the property, or a count that the command shows wrongly.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.kinds_of_namespaces import NAMESPACES, storage_queue_of_gateway
from benchmarks.machine import facts
from gateway.app.namespaces import enter
from gateway.app.runtime import Runtime
from gateway.capabilities import WritesDeadLetters
from gateway.config.file import load
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityExists
from gateway.domain.message import (
    DEAD_LETTER_REASON,
    Complete,
    DeadLetter,
    Message,
    Settlement,
)
from gateway.offering import offered
from gateway.ports import Broker

KINDS: Final = {
    **{name: NAMESPACES[name] for name in ("servicebus", "rabbitmq", "storage-queue")},
    "storage-queue of a gateway": storage_queue_of_gateway,
}
QUEUE: Final = EntityPath("orders")
EVEN, ODD = REASONS = ("even", "odd")
RATE: Final = 100  # messages a second
TOGETHER: Final = 32  # messages of one receive: the most of Storage Queue
TOLD: Final = re.compile(r"message (\S+) is still a dead letter, and may have been moved")
ONLY_EVEN: Final = ("redrive", str(QUEUE), "--with-reason", EVEN)
COMMAND: Final = (sys.executable, "-m", "gateway")
ROOT: Final = Path(__file__).parents[1]


class WrongCount(Exception):
    """A count that the commands show, or a result of theirs, is wrong."""


@attrs.frozen(kw_only=True)
class Found:
    """A run before one kind of namespace."""

    kind: str
    stopped_at: int  # messages that were moved before Ctrl-C
    rate: float  # messages a second until then
    unlimited: float
    told: int  # copies whose outcome was unknown, which the command named


@asynccontextmanager
async def opened(config: Path) -> AsyncIterator[Broker]:
    """The namespace of that configuration, as the gateway opens it."""
    loaded = load(config, environ=os.environ, here=config.parent).config
    async with AsyncExitStack() as stack:
        [namespace] = loaded.namespaces.values()
        yield await enter(stack, namespace, Runtime())


# --- messages


def reason_of(message: Message) -> str:
    return REASONS[int(message.body) % 2]


async def settled(broker: Broker, count: int, how: Settlement | None = None) -> list[Message]:
    """Receive so many messages and settle each; None: dead-letter it for its reason."""
    found: list[Message] = []
    async with broker.open_receiver(QUEUE) as receiver:
        while len(found) < count:
            with trio.move_on_after(30) as scope:
                some = await receiver.receive(TOGETHER)
            if scope.cancelled_caught:
                break
            # One after the other: Azurite resets connections that wait for it, which leaves doubt.
            for each in some:
                await receiver.settle(each, how or DeadLetter(reason=reason_of(each.message)))
            found += [each.message for each in some]
    return found


async def bury(broker: Broker, count: int) -> None:
    """
    Let the queue have so many dead letters, and no message. They are dead-lettered by a receiver
    only where they can't be written: a receiver of Azurite takes minutes for a thousand.
    """
    try:
        await broker.create_queue(QUEUE, QueueProperties())
    except EntityExists:
        await trio.lowlevel.checkpoint()
    messages = [Message(message_id=f"m{each}", body=b"%d" % each) for each in range(count)]
    writes = offered(broker, WritesDeadLetters)
    if writes is not None:
        for each in messages:
            properties = {DEAD_LETTER_REASON: reason_of(each)}
            await writes.dead_letter(QUEUE, attrs.evolve(each, properties=properties))
        return
    for first in range(0, count, TOGETHER):
        await broker.send(QUEUE, messages[first : first + TOGETHER])
    check("dead-lettered", len(await settled(broker, count)), count)


def check(what: str, found: object, expected: object) -> None:
    """Raises: WrongCount: they differ."""
    if found != expected:
        raise WrongCount(f"{what}: {expected} expected, found {found}")


# --- the commands


@attrs.frozen
class Commands:
    config: Path

    async def run(self, *words: str, after: float | None = None) -> Any:
        """The JSON that the command prints; `after` so many seconds it gets Ctrl-C."""
        command = [*COMMAND, *words, "--config", str(self.config), "--json"]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(
                    trio.run_process,
                    command,
                    cwd=self.config.parent,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdout=subprocess.PIPE,
                    stderr=None,
                    check=False,
                )
            )
            if after is not None:
                await trio.sleep(after)
                process.send_signal(signal.SIGINT)
            printed = b"".join([part async for part in process.stdout])
        if not printed:
            raise WrongCount(f"{' '.join(words)}: nothing printed")
        return json.loads(printed)


async def measure(kind: str, count: int, folder: Path) -> Found:
    """Raises: WrongCount."""
    config = folder / "pairgate.toml"
    async with KINDS[kind](folder) as table:
        config.write_text(f"[namespaces.test]\n{table}\n")
        async with opened(config) as broker:
            await bury(broker, count)
        look = await _look(Commands(config), count)
        found, told = await _move(Commands(config), kind, count, look)
        async with opened(config) as broker:
            received = await settled(broker, count + len(told), Complete())
    judge(received, count, told)
    return found


async def _look(commands: Commands, count: int) -> float:
    """Return the seconds that a look takes, with which a command that moves begins."""
    shown = await commands.run("dead-letters", str(QUEUE), "--peek", "20")
    groups = {each["reason"]: each["messages"] for each in shown["groups"]}
    check("shown", groups, {EVEN: count // 2, ODD: count - count // 2})
    check("samples", len(shown["samples"]), 20)
    began = time.monotonic()
    looked = await commands.run(*ONLY_EVEN)
    if not looked["problems"]:  # Storage Queue hides for a while what was just looked at
        check("to be moved", looked["moves"], count // 2)
    return time.monotonic() - began


async def _move(
    commands: Commands, kind: str, count: int, look: float
) -> tuple[Found, Sequence[str]]:
    """Move all; return the ids of copies whose outcome is unknown, too."""
    half = count // 2
    move = (*ONLY_EVEN, "--execute", "--set", "fixed=yes", "--rate", str(RATE))
    seconds = random.uniform(0.3, 0.6) * half / RATE
    first = await commands.run(*move, after=look + seconds)
    second = await commands.run(*move)
    check("moved", first["moved"] + second["moved"], half)
    began = time.monotonic()
    rest = await commands.run("redrive", str(QUEUE), "--execute", "--rate", "0")
    check("moved without a limit", rest["moved"], count - half)
    unlimited = rest["moved"] / (time.monotonic() - began)
    problems = [each for part in (first, second, rest) for each in part["problems"]]
    told = [told[1] for each in problems if (told := TOLD.search(each))]
    rate = first["moved"] / seconds
    stopped_at = first["moved"]
    found = Found(kind=kind, stopped_at=stopped_at, rate=rate, unlimited=unlimited, told=len(told))
    return found, told


def judge(found: Sequence[Message], count: int, told: Sequence[str]) -> None:
    """Raises: WrongCount: a message is lost, or twice and wasn't told, or has another's change."""
    times = Counter(int(each.body) for each in found)
    check("lost", [each for each in range(count) if not times[each]], [])
    twice = [each for each in range(count) if times[each] > 1]
    check("twice without being told", [each for each in twice if f"m{each}" not in told], [])
    wrong = [
        each.body
        for each in found
        if (each.properties.get("fixed") == "yes") != (int(each.body) % 2 == 0)
    ]
    check("with the change of others", wrong, [])


def show(found: Sequence[Found], count: int, console: Console) -> None:
    table = Table("namespace", "stopped at", "a second", "then, a second", "told", box=SIMPLE_HEAD)
    for each in found:
        rates = f"{each.rate:.0f}", f"{each.unlimited:.0f}"
        table.add_row(each.kind, str(each.stopped_at), *rates, str(each.told))
    console.print(f"{count:,} dead letters of one queue, with a rate of {RATE} a second")
    console.print(table)
    console.print("None was lost, and none came twice that the command hadn't told.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dead_letters", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND")
    parser.add_argument("--messages", type=int, default=10_000)
    arguments = parser.parse_args()
    console, found = Console(), []
    for kind in arguments.only:
        with tempfile.TemporaryDirectory(prefix="pairgate-bench-") as name:
            folder = Path(name)
            about = facts(folder)
            found.append(trio.run(measure, kind, arguments.messages, folder))
    show(found, arguments.messages, console)
    console.print(", ".join(f"{name}: {value}" for name, value in about.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
