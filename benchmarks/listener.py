"""
Measures the costs of a listener, and how soon it begins: three parts.

    .venv/bin/python -m benchmarks.listener [--only PART ...] [--namespace NAME ...] [--rounds N]
                                            [--wakes N] [--triggered N] [--json FILE]

wakes   a `pairgate serve` with a store on disk, a `pairgate listen` whose handler notes when it was
        called, and this process, which sends over REST and knows when it began and had its answer.
        All of them have one clock. A listener that has a long poll under way is woken by its
        answer, one that has been idle for longer by a trigger, whereupon it asks.
rates   messages/s on each kind of namespace, beside a plain receive loop (`listener_rates`)
idle    requests of 22 hours without a message, on virtual time (`listener_idle`)
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from rich.console import Console

from benchmarks import listener_idle
from benchmarks import listener_rates as rates
from benchmarks.listener_idle import HOURS, NAIVE, Idle
from benchmarks.listener_rates import NAMESPACES, Row
from benchmarks.machine import facts
from benchmarks.stopwatch import processor_time
from benchmarks.targets import Target, show_targets
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.listening import Item
from gateway.ports import Broker
from tests.e2e.installation import client
from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, broker_config, open_gateways

ADMIN: Final = '\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\n'
ORDERS: Final = EntityPath("orders")
NOTES: Final = "notes"
REST_SECONDS: Final = 0.1  # of an idle queue before each wake
LIMIT: Final = 90.0  # seconds
LONGEST: Final = 50.0  # ms, of 99 of 100 wakes
_WIDTH: Final = 110
_LOOK: Final = 0.002


async def handle(item: Item[Message]) -> None:
    """Note, in the listener's process, when it was called: the clock is that of all processes."""
    line = f"{item.message.message_id} {time.clock_gettime(time.CLOCK_MONOTONIC)}\n"
    notes = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(notes, line.encode())
    os.close(notes)


