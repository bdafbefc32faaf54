"""
The demo's steps: normal operation, an outage of the primary, its return, the drain of the backlog,
the verdict.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.runtime import Runtime
from gateway.brokers.servicebus.broker import (
    ServiceBusRestBroker,
    ServiceBusRestOptions,
    open_namespace,
)
from gateway.checker.operations import CopyPlace, Found
from gateway.checker.verdict import Rules, Verdict, Violation, judge
from gateway.demo.audit import PAGE, AuditedNamespace, audit, pending
from gateway.demo.machines import KEY, KEY_NAME, DemoMachine, LogLine, broker_config, gateway_config
from gateway.demo.traffic import Traffic
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.ports import Broker

LABEL: Final = "demo"
SCHEME: Final = "servicebus+http"
ENTITIES: Final = ("orders", "invoices")
PRODUCERS: Final = 2  # for each entity
RATE: Final = 30.0  # messages/s of each producer
HEALTHY: Final = 2.5  # seconds
OUTAGE: Final = 5.0
RECOVERY: Final = 2.5
DRAIN_LIMIT: Final = 60.0  # seconds: 10 were too few on two cores at a load of 14
LOOK: Final = 0.25
BACKLOG_QUEUES: Final = 10

MEANING: Final = {
    State.PRIMARY: "all sends go to the primary",
    State.SUSPECT: "the primary fails; one send at a time is a trial, the others go to the backlog",
    State.SECONDARY: "failed for too long; all sends go to the backlog, probes test the primary",
    State.HALF_OPEN: "the primary answers; one send at a time is a trial",
    State.PINNED: "all sends go to the backlog",
}

Narrate = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Result:
    """The verdict, and the figures of the run."""

    sent: int
    acknowledged: int
    diverted: int
    syphoned: int
    received: int
    lost: int
    duplicates: int
    errors: int
    longest_stall: float  # seconds
    outage: float  # seconds
    verdict: Verdict

    @property
    def passed(self) -> bool:
        return self.verdict.passed


@attrs.define(eq=False)
class Story:
    """A run of the demo, in a folder of its own. `traffic` and `events` may be read meanwhile."""

    folder: Path
    narrate: Narrate
    traffic: Traffic = attrs.field(factory=Traffic, init=False)
    events: Counter[str] = attrs.field(factory=Counter, init=False)
    syphoned: int = attrs.field(default=0, init=False)
    _machines: list[DemoMachine] = attrs.field(factory=list, init=False)

    async def run(self) -> Result:
        """
        Run the demo to its end; all processes have ended when this returns.

        Raises:
            MachineFailed: a process didn't start.
        """
        try:
            async with trio.open_nursery() as nursery:
                result = await self._play(nursery)
                nursery.cancel_scope.cancel()
        finally:
            for machine in self._machines:
                machine.kill_at_once()
        return result

    async def _play(self, nursery: trio.Nursery) -> Result:
        queues = [backlog.queue_name(LABEL, index).name for index in range(BACKLOG_QUEUES)]
        primary = self._machine("primary", broker_config(*ENTITIES))
        secondary = self._machine("secondary", broker_config(*queues))
        async with trio.open_nursery() as starting:
            starting.start_soon(primary.start, nursery)
            starting.start_soon(secondary.start, nursery)
        config = gateway_config(primary.port, secondary.port, LABEL)
        gateway = self._machine("gateway", config)
        await gateway.start(nursery)
        self.narrate(f"a primary, a secondary and a gateway run as processes ({self._pids()})")
        outage = await self._send_through_an_outage(primary, gateway, nursery)
        async with AsyncExitStack() as stack:
            at_primary = await stack.enter_async_context(_client(primary.port))
            at_secondary = await stack.enter_async_context(_client(secondary.port))
            await self._wait_for_the_syphon(at_secondary)
            await gateway.stop()
            self.narrate("the gateway is stopped; the audit reads every queue of both brokers")
            return await self._judge(at_primary, at_secondary, outage)

    async def _send_through_an_outage(
        self, primary: DemoMachine, gateway: DemoMachine, nursery: trio.Nursery
    ) -> float:
        async with AsyncExitStack() as stack, trio.open_nursery() as producers:
            for entity in ENTITIES:
                for number in range(PRODUCERS):
                    client = await stack.enter_async_context(_client(gateway.port))
                    name = f"{entity}-{number}"
                    producers.start_soon(
                        self.traffic.produce, client, EntityPath(entity), name, RATE
                    )
            total = len(ENTITIES) * PRODUCERS
            self.narrate(f"{total} producers send {total * RATE:.0f} messages/s to the gateway,")
            self.narrate(f"to the queues {' and '.join(ENTITIES)} of the primary")
            await trio.sleep(HEALTHY)
            killed = trio.current_time()
            await primary.kill()
            self.narrate("the primary is killed (SIGKILL); the producers go on sending")
            await trio.sleep(OUTAGE)
            await primary.start(nursery)
            outage = trio.current_time() - killed
            self.narrate(f"the primary is started again, after {outage:.1f} s")
            await trio.sleep(RECOVERY)
            self.traffic.stopping = True
        self.narrate("the producers stop")
        return outage

    async def _wait_for_the_syphon(self, at_secondary: Broker) -> None:
        with trio.move_on_after(DRAIN_LIMIT) as limit:
            while True:
                if not await self._pending(at_secondary):
                    break
                # Another process changes its status, without a signal to this one.
                await trio.sleep(LOOK)
        if limit.cancelled_caught:
            self.narrate(f"the backlog isn't empty after {DRAIN_LIMIT:.0f} s")
        else:
            self.narrate(f"the syphon has moved {self.syphoned} messages to the primary")

    async def _pending(self, at_secondary: Broker) -> bool:
        try:
            return await pending(at_secondary) > 0
        except BrokerError:
            return True  # unknown: ask again, within the limit

    async def _judge(self, at_primary: Broker, at_secondary: Broker, outage: float) -> Result:
        found = await audit(
            [AuditedNamespace.primary(at_primary), AuditedNamespace.secondary(at_secondary)]
        )
        # At the kill, each producer may have had one send with an unknown outcome, and so may each
        # trial until the failover.
        rules = Rules(spare_duplicates=4 * len(ENTITIES) * PRODUCERS)
        verdict = judge([*self.traffic.records, *found], rules)
        lost = sum(finding.violation is Violation.LOST for finding in verdict.findings)
        arrived = {
            f.message_id for f in found if isinstance(f, Found) and f.place is CopyPlace.PRIMARY
        }
        traffic = self.traffic
        return Result(
            sent=traffic.sent,
            acknowledged=traffic.acknowledged,
            diverted=traffic.accepted_by_counts[AcceptedBy.BACKLOG],
            syphoned=self.syphoned,
            received=len(arrived),
            lost=lost,
            duplicates=verdict.counts.get("duplicated", 0),
            errors=traffic.errors,
            longest_stall=traffic.longest_stall,
            outage=outage,
            verdict=verdict,
        )

    def _machine(self, name: str, config: str) -> DemoMachine:
        machine = DemoMachine(name, self.folder / name, config, self._on_log)
        self._machines.append(machine)
        return machine

    def _on_log(self, machine: DemoMachine, line: LogLine) -> None:
        event = str(line.get("event"))
        if machine.name != "gateway":
            return
        self.events[event] += 1
        if event == "syphoned":
            self.syphoned += int(line["messages"])
        elif event == "entity_state_changed":
            self.narrate(f"{line['entity']} is {line['after']}: {MEANING[State(line['after'])]}")

    def _pids(self) -> str:
        return ", ".join(f"{machine.name} {machine.pid}" for machine in self._machines)


def _client(port: int) -> ServiceBusRestBroker:
    """The client of the producers and the audit: the same that a gateway uses for a namespace."""
    options = ServiceBusRestOptions(key=KEY, max_connections=PAGE)
    return open_namespace(SCHEME, f"//{KEY_NAME}@127.0.0.1:{port}", options, Runtime().now)
