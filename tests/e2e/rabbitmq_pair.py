"""An example of `conf/examples` with RabbitMQ in it, run as it is shipped, and judged."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from gateway.checker.operations import Completed, Delivered, Record, fingerprint
from gateway.checker.verdict import Rules, Verdict, judge
from gateway.demo.audit import AuditedNamespace, audit
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Delivery
from gateway.ports import Broker, Receiver
from tests.e2e.processes import ENVELOPE_VARIABLE, KEY_VARIABLE, GatewayProcess, Gateways
from tests.e2e.rabbitmq_nodes import EXAMPLES
from tests.e2e.senders import Senders
from tests.harness.patience import PATIENCE

ORDERS: Final = EntityPath("orders")
SECRET: Final = re.compile(r'\{ env = "(\w+)" \}')
ENDPOINT: Final = re.compile(r"\[\[endpoints\]\].*", re.DOTALL)
# Short times, so that an outage of seconds shows the effects of an outage of minutes.
QUICK_PAIRING: Final = """
backlog_queues = 4
failover_interval = "2s"
attempt_timeout = "3s"
send_timeout = "60s"
ping_interval = "1s"
backlog_cooldown = "1s"
"""
SYPHON_BATCH: Final = 10
NO_ANSWER: Final = re.compile("no answer|OutcomeUnknown")
QUICK_SYPHON: Final = f"""
[pairing.syphon]
batch = {SYPHON_BATCH}
attempt_timeout = "2s"
unknown_retry = {{ first = "500ms", cap = "2s" }}
retry = {{ first = "500ms", cap = "2s" }}
queue_retry = {{ first = "500ms", cap = "2s" }}
rescan = "2s"
"""
ENDPOINTS: Final = """
[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"
"""
QUICK_NODE: Final = 'heartbeat = "2s"\nconnect_timeout = "2s"\n'
PATIENT_NODE: Final = 'connect_timeout = "1m"\n'  # of a command that asks once


def example(name: str, label: str, urls: Mapping[str, str]) -> str:
    """
    Return the example `name` with other addresses and short times.

    `label` is the label that its own address would give. Each secret is that of the nodes of the
    tests, and of Pairgates.
    """
    text = (EXAMPLES / name).read_text()
    for shipped, url in urls.items():
        assert f'url = "{shipped}"' in text
        quick = QUICK_NODE if url.startswith("rabbitmq") else ""
        text = text.replace(f'url = "{shipped}"', f'url = "{url}"\n{quick}')
    text = SECRET.sub(known_secret, text)
    pairing = f'[pairing]\nlabel = "{label}"\n{QUICK_PAIRING}'
    text = re.sub(r"\[pairing\].*", lambda _: pairing, text, count=1)
    return 'logging = { level = "debug" }\n' + ENDPOINT.sub(ENDPOINTS, text) + QUICK_SYPHON


def known_secret(match: re.Match[str]) -> str:
    """The environment's variable of the nodes' password, or of the envelope's key."""
    known = ENVELOPE_VARIABLE if match[1] == "ENVELOPE_KEY" else KEY_VARIABLE
    return f'{{ env = "{known}" }}'


_MOVES: Final = ("diverted", "syphoned")
_EMPTY: Final = "backlog_empty"


@attrs.define(eq=False, kw_only=True)
class Installation:
    """A gateway and senders before it."""

    gateway: GatewayProcess
    senders: Senders
    received: list[Record] = attrs.field(factory=list)  # by consumers, before the audit

    @property
    def states(self) -> list[str]:
        """The states that the entity went through, after the first."""
        lines = [line for line in self.gateway.log if line.get("event") == "entity_state_changed"]
        return [line["after"] for line in lines if line["entity"] == ORDERS.name]

    @property
    def diverted(self) -> int:
        return self._messages("diverted")

    @property
    def syphoned(self) -> int:
        return self._messages("syphoned")

    @property
    def excused(self) -> int:
        """Copies that the gateway has told of: an attempt of its own had no answer."""
        return self._told_by_producers + self._told_by_syphon

    @property
    def _told_by_producers(self) -> int:
        told = [
            line
            for line in self.gateway.log
            if (line.get("event") == "diverted" and line["in_doubt"])
            or line.get("event") == "sent_twice"
        ]
        return sum(line["messages"] for line in told)

    @property
    def _told_by_syphon(self) -> int:
        held = [
            line["reason"] for line in self.gateway.log if line.get("event") == "syphon_backed_off"
        ]
        return SYPHON_BATCH * sum(NO_ANSWER.search(reason) is not None for reason in held)

    def _messages(self, event: str) -> int:
        return sum(line["messages"] for line in self.gateway.log if line.get("event") == event)

    async def failed_over(self) -> None:
        """Return when the entity is at the secondary: a stall may have taken it there before."""
        await self.gateway.until(lambda: self.states[-1:] == ["secondary"], PATIENCE)

    async def came_back(self) -> None:
        await self.gateway.until(lambda: self.states[-1:] == ["primary"], PATIENCE)

    async def drained(self) -> None:
        """
        Return when all diverted messages came home, copies too: when the gateway has reported that
        no message waits, since the last message that it diverted or moved. Its count includes the
        messages that its own syphon holds. RabbitMQ doesn't report it for a minute after the loss
        of a connection.
        """
        await self.gateway.until(lambda: self.syphoned >= self.diverted, PATIENCE)
        await self.gateway.until(lambda: self._last(*_MOVES, _EMPTY) not in _MOVES, 2 * PATIENCE)

    def _last(self, *events: str) -> str | None:
        """The newest of these events."""
        told = (line.get("event") for line in reversed(self.gateway.log))
        return next((event for event in told if event in events), None)

    def describe(self, verdict: Verdict) -> str:
        """All that a failed run has to say, and the figures of a good one."""
        lines = [
            self.senders.described,
            f"diverted {self.diverted}, syphoned {self.syphoned}, states {self.states},"
            f" {self.excused} copies excused",
            f"counts {dict(verdict.counts)}",
            *(f"undecided: {reason}" for reason in verdict.undecided),
            *(f"broken: {finding}" for finding in verdict.findings[:20]),
        ]
        return "\n".join(lines)


@asynccontextmanager
async def sending(gateway: GatewayProcess) -> AsyncIterator[Installation]:
    """Senders that send all the time; they end with the scope."""
    async with trio.open_nursery() as nursery:
        senders = Senders(gateway=gateway, entity=ORDERS)
        await nursery.start(senders.run)
        yield Installation(gateway=gateway, senders=senders)
        nursery.cancel_scope.cancel()


async def provision(gateways: Gateways, config: str) -> None:
    """
    Run `pairgate provision` as the user with the rights for it.

    The command runs again as long as it fails: a node that has just started answers slowly.
    """
    asked = config.replace("//gateway@", "//provision@").replace(QUICK_NODE, PATIENT_NODE)
    with trio.fail_after(PATIENCE):
        while True:
            process = await gateways.start(
                asked, name="provision", command=("provision",), wait=False
            )
            if await process.wait() == 0:
                return


async def check(gateways: Gateways, config: str) -> None:
    """Run `pairgate check` as a user who can see the queues' settings; it finds nothing bad."""
    asked = config.replace("//gateway@", "//provision@").replace(QUICK_NODE, PATIENT_NODE)
    process = await gateways.start(asked, name="check", command=("check",), wait=False)
    assert await process.wait() == 0, (process.garbage, process.log)


async def emptied(broker: Broker) -> list[Record]:
    """Consume the queue until it is empty; return the records of that."""
    records: list[Record] = []
    async with broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(PATIENCE):
            while (await broker.inspect(ORDERS)).active != 0:  # None: not known at the moment
                for delivery in await receiver.receive(100):
                    records += await _consumed(receiver, delivery)
    return records


async def _consumed(receiver: Receiver, delivery: Delivery) -> tuple[Record, Record]:
    copy = str(delivery.sequence_number)
    delivered = Delivered(
        at=trio.current_time(),
        message_id=str(delivery.message.message_id),
        entity=ORDERS.key,
        fingerprint=fingerprint(delivery.message),
        copy=copy,
    )
    await receiver.settle(delivery, Complete())
    return delivered, Completed(at=trio.current_time(), entity=ORDERS.key, copy=copy)


async def judged(
    installation: Installation, primary: Broker, secondary: Broker, spare: int = 0
) -> Verdict:
    """
    Read every queue of both sides, which no other client may use any more. `spare` copies are
    legal, since the outcome of a send was unknown.
    """
    namespaces = [AuditedNamespace.primary(primary), AuditedNamespace.secondary(secondary)]
    records = [*installation.senders.records, *installation.received, *await audit(namespaces)]
    return judge(records, Rules(spare_duplicates=spare + installation.excused))
