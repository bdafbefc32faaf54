"""
A real outage, recorded: `python -m benchmarks.chaos.outage FOLDER`, and then the checker.

    open loops ──▶ gateway ──▶ primary (killed, or frozen)
                      └──────▶ secondary ──(the gateway's syphon)──▶ primary

The gateway adds only its log of the entity states.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.chaos.checker import write
from benchmarks.failover import CONNECTIONS
from benchmarks.fleet import Fleet, client_of, gateway_config, open_fleet
from benchmarks.stopwatch import processor_time
from benchmarks.traffic import BODY, OpenLoop
from gateway.checker.history import (
    Bounds,
    Closed,
    Drained,
    EntityStateMoved,
    FaultBegan,
    FaultEnded,
    FaultTarget,
    Healed,
    Opened,
    RunBegan,
    Sampled,
    Swallowed,
)
from gateway.checker.operations import Record, Uncertain
from gateway.demo.audit import AuditedNamespace, audit, pending
from gateway.demo.machines import DemoMachine, LogLine
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.failover import State
from gateway.ports import Broker

QUEUES: Final = ("orders", "invoices")
HEALTHY: Final = 3.0  # seconds before the outage
LOOK: Final = 0.2
DRAIN_LIMIT: Final = 240.0
BOUNDS: Final = Bounds(
    failover_interval=2.0,
    send_timeout=10.0,
    attempt_timeout=3.0,
    ping_interval=1.0,
    drain_rate=100.0,  # far below the rates that `benchmarks/syphon.py` measures
    quiet=4.0,
    slack=2.0,  # for a machine that does other things as well
)
OPTIONS: Final = {
    "failover_interval": "2s",
    "send_timeout": "10s",
    "attempt_timeout": "3s",
    "ping_interval": "1s",
    "enable_syphon": True,
}


@attrs.define(eq=False)
class Outage:
    """A run, with processes of its own; `files` has the records of each participant."""

    kind: str  # killed or frozen
    seconds: float
    rate: float  # messages/s of each loop
    loops: Sequence[OpenLoop] = attrs.field(
        factory=lambda: [OpenLoop(queue, EntityPath(queue)) for queue in QUEUES], init=False
    )
    gateway: list[Record] = attrs.field(factory=list, init=False)
    nemesis: list[Record] = attrs.field(factory=list, init=False)
    watcher: list[Record] = attrs.field(factory=list, init=False)
    auditor: list[Record] = attrs.field(factory=list, init=False)

    async def perform(self, fleet: Fleet) -> None:
        fleet.watch = self._note_line
        self.auditor.append(RunBegan(at=trio.current_time(), bounds=BOUNDS))
        primary, secondary = await fleet.start_brokers(*QUEUES)
        gateway = await fleet.start(
            "gateway", gateway_config(primary.port, secondary.port, **OPTIONS)
        )
        async with AsyncExitStack() as stack:
            at_primary, at_secondary = [
                await stack.enter_async_context(client_of(machine.port))
                for machine in (primary, secondary)
            ]
            async with trio.open_nursery() as watching:
                watching.start_soon(self._watch, gateway)
                async with trio.open_nursery() as sending:
                    for loop in self.loops:
                        client = client_of(gateway.port, connections=CONNECTIONS)
                        broker = await stack.enter_async_context(client)
                        sending.start_soon(loop.run, broker, self.rate)
                    await self._suffer(primary, fleet.nursery, at_secondary)
                self._excuse()
                await self._drain(at_secondary)
                await trio.sleep(BOUNDS.quiet + 2 * LOOK)
                watching.cancel_scope.cancel()
            await gateway.stop()
            self.auditor += await _audit(at_primary, at_secondary)

    def files(self) -> dict[str, list[Record]]:
        """The records by the name of their recorder."""
        producers = {f"producer of {loop.name}": loop.records for loop in self.loops}
        others = {
            "gateway's log": self.gateway,
            "nemesis": self.nemesis,
            "watcher": self.watcher,
            "auditor": self.auditor,
        }
        return {name: _whole(name, records) for name, records in {**producers, **others}.items()}

    async def _suffer(self, primary: DemoMachine, home: trio.Nursery, at_secondary: Broker) -> None:
        await trio.sleep(HEALTHY)
        began = trio.current_time()
        fault = FaultBegan(at=began, fault="1", kind=self.kind, target=FaultTarget.PRIMARY)
        self.nemesis.append(fault)
        if self.kind == "killed":
            await primary.kill()
            await trio.sleep(self.seconds)
            await primary.start(home)
        else:
            os.kill(primary.pid, signal.SIGSTOP)
            await trio.sleep(self.seconds)
            os.kill(primary.pid, signal.SIGCONT)
        ended = trio.current_time()
        self.nemesis.append(FaultEnded(at=ended, fault="1"))
        left = await _left(at_secondary)
        self.auditor.append(Healed(at=trio.current_time(), backlog=left))
        await trio.sleep(BOUNDS.return_within + HEALTHY)
        for loop in self.loops:
            loop.stopping = True

    def _excuse(self) -> None:
        """Record the sends that met the outage: the primary may have got them as well."""
        began, ended = [record.at for record in self.nemesis]
        met = [
            send.message_id
            for loop in self.loops
            for send in loop.sends
            if send.due <= ended and send.answered >= began
        ]
        self.nemesis.append(Swallowed(at=ended, messages=len(met)))
        self.nemesis.extend(Uncertain(at=ended, message_id=each) for each in met)

    async def _drain(self, at_secondary: Broker) -> None:
        with trio.move_on_after(DRAIN_LIMIT):
            while True:
                if not await _left(at_secondary):
                    break
                await trio.sleep(LOOK)  # polled, since another process changes the state
            self.auditor.append(Drained(at=trio.current_time()))

    async def _watch(self, gateway: DemoMachine) -> None:
        """
        Record samples of the gateway; `inflight`: the bytes of all sends without an answer, as the
        gateway can't have more.
        """
        while True:
            self.watcher.append(
                Sampled(
                    at=trio.current_time(),
                    process="gateway",
                    inflight=sum(loop.under_way for loop in self.loops) * len(BODY),
                    processor=processor_time(gateway.pid),
                )
            )
            await trio.sleep(LOOK)

    def _note_line(self, name: str, line: LogLine) -> None:
        if name == "gateway" and line.get("event") == "entity_state_changed":
            self.gateway.append(
                EntityStateMoved(
                    at=trio.current_time(),
                    process=name,
                    entity=EntityPath(str(line["entity"])).key,
                    before=State(line["before"]),
                    after=State(line["after"]),
                )
            )


def _whole(name: str, records: Sequence[Record]) -> list[Record]:
    moments = [record.at for record in records] or [0.0]
    return [Opened(at=min(moments), process=name), *records, Closed(at=max(moments), process=name)]


async def _left(broker: Broker) -> int:
    while True:
        try:
            return await pending(broker)
        except BrokerError:
            await trio.sleep(LOOK)  # the gateway is busy: ask again


async def _audit(at_primary: Broker, at_secondary: Broker) -> list[Record]:
    return await audit(
        [AuditedNamespace.primary(at_primary), AuditedNamespace.secondary(at_secondary)]
    )


async def _perform(outage: Outage, machines: Path) -> None:
    async with open_fleet(machines) as fleet:
        await outage.perform(fleet)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record a real outage of the primary.")
    parser.add_argument("folder", type=Path, help="the folder to make, which the checker judges")
    parser.add_argument("--outage", choices=("killed", "frozen"), default="killed")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds that the outage lasts")
    parser.add_argument("--rate", type=float, default=40.0, help="messages/s of each of two loops")
    chosen = parser.parse_args(arguments)
    if any(chosen.folder.glob("*.jsonl")):
        parser.error(f"{chosen.folder} has the history of another run")
    outage = Outage(chosen.outage, chosen.seconds, chosen.rate)
    with tempfile.TemporaryDirectory(prefix="pairgate-chaos-") as machines:
        trio.run(_perform, outage, Path(machines))
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name, records in outage.files().items():
        print(write(chosen.folder, name, records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
