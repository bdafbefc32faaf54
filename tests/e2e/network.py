"""A pair and a syphon whose connections to both namespaces go through proxies that do harm."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final

import attrs
import trio

from gateway.brokers.servicebus.broker import (
    ServiceBusRestBroker,
    ServiceBusRestOptions,
    open_namespace,
)
from gateway.capabilities import send_accepted_by
from gateway.checker.operations import (
    Acked,
    CopyPlace,
    Failed,
    Found,
    Invoked,
    Record,
    Unknown,
    fingerprint,
)
from gateway.checker.verdict import Rules, Verdict, judge
from gateway.demo.audit import AuditedNamespace, audit, pending
from gateway.domain import backlog
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.events.gateway import Event, SyphonBackedOff
from gateway.domain.message import AcceptedBy, Message
from gateway.pairing.additions import PairDependencies
from gateway.pairing.options import PairOptions, SyphonOptions
from gateway.pairing.pair import Pair, PairParts
from gateway.pairing.provision import Backlog
from gateway.pairing.syphon.syphon import Syphon
from gateway.wire.amqp.message import encode_sorted, encoded_size
from gateway.wire.pairgate.encryption import MessageEncryption
from tests.brokers.servicebus.served import KEY, POLICY, served
from tests.harness.chaos_proxy import ChaosProxy
from tests.harness.patience import PATIENCE

LABEL: Final = "east"
ORDERS: Final = EntityPath("orders")
QUEUES: Final = tuple(backlog.queue_name(LABEL, index) for index in range(3))
# Seconds of each attempt: all sides are in one process, which may be kept waiting.
ATTEMPT: Final = 3.0
DEADLINE: Final = 12.0  # of a send
LOCK: Final = timedelta(seconds=5)
REST: Final = Backoff(first=0.2, cap=0.5)


@attrs.define(eq=False, kw_only=True)
class Network:
    """`primary` and `secondary` are the proxies; the audit goes past them."""

    nursery: trio.Nursery
    primary: ChaosProxy
    secondary: ChaosProxy
    behind: tuple[ServiceBusRestBroker, ServiceBusRestBroker]
    through: tuple[ServiceBusRestBroker, ServiceBusRestBroker]
    pair: Pair = attrs.field(init=False)
    events: list[Event] = attrs.field(factory=list, init=False)
    records: list[Record] = attrs.field(factory=list, init=False)
    _rng: random.Random = attrs.field(factory=lambda: random.Random(1), init=False)
    _numbers: "count[int]" = attrs.field(factory=count, init=False)

    async def start(self) -> None:
        await self.behind[0].create_queue(ORDERS, QueueProperties(lock_duration=LOCK))
        for queue in QUEUES:
            properties = attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=LOCK)
            await self.behind[1].create_queue(queue, properties)
        self.pair = PairParts(
            primary=self.through[0],
            secondary=self.through[1],
            options=PairOptions(label=LABEL, attempt_timeout=ATTEMPT, send_timeout=DEADLINE),
            backlog=Backlog(queues=QUEUES, max_message_size=None),
            envelope=ENVELOPE,
            dependencies=PairDependencies(
                clock=_now,
                rng=self._rng,
                new_id=lambda: f"id-{next(self._numbers)}",
                observer=self,
                measure=encoded_size,
            ),
        ).assemble()
        await self.nursery.start(self.pair.run)
        # Warm connections: the fault comes upon a pair that has worked before.
        for broker, queue in ((self.through[0], ORDERS), (self.through[1], QUEUES[0])):
            await broker.probe(queue)

    def report(self, event: Event) -> None:
        """Record the event: the network is the pair's observer, too."""
        self.events.append(event)

    async def send(self, message_id: str) -> AcceptedBy | Outcome:
        """Send a message; return the namespace that accepted it, or the outcome of the error."""
        message = Message(message_id=message_id, body=b"x" * 300, properties={"n": 1})
        now = trio.current_time()
        sent = Invoked(
            at=now, message_id=message_id, entity=ORDERS.key, fingerprint=fingerprint(message)
        )
        self.records.append(sent)
        try:
            accepted_by = await send_accepted_by(self.pair.broker, ORDERS, [message])
        except BrokerError as error:
            kind = Unknown if error.outcome is Outcome.UNKNOWN else Failed
            self.records.append(kind(at=trio.current_time(), message_id=message_id))
            return error.outcome
        self.records.append(Acked(at=trio.current_time(), message_id=message_id))
        return accepted_by

    async def drain(self) -> None:
        """Run a syphon until the backlog is empty; it has its own connections to both sides."""
        syphon = Syphon(
            primary=self.through[0],
            source=self.through[1],
            label=LABEL,
            options=SyphonOptions(
                attempt_timeout=ATTEMPT,
                unknown_retry=REST,
                retry=REST,
                queue_retry=REST,
                rescan=0.5,
            ),
            envelope=ENVELOPE,
            clock=_now,
            rng=self._rng,
            observer=self,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(syphon.run)
            with trio.fail_after(PATIENCE):
                while True:
                    if not await pending(self.behind[1]):
                        break
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    @property
    def backoffs(self) -> int:
        """Return how often the syphon backed off since the outcome of a send was unknown."""
        held = [event for event in self.events if isinstance(event, SyphonBackedOff)]
        return sum(
            "OutcomeUnknown" in event.reason or "no answer" in event.reason for event in held
        )

    async def wait_for_backoffs(self, times: int) -> None:
        """Return when the syphon has let the entity rest so often."""
        with trio.fail_after(PATIENCE):
            while True:
                if self.backoffs >= times:
                    return
                await trio.sleep(0.02)

    async def judge(self, spare_duplicates: int) -> tuple[Verdict, int]:
        """The verdict, and how many copies the primary has."""
        found = await audit(
            [AuditedNamespace.primary(self.behind[0]), AuditedNamespace.secondary(self.behind[1])]
        )
        copies = sum(isinstance(f, Found) and f.place is CopyPlace.PRIMARY for f in found)
        return judge([*self.records, *found], Rules(spare_duplicates=spare_duplicates)), copies


ENVELOPE: Final = Envelope(
    pair=LABEL,
    origin="gateway-1",
    keys=(EnvelopeKey(id="1", key=b"a key for tests"),),
    encode=encode_sorted,
    encryption=MessageEncryption(random.Random(0)),
)


@asynccontextmanager
async def open_network() -> AsyncIterator[Network]:
    """Two namespaces in memory behind endpoints, a proxy before each, and a pair that runs."""
    async with (
        served() as primary,
        served() as secondary,
        _client(primary) as behind_primary,
        _client(secondary) as behind_secondary,
        trio.open_nursery() as nursery,
    ):
        proxies = [
            ChaosProxy("127.0.0.1", port, rng=random.Random(1)) for port in (primary, secondary)
        ]
        for proxy in proxies:
            await nursery.start(proxy.serve)
        async with (
            _client(proxies[0].port) as east,
            _client(proxies[1].port) as west,
            # The pair ends before its clients are closed: its probes use them until then.
            trio.open_nursery() as pair_nursery,
        ):
            network = Network(
                nursery=pair_nursery,
                primary=proxies[0],
                secondary=proxies[1],
                behind=(behind_primary, behind_secondary),
                through=(east, west),
            )
            await network.start()
            yield network
            pair_nursery.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


def _client(port: int) -> ServiceBusRestBroker:
    options = ServiceBusRestOptions(key=KEY)
    return open_namespace("servicebus+http", f"//{POLICY.name}@127.0.0.1:{port}", options, _now)


def _now() -> datetime:
    return datetime.now(UTC)
