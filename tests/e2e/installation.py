"""A whole installation as processes, under load: the faults, and the verdict."""

import math
import random
import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import attrs
import trio

from gateway.brokers.servicebus.broker import (
    ServiceBusRestBroker,
    ServiceBusRestOptions,
    open_namespace,
)
from gateway.checker.operations import Completed, Delivered, Record, fingerprint
from gateway.checker.verdict import Rules, Verdict, judge
from gateway.demo.audit import AuditedNamespace, audit, pending
from gateway.demo.traffic import Traffic
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import AcceptedBy, Complete, Delivery
from gateway.ports import Broker, Receiver
from tests.e2e.plain_rest import KEY, KEY_NAME, PlainRest
from tests.e2e.processes import PATIENT, GatewayProcess, Gateways, broker_config, pair_config
from tests.harness.patience import PATIENCE

LABEL: Final = "east"
ENTITIES: Final = ("orders", "invoices", "audit/log")
BACKLOG_QUEUES: Final = 4
SYPHON_BATCH: Final = 10
# The locks of a killed syphon stay: a lock belongs to its token, not to a connection. The pair
# takes backlog queues as it finds them, so that here they have shorter locks than its own.
LOCK: Final = timedelta(seconds=5)
LONGEST_SEND: Final = 60.0  # seconds: no send fails as the machine stalls
BATCH: Final = 5  # messages that a producer sends at once
TRIALS: Final = 3  # of a suspect entity, until the interval of a second is over
NO_ANSWER: Final = re.compile("no answer|no whole answer|OutcomeUnknown")
LOOK: Final = 0.1


def syphon_table(attempt_timeout: str) -> str:
    return f"""
[pairing.syphon]
batch = {SYPHON_BATCH}
attempt_timeout = "{attempt_timeout}"
unknown_retry = {{ first = "500ms", cap = "2s" }}
retry = {{ first = "500ms", cap = "2s" }}
queue_retry = {{ first = "500ms", cap = "2s" }}
rescan = "2s"
"""


