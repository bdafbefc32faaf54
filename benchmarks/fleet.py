"""The processes that are measured: brokers, and gateways with a chosen configuration."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
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
from gateway.demo.machines import (
    KEY,
    KEY_NAME,
    KEY_VARIABLE,
    DemoMachine,
    LogLine,
    broker_config,
)
from gateway.domain import backlog
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.wire.amqp.message import encode_sorted
from gateway.wire.pairgate.encryption import MessageEncryption
from gateway.wire.servicebus.sas import sign_sas

LABEL: Final = "bench"
BACKLOG_QUEUES: Final = 10
# Seconds: on a busy machine a start takes more than 20; with 100,000 queues it takes longer, and so
# it does before a RabbitMQ without management, where queues are looked for one by one.
START_LIMIT: Final = 300.0
ENVELOPE_KEY: Final = EnvelopeKey(id="bench", key=b"k" * 32)
_TOKEN_SECONDS: Final = 3600


@attrs.define(eq=False)
class Fleet:
    """Starts machines in folders of their own, and counts the log lines of each."""

    folder: Path
    nursery: trio.Nursery
    watch: Callable[[str, LogLine], None] = lambda name, line: None  # of each line of each log
    # By a machine's name, beside the usual one.
    environment_of: Callable[[str], Mapping[str, str]] = lambda name: {}
    events: Counter[tuple[str, str]] = attrs.field(factory=Counter)  # machine and event
    machines: list[DemoMachine] = attrs.field(factory=list)
    start_limit: float = START_LIMIT

    async def start(
        self, name: str, config: str, command: str = "serve", *, start_limit: float | None = None
    ) -> DemoMachine:
        """
        Return the machine when it listens; a syphon when it has begun.

        Raises:
            MachineFailed: it didn't in time.
        """
        environment = self.environment_of(name)
        folder = self.folder / name
        limit = self.start_limit if start_limit is None else start_limit
        machine = DemoMachine(name, folder, config, self._note, command, environment, limit)
        self.machines.append(machine)
        await machine.start(self.nursery)
        return machine

    async def start_brokers(self, *queues: str) -> tuple[DemoMachine, DemoMachine]:
        """A primary with these queues, and a secondary with the backlog's."""
        indices = range(BACKLOG_QUEUES)
        backlog_queues = [backlog.queue_name(LABEL, index).name for index in indices]
        return (
            await self.start("primary", broker_config(*queues)),
            await self.start("secondary", broker_config(*backlog_queues)),
        )

    def _note(self, machine: DemoMachine, line: LogLine) -> None:
        self.events[machine.name, str(line.get("event"))] += 1
        self.watch(machine.name, line)


@asynccontextmanager
async def open_fleet(folder: Path) -> AsyncIterator[Fleet]:
    """All machines are gone afterwards."""
    async with trio.open_nursery() as nursery:
        fleet = Fleet(folder, nursery)
        try:
            yield fleet
        finally:
            with trio.CancelScope(shield=True):
                for machine in fleet.machines:
                    await machine.kill()
            nursery.cancel_scope.cancel()


def gateway_config(primary: int, secondary: int, **pairing: object) -> str:
    """
    The configuration of a gateway before the namespaces on these ports; all other options have
    their defaults.
    """
    url = f"servicebus+http://{KEY_NAME}@127.0.0.1"
    options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in pairing.items())
    return f"""
[namespaces.primary]
url = "{url}:{primary}"
key = {{ env = "{KEY_VARIABLE}" }}

[namespaces.secondary]
url = "{url}:{secondary}"
key = {{ env = "{KEY_VARIABLE}" }}

[pairing]
primary = "primary"
secondary = "secondary"
label = "{LABEL}"
{options}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""


def client_of(port: int, *, connections: int = 64) -> ServiceBusRestBroker:
    """A client of the namespace, or the gateway, on that port."""
    options = ServiceBusRestOptions(key=KEY, max_connections=connections)
    return open_namespace("servicebus+http", f"//{KEY_NAME}@127.0.0.1:{port}", options, now)


def token() -> str:
    """Return a token that is good for every queue and longer than a benchmark takes."""
    return sign_sas("http://localhost/", KEY_NAME, KEY, int(now().timestamp()) + _TOKEN_SECONDS)


now = Runtime().now


def bench_envelope(*, encrypts: bool) -> Envelope:
    """The envelope of a gateway that diverts, with the key `ENVELOPE_KEY`."""
    return Envelope(
        pair=LABEL,
        origin="bench",
        keys=(ENVELOPE_KEY,),
        encode=encode_sorted,
        encryption=MessageEncryption(random.SystemRandom()),
        encrypts=encrypts,
    )
