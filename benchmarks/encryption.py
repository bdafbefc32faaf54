"""
The cost of encrypting diverted messages, beside signing them alone.

    steps    wrapping and unwrapping one message in this process, in hot caches
    sends    wrk ──▶ gateway ──▶ sink, which is the primary of the first gateway, and the secondary
             of two others whose primary is down: of these one signs, and one encrypts

The ways take turns, and a ratio is the median of the rounds' ratios. The way back is measured by
`benchmarks.syphon --encrypted`.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import (
    ENVELOPE_KEY,
    bench_envelope,
    gateway_config,
    now,
    open_fleet,
    token,
)
from benchmarks.load import post
from benchmarks.machine import facts_of_processor
from benchmarks.report import report_of, show_facts
from benchmarks.stopwatch import processor_time
from benchmarks.workers import sink
from gateway.demo.machines import DemoMachine
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath
from gateway.domain.identity import fingerprint
from gateway.domain.message import Message
from gateway.wire.amqp.message import (
    decode_message,
    encode_message,
    encoded_size,
)

PRIMARY, SIGNED, ENCRYPTED = WAYS = ("primary", "signed", "encrypted")
PARTS: Final = ("steps", "sends")
ORDERS: Final = EntityPath("orders")
KEY_VARIABLE: Final = "ENVELOPE_KEY"
MEANT_FOR: Final = fingerprint("servicebus://primary.example.net")
SIZES: Final = (100, 1024, 64 * 1024)  # bytes of a body
OWN: Final[Sequence[Mapping[str, Any]]] = ({}, {"priority": "high", "number": 7, "vip": True})
BATCH: Final = 100  # messages of one turn
TURNS: Final = 200
CONNECTIONS: Final = 8
ROUNDS: Final = 5
SECONDS: Final = 5
WIDTH: Final = 110


@attrs.frozen(kw_only=True)
class Step:
    """The figures of a shape of message. Times are microseconds of a message, sizes are bytes."""

    body: int
    properties: int  # their number
    wrap: Mapping[str, float]  # by way
    unwrap: Mapping[str, float]
    added: Mapping[str, int]  # by the envelope


@attrs.frozen(kw_only=True)
class Sends:
    """The medians of one way's rounds."""

    way: str
    cpu_us: float  # of the gateway, per message
    rate: float  # messages/s
    ratio: float  # of the processor time to that of the signed ones


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    steps: Sequence[Step]
    sends: Sequence[Sends]


def measure_step(body: int, properties: Mapping[str, Any]) -> Step:
    """Wrap and unwrap messages as they come from a client, and from a backlog queue."""
    codecs = {SIGNED: bench_envelope(encrypts=False), ENCRYPTED: bench_envelope(encrypts=True)}
    sent = [
        decode_message(encode_message(Message(message_id=f"{n:036}", body=b"x" * body)))
        for n in range(BATCH)
    ]
    sent = [attrs.evolve(each, properties=dict(properties)) for each in sent]
    date = now()

    def wrapped(way: str) -> list[Message]:
        codec = codecs[way]
        return [
            codec.wrap(each, ORDERS, attempt=each.message_id, now=date, primary=MEANT_FOR)
            for each in sent
        ]

    stored = {
        way: [decode_message(encode_message(each)) for each in wrapped(way)] for way in codecs
    }

    def unwrap(way: str) -> None:
        codec = codecs[way]
        for each in stored[way]:
            codec.unwrap(each)

    # A wrapped message is encoded to be sent, which costs an encrypted one less: that counts.
    wraps = _in_turn(list(codecs), lambda way: [encode_message(each) for each in wrapped(way)])
    return Step(
        body=body,
        properties=len(properties),
        wrap=wraps,
        unwrap=_in_turn(list(codecs), unwrap),
        added={way: encoded_size(stored[way][0]) - encoded_size(sent[0]) for way in codecs},
    )