@attrs.define(eq=False, kw_only=True)
class Installation:
    """
    Two brokers, a gateway before them, and syphons beside or inside of it.

    `spare` counts the copies that are legal because an outcome was unknown: the messages in transit
    at each fault, and those that by the logs ended without an answer.
    """

    gateways: Gateways
    syphons: int = 1  # processes; 0: inside the gateway
    rate: float = 25.0  # sends/s of each producer; those of batches send less often
    pairing: Mapping[str, object] = attrs.field(factory=dict)
    is_patient: bool = False  # where no side hangs: then a stall of the machine is no outage
    primary: GatewayProcess = attrs.field(init=False)
    secondary: GatewayProcess = attrs.field(init=False)
    gateway: GatewayProcess = attrs.field(init=False)
    syphon: list[GatewayProcess] = attrs.field(factory=list, init=False)
    traffic: Traffic = attrs.field(factory=partial(Traffic, deadline=LONGEST_SEND), init=False)
    received: list[Record] = attrs.field(factory=list, init=False)
    faults: Counter[str] = attrs.field(factory=Counter, init=False)
    _excused: int = attrs.field(default=0, init=False)
    drained_in: float = attrs.field(default=math.nan, init=False)

    @property
    def processes(self) -> list[GatewayProcess]:
        return [self.primary, self.secondary, self.gateway, *self.syphon]

    @property
    def syphoned(self) -> int:
        return sum(line["messages"] for line in self._logged("syphoned"))

    @property
    def spare(self) -> int:
        held = [
            line for line in self._logged("syphon_backed_off") if NO_ANSWER.search(line["reason"])
        ]
        suspect = [
            line
            for line in self._logged("entity_state_changed")
            if line["after"] == "suspect" and NO_ANSWER.search(line["reason"])
        ]
        # One chunk of the syphon's; all sends to one entity that were on their way, and its trials.
        unanswered = len(held) * SYPHON_BATCH + len(suspect) * (2 + TRIALS) * BATCH
        return self._excused + unanswered + self._told

    @property
    def _told(self) -> int:
        """The copies that gateways told of: a machine that stalls may fail no entity over."""
        diverted = [line["messages"] for line in self._logged("diverted") if line["in_doubt"]]
        return sum(diverted) + sum(line["messages"] for line in self._logged("sent_twice"))

    def _logged(self, event: str) -> list[dict[str, Any]]:
        # Of further gateways of a test, too.
        lines = [line for process in self.gateways.processes for line in process.log]
        return [line for line in lines if line.get("event") == event]

    async def start(self) -> None:
        await self.start_brokers()
        self.configure(self.primary.address, self.secondary.address)
        await self.start_gateways()

    async def start_brokers(self) -> None:
        self.primary = self.gateways.prepare(broker_config(), name="primary")
        self.secondary = self.gateways.prepare(broker_config(), name="secondary")
        await _start_all([self.primary, self.secondary])
        await self._make_queues()

    async def start_gateways(self) -> None:
        """Start the processes that `configure` has prepared."""
        await _start_all([self.gateway, *self.syphon])

    def configure(self, primary: str, secondary: str) -> None:
        """The gateway and the syphons, which find both brokers there."""
        options = {
            "backlog_queues": BACKLOG_QUEUES,
            "attempt_timeout": "3s",
            "send_timeout": f"{LONGEST_SEND}s",
            "backlog_cooldown": "1s",
            "enable_syphon": self.syphons == 0,
            **(PATIENT if self.is_patient else {}),
            **self.pairing,
        }
        syphon = syphon_table("30s" if self.is_patient else "2s")
        config = pair_config(primary, secondary, **options) + syphon
        self.gateway = self.gateways.prepare(config, name="gateway")
        alone, _, _ = config.partition("[[endpoints]]")
        self.syphon = [
            self.gateways.prepare(alone + syphon, name=f"syphon-{n}", command=("syphon",))
            for n in range(self.syphons)
        ]

    async def _make_queues(self) -> None:
        async with client(self.primary) as primary:
            for entity in ENTITIES:
                await primary.create_queue(EntityPath(entity), QueueProperties(lock_duration=LOCK))
        properties = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=LOCK)
        async with client(self.secondary) as secondary:
            for index in range(BACKLOG_QUEUES):
                await secondary.create_queue(backlog.queue_name(LABEL, index), properties)

    # Load.

    async def send_all_the_time(self, *, task_status: trio.TaskStatus[None]) -> None:
        """
        Send to each entity until `traffic.stopping`: over plain REST, as Pairgate does it, and
        batches.

        Each producer has a connection of its own.
        """
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:

            async def produce(entity: str, kind: str, broker: Broker, rate: float, batch: int = 1):
                name = f"{entity.replace('/', '-')}-{kind}"
                await self.traffic.produce(broker, EntityPath(entity), name, rate, batch=batch)

            for entity in ENTITIES:
                plain = PlainRest(self.gateway.port)
                stack.push_async_callback(plain.aclose)
                ours = await stack.enter_async_context(client(self.gateway))
                batches = await stack.enter_async_context(client(self.gateway))
                nursery.start_soon(produce, entity, "plain", plain, self.rate)
                nursery.start_soon(produce, entity, "ours", ours, self.rate)
                nursery.start_soon(produce, entity, "batch", batches, self.rate / 8, BATCH)
            task_status.started()

    async def receive_all_the_time(
        self, entity: EntityPath, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Consume at the primary until cancelled, and go on after each error."""
        async with client(self.primary) as broker:
            task_status.started()
            while True:
                try:
                    async with broker.open_receiver(entity) as receiver:
                        while True:
                            for delivery in await receiver.receive(20):
                                await self._consume(entity, receiver, delivery)
                except BrokerError:
                    await trio.sleep(0.2)

    async def _consume(self, entity: EntityPath, receiver: Receiver, delivery: Delivery) -> None:
        copy = str(delivery.sequence_number)
        self.received.append(
            Delivered(
                at=trio.current_time(),
                message_id=str(delivery.message.message_id),
                entity=entity.key,
                fingerprint=fingerprint(delivery.message),
                copy=copy,
                expires=math.inf if delivery.expires is None else None,
            )
        )
        await receiver.settle(delivery, Complete())
        self.received.append(Completed(at=trio.current_time(), entity=entity.key, copy=copy))

    # Faults.

    async def kill(self, victim: GatewayProcess) -> None:
        self.excuse(victim)
        self.faults[f"SIGKILL {victim.folder.name}"] += 1
        await victim.kill()

    async def freeze(self, victim: GatewayProcess, seconds: float) -> None:
        """
        SIGSTOP: the process still accepts connections and answers nothing; it does the requests
        later.
        """
        self.excuse(victim)
        self.faults[f"SIGSTOP {victim.folder.name}"] += 1
        victim.signal(signal.SIGSTOP)
        await trio.sleep(seconds)
        victim.signal(signal.SIGCONT)

    def excuse(self, victim: GatewayProcess) -> None:
        """Allow one more copy of each message in transit, whose outcome stays unknown."""
        in_flight = max(self.syphons, 1) * BACKLOG_QUEUES * SYPHON_BATCH
        if victim is not self.gateway or self.syphons == 0:
            self._excused += in_flight
        if victim is not self.gateway and victim not in self.syphon:
            self._excused += self.traffic.under_way

    async def break_things(self, rng: random.Random, kills: int) -> None:
        """Kill each process at random moments, `kills` times; each comes back after a while."""
        async with trio.open_nursery() as nursery:
            for _ in range(kills):
                for victim in rng.sample(self.processes, len(self.processes)):
                    await trio.sleep(rng.uniform(0.2, 0.8))
                    if victim.running:
                        await self.kill(victim)
                        longest = 2.5 if victim is self.primary else 0.8
                        nursery.start_soon(self._restart, victim, rng.uniform(0.0, longest))

    async def _restart(self, victim: GatewayProcess, pause: float) -> None:
        """Start the process again after `pause` seconds; it may be killed while it starts."""
        await trio.sleep(pause)
        if not victim.running:
            await victim.start(wait=False)

    # The end.

    async def heal(self) -> None:
        """Return when every process runs, and those with an endpoint answer."""
        await _start_all([process for process in self.processes if not process.running])
        for process in (self.primary, self.secondary, self.gateway):
            await answers(process)

    async def divert_some(self, messages: int) -> None:
        """
        Return when the given number of messages went to the backlog, with the primary down and all
        else up. On a busy machine the next fault may come before the gateway has started.
        """
        await self.heal()
        await self.kill(self.primary)
        with trio.fail_after(PATIENCE):
            while True:
                if self.traffic.accepted_by_counts[AcceptedBy.BACKLOG] >= messages:
                    break
                await trio.sleep(LOOK)

    async def back_on_the_primary(self) -> None:
        """Return when messages of every producer went to the primary again."""
        for entity in ENTITIES:
            await self.gateway.seen("entity_state_changed", entity=entity, after="primary")

    async def drain(self, limit: float = PATIENCE) -> None:
        """
        Wait until the backlog is empty.

        The bound: one lock of a dead syphon, one rest, one scan for queues, and the moving, on a
        busy machine.
        """
        started = trio.current_time()
        async with client(self.secondary) as secondary:
            with trio.fail_after(limit):
                while True:
                    if not await pending(secondary):
                        break
                    await trio.sleep(LOOK)  # polled: another process decides
        self.drained_in = trio.current_time() - started

    async def stop_all_but_brokers(self) -> list[int]:
        """SIGTERM for the gateway and the syphons; their exit codes."""
        return [await process.stop() for process in [self.gateway, *self.syphon]]

    async def judge(self) -> Verdict:
        async with client(self.primary) as primary, client(self.secondary) as secondary:
            found = await audit(
                [AuditedNamespace.primary(primary), AuditedNamespace.secondary(secondary)]
            )
        records = [*self.traffic.records, *self.received, *found]
        return judge(records, Rules(spare_duplicates=self.spare))

    def describe(self, verdict: Verdict) -> str:
        """All that a failed run has to say, and the figures of a good one."""
        traffic = self.traffic
        accepted = {
            accepted_by.value: count for accepted_by, count in traffic.accepted_by_counts.items()
        }
        lines = [
            f"sent {traffic.sent}, acknowledged {accepted}, errors {traffic.errors},"
            f" longest stall {traffic.longest_stall:.2f} s, syphoned {self.syphoned},"
            f" drained in {self.drained_in:.1f} s",
            f"faults {dict(self.faults)}, {self.spare} spare duplicates",
            f"counts {dict(verdict.counts)}",
            *(f"undecided: {reason}" for reason in verdict.undecided),
            *(f"broken: {finding}" for finding in verdict.findings[:20]),
        ]
        return "\n".join(lines)


def client(process: GatewayProcess, port: int | None = None) -> ServiceBusRestBroker:
    """A client of that process, in the form that Pairgates speak."""
    options = ServiceBusRestOptions(key=KEY, connect_timeout=PATIENCE)
    rest = f"//{KEY_NAME}@127.0.0.1:{port or process.port}"
    return open_namespace("servicebus+http", rest, options, lambda: datetime.now(UTC))


async def answers(process: GatewayProcess) -> None:
    """Return when that process answers requests."""
    async with client(process) as broker:
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    with trio.move_on_after(3):
                        await broker.list_queues(top=1)
                        return
                except BrokerError:
                    await trio.sleep(LOOK)


async def _start_all(processes: Sequence[GatewayProcess]) -> None:
    async with trio.open_nursery() as nursery:
        for process in processes:
            nursery.start_soon(process.start)