@attrs.frozen(kw_only=True)
class Wakes:
    """Milliseconds until the handler is called."""

    from_send: Sequence[float]
    from_answer: Sequence[float]  # below 0: it was called before the producer had its answer
    # Seconds of processor time for each wake, of each process.
    costs: Mapping[str, float] = attrs.field(factory=dict)

    def of(self, share: float, values: Sequence[float]) -> float:
        ordered = sorted(values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def triggered_config(gateway: GatewayProcess) -> str:
    """
    Return the configuration of a listener that stops asking after one look in vain, of a second.
    """
    return f"""
logging = {{ level = "debug" }}
[namespaces.here]
url = "servicebus+http://RootManageSharedAccessKey@{gateway.address}"
key = {{ env = "{KEY_VARIABLE}" }}
receive_poll = "1s"
[listener]
idle_max = "50ms"
triggers = ["http://127.0.0.1:{gateway.ports[1]}"]
"""


async def measure_wakes(
    broker: Broker,
    gateway: GatewayProcess,
    listener: GatewayProcess,
    count: int,
    *,
    by_trigger: bool = False,
) -> Wakes:
    """
    Send one message at a time into an idle queue, and measure how soon its handler is called.

    `by_trigger`: each message waits until the listener doesn't poll any more.
    """
    processes = {"gateway": gateway, "listener": listener}
    await listener.seen("triggers_regained")
    before = {name: processor_time(each.pid) for name, each in processes.items()}
    notes = listener.folder / NOTES
    sent: list[tuple[float, float]] = []
    for number in range(count):
        if by_trigger:
            ends = number + 1
            await listener.until(lambda ends=ends: listener.count("tasks_ended", tasks=0) >= ends)
        await trio.sleep(REST_SECONDS)
        began = now()
        await broker.send(ORDERS, [Message(message_id=str(number), body=b"x")])
        sent.append((began, now()))
        await _until_lines(notes, number + 1)
    called = dict(line.split() for line in notes.read_text().splitlines())
    times = [(float(called[str(number)]), *each) for number, each in enumerate(sent)]
    return Wakes(
        from_send=[1000 * (at - began) for at, began, _ in times],
        from_answer=[1000 * (at - answered) for at, _, answered in times],
        costs={
            name: (processor_time(each.pid) - before[name]) / count
            for name, each in processes.items()
        },
    )


async def _until_lines(notes: Path, count: int) -> None:
    with trio.fail_after(LIMIT):
        while True:  # polled, since another process changes the state
            if _lines_of(notes) >= count:
                return
            await trio.sleep(_LOOK)


def _lines_of(notes: Path) -> int:
    return notes.read_bytes().count(b"\n") if notes.exists() else 0


async def wake(folder: Path, wakes: int, triggered: int) -> tuple[Wakes, Wakes]:
    async with open_gateways(folder) as gateways:
        gateway = await gateways.start(broker_config("orders") + ADMIN, name="gateway")
        command = ("listen", "orders", "--python", "benchmarks.listener:handle")
        async with client(gateway) as broker:
            first = await gateways.start(gateway.config, name="wakes", command=command)
            woken = await measure_wakes(broker, gateway, first, wakes)
            await first.stop()
            config, here = triggered_config(gateway), (*command, "--namespace", "here")
            idle = await gateways.start(config, name="idle", command=here)
            by_trigger = await measure_wakes(broker, gateway, idle, triggered, by_trigger=True)
            await idle.stop()
    return woken, by_trigger


def lines_of_wakes(woken: Wakes, by_trigger: Wakes) -> list[str]:
    def figures(values: Sequence[float]) -> str:
        shares = [statistics.median(values), woken.of(0.99, values), max(values)]
        return "median {:.1f} ms, p99 {:.1f} ms, longest {:.1f} ms".format(*shares)

    return [
        f"{len(woken.from_send)} wakes of a listener in another process, by its long poll",
        f"  from the begin of the send: {figures(woken.from_send)}",
        f"  from the producer's answer: {figures(woken.from_answer)}",
        f"  CPU of a wake: {_costs(woken.costs)}",
        f"{len(by_trigger.from_send)} wakes of one that doesn't ask any more, by a trigger",
        f"  from the begin of the send: {figures(by_trigger.from_send)}",
        f"  from the producer's answer: {figures(by_trigger.from_answer)}",
        f"  CPU of a wake: {_costs(by_trigger.costs)}",
    ]


def targets_of(woken: Wakes) -> list[Target]:
    p99 = woken.of(0.99, woken.from_answer)
    return [
        Target(
            text=f"99 of 100 wakes at most {LONGEST:.0f} ms after the producer's answer",
            reached=p99 <= LONGEST,
            found=f"{p99:.1f} ms",
        )
    ]


def _costs(costs: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {1e6 * cost:.0f} us" for name, cost in costs.items())


def lines_of_rates(rows: Sequence[Row]) -> list[str]:
    return [
        "messages/s to a handler that does nothing, and of a plain loop",
        *(
            f"  {row.namespace}, {row.way}: {row.ours:.0f}, {row.plain:.0f},"
            f" {row.ratio:.2f} times; {row.requests:.2f} requests for each message;"
            f" CPU of a message: {_costs(row.costs)};"
            f" of the plain loop's: {_costs(row.plain_costs)}"
            for row in rows
        ),
    ]


def lines_of_idle(idle: Sequence[Idle]) -> list[str]:
    return [
        f"requests in {HOURS} idle hours; a thread that looks each second: {NAIVE}",
        *(f"  {each.name}: {each.requests}, {100 * each.of_naive:.2f} %" for each in idle),
    ]


PARTS: Final = ("wakes", "rates", "idle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--namespace", nargs="+", choices=NAMESPACES, default=list(NAMESPACES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wakes", type=int, default=200)
    parser.add_argument("--triggered", type=int, default=40)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = _measure(Path(name), given)
    sys.stdout.flush()
    if given.json:
        given.json.write_text(json.dumps(found))


def _measure(folder: Path, given: argparse.Namespace) -> Mapping[str, Any]:
    """
    Measure the parts that were chosen, print each as soon as it is done, and return all of them.
    """
    found: dict[str, Any] = {"machine": dict(facts(folder))}
    _print([f"{key}: {value}" for key, value in found["machine"].items()])
    if "wakes" in given.only:
        woken, by_trigger = trio.run(wake, folder / "wakes", given.wakes, given.triggered)
        _print(lines_of_wakes(woken, by_trigger))
        show_targets(targets_of(woken), Console(width=_WIDTH))
        found["wakes"] = attrs.asdict(woken)
        found["by_trigger"] = attrs.asdict(by_trigger)
    if "rates" in given.only:
        rows: list[Row] = []
        for number, name in enumerate(given.namespace):
            rows += trio.run(rates.measure, folder / f"rates-{number}", name, given.rounds)
        _print(lines_of_rates(rows))
        found["rates"] = [attrs.asdict(row) for row in rows]
    if "idle" in given.only:
        idle = [listener_idle.measure(way) for way in (listener_idle.SOURCE, *listener_idle.WAYS)]
        _print(lines_of_idle(idle))
        found["idle"] = [attrs.asdict(each) for each in idle]
    return found


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