def _in_turn(ways: Sequence[str], work: Callable[[str], object]) -> dict[str, float]:
    """Microseconds of processor time of one message: the median of the quickest half of turns."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way in ways:
            began = time.process_time()
            work(way)
            times[way].append(time.process_time() - began)
    return {
        way: 1e6 * statistics.median(sorted(each)[: TURNS // 2]) / BATCH
        for way, each in times.items()
    }


def config(primary: int, secondary: int, *, encrypts: bool) -> str:
    text = gateway_config(primary, secondary, encrypt=encrypts, failover_interval="0s")
    keys = f'envelope_keys = [{{ id = "{ENVELOPE_KEY.id}", key = {{ env = "{KEY_VARIABLE}" }} }}]'
    return text.replace("[pairing]\n", f"[pairing]\n{keys}\n")


async def measure(folder: Path, *, parts: Sequence[str], rounds: int, seconds: int) -> Report:
    """Measure all ways in turn."""
    facts = dict(facts_of_processor())
    shapes = [(size, own) for size in SIZES for own in OWN] if "steps" in parts else []
    steps = [measure_step(size, own) for size, own in shapes]
    sends = await _measure_sends(folder, rounds, seconds) if "sends" in parts else []
    await trio.lowlevel.checkpoint()
    return Report(facts=facts, steps=steps, sends=sends)


async def _measure_sends(folder: Path, rounds: int, seconds: int) -> list[Sends]:
    down = free_port()
    async with sink() as well, sink() as other, open_fleet(folder) as fleet:
        fleet.environment_of = lambda _: {KEY_VARIABLE: ENVELOPE_KEY.key.decode()}
        gateways = {
            PRIMARY: await fleet.start(PRIMARY, config(well, other, encrypts=False)),
            SIGNED: await fleet.start(SIGNED, config(down, other, encrypts=False)),
            ENCRYPTED: await fleet.start(ENCRYPTED, config(down, other, encrypts=True)),
        }
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for number in range(rounds + 1):
            for way, gateway in gateways.items():
                found = await _send(gateway, seconds)
                if number:  # round 0 warms up
                    taken[way].append(found)
        for way in WAYS:
            if bool(fleet.events[way, "entity_state_changed"]) == (way == PRIMARY):
                raise SystemExit(f"{way}: the messages didn't go where they should")
    return [
        Sends(
            way=way,
            cpu_us=1e6 * statistics.median(cpu for cpu, _ in found),
            rate=statistics.median(rate for _, rate in found),
            ratio=statistics.median(
                cpu / signed for (cpu, _), (signed, _) in zip(found, taken[SIGNED], strict=True)
            ),
        )
        for way, found in taken.items()
    ]


async def _send(gateway: DemoMachine, seconds: int) -> tuple[float, float]:
    """Seconds of processor time per message, and messages/s."""
    before = processor_time(gateway.pid)
    url = f"http://127.0.0.1:{gateway.port}/{ORDERS}/messages"
    found = await post(url, token(), connections=CONNECTIONS, seconds=seconds)
    return (processor_time(gateway.pid) - before) / found.answers, found.rate


def _show(report: Report, console: Console) -> None:
    show_facts(report.facts, console)
    if report.steps:
        columns = ("body", "properties", "wrap us", "", "unwrap us", "", "bytes added", "")
        table = Table(*columns, title="signed, and encrypted", box=SIMPLE_HEAD)
        for each in report.steps:
            figures = [
                f"{found[way]:.1f}" for found in (each.wrap, each.unwrap) for way in WAYS[1:]
            ]
            added = [str(each.added[way]) for way in WAYS[1:]]
            table.add_row(str(each.body), str(each.properties), *figures, *added)
        console.print(table)
    if report.sends:
        table = Table("sends", "CPU us a message", "of signed", "messages/s", box=SIMPLE_HEAD)
        for row in report.sends:
            table.add_row(row.way, f"{row.cpu_us:.1f}", f"{row.ratio:.3f}", f"{row.rate:.0f}")
        console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of encrypting what is diverted.")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of the sends")
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, help="seconds of each round and way"
    )
    arguments = parser.parse_args()
    report_of(
        lambda folder: measure(
            folder,
            parts=arguments.only,
            rounds=arguments.rounds,
            seconds=arguments.seconds,
        ),
        _show,
        as_json=arguments.json,
        width=WIDTH,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
