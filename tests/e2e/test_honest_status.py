"""An outage of a RabbitMQ pair: status, metrics and the log agree with the queues."""

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from tests.brokers.rabbitmq.nodes import Nodes
from tests.e2e.commands import ADMIN, get, pairgate, samples, status_at, with_fixed_port
from tests.e2e.processes import ENVELOPE_VARIABLE, GatewayProcess, Gateways
from tests.e2e.rest import send
from tests.harness.chaos_proxy import ChaosProxy, Pass, Refuse
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER, messages_on

pytestmark = [pytest.mark.live, pytest.mark.slow]

MESSAGES = 40
ORPHANED = 4  # seconds
# The proxy refuses at once: only a stall of the machine would be noticed by shorter times.
PATIENT_NODE = 'heartbeat = "15s"\nconnect_timeout = "20s"'


@attrs.frozen
class Audit:
    """The messages of the backlog queues, locked or not, counted between two dates."""

    begin: float
    end: float
    messages: int


@attrs.frozen
class Answer:
    """A status that the gateway answered; `end` is the date at which the answer was complete."""

    end: float
    good: bool
    problems: Sequence[str]
    pending: int | None
    as_of: float | None
    sample: float | None  # of the metric, asked a moment later


@attrs.define
class Installation:
    gateway: GatewayProcess
    proxy: ChaosProxy
    nodes: Nodes
    label: str
    audits: list[Audit] = attrs.field(factory=list)
    answers: list[Answer] = attrs.field(factory=list)

    async def audit(self) -> int:
        begin = time.time()
        process = self.nodes.process("secondary")
        messages = await messages_on(process, f"{self.label}/")
        self.audits.append(Audit(begin, time.time(), messages))
        return messages

    async def status(self) -> Any:
        return await status_at(self.gateway.ports[1])

    async def first_good_status(self) -> Any:
        with trio.fail_after(PATIENCE):
            while True:
                status = await self.status()
                if status["good"]:
                    return status
                await trio.sleep(0.5)

    async def ask(self) -> Answer:
        told = await self.status()
        end = time.time()
        _, metrics = await trio.to_thread.run_sync(get, self.gateway.ports[1], "/metrics")
        backlog = told["pair"]["backlog"]
        as_of = backlog["as_of"]
        answer = Answer(
            end=end,
            good=told["good"],
            problems=told["problems"],
            pending=backlog["pending"],
            as_of=None if as_of is None else datetime.fromisoformat(as_of).timestamp(),
            sample=samples(metrics).get("pairgate_backlog_messages"),
        )
        self.answers.append(answer)
        return answer

    async def answered_since(self, date: float) -> list[Answer]:
        """Return the answers after that date, of which there is one at least."""
        with trio.fail_after(PATIENCE):
            while True:
                if found := [each for each in self.answers if each.end > date]:
                    return found
                await trio.sleep(0.1)

    async def told(self, depth: int) -> Answer:
        """Return the first answer with this depth."""
        with trio.fail_after(PATIENCE):
            while True:
                answer = await self.ask()
                if answer.pending == depth:
                    return answer
                await trio.sleep(1)

    async def follow(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_auditing)
            while True:
                await self.ask()
                await trio.sleep(0.5)

    async def _keep_auditing(self) -> None:
        while True:
            await self.audit()

    def contradictions(self) -> list[tuple[Answer, list[int]]]:
        """Depths that no audit around the time for which they are told has had, nor passed."""
        found = []
        for answer in self.answers:
            if answer.pending is None or answer.as_of is None:
                continue
            before = [each for each in self.audits if each.end <= answer.as_of]
            after = [each for each in self.audits if each.begin >= answer.end]
            if not before or not after:
                continue
            dependencies = [
                each for each in self.audits if before[-1].end <= each.end <= after[0].end
            ]
            depths = [each.messages for each in dependencies]
            if not min(depths) <= answer.pending <= max(depths):
                found.append((answer, depths))
        return found


@asynccontextmanager
async def installation_of(
    nodes: Nodes, gateways: Gateways, *, management: bool, syphon: bool
) -> AsyncIterator[Installation]:
    password = nodes.folder / "password"
    password.write_text(USER)
    password.chmod(0o600)
    label = f"honest-{management}-{syphon}".lower()
    proxy = ChaosProxy("127.0.0.1", nodes.port("primary"), rng=random.Random(0))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(proxy.serve)
        plugin = f'management = "{nodes.management("secondary")}"' if management else ""
        config = f"""
[namespaces.north]
url = "rabbitmq://{USER}@127.0.0.1:{port}/"
password = {{ file = "{password}" }}
queues = ["{label}"]
{PATIENT_NODE}

[namespaces.south]
url = "rabbitmq://{USER}@127.0.0.1:{nodes.port("secondary")}/"
password = {{ file = "{password}" }}
{PATIENT_NODE}
{plugin}

[pairing]
label = "{label}"
primary = "north"
secondary = "south"
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]
enable_syphon = {str(syphon).lower()}
backlog_queues = 2
failover_interval = "1s"
attempt_timeout = "30s"
send_timeout = "60s"
slow_call_duration = "off"
ping_interval = "1s"
orphaned_after = "{ORPHANED}s"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
{ADMIN}
"""
        made = await gateways.start(config, name="provision", command=("provision",), wait=False)
        assert await made.wait() == 0, (made.garbage, made.log)
        gateway = await gateways.start(config, name="gateway")
        await with_fixed_port(gateway)
        yield Installation(gateway, proxy, nodes, label)
        nursery.cancel_scope.cancel()


def moved(gateway: GatewayProcess) -> int:
    """The messages that were home when the backlog was empty."""
    return sum(line["moved"] for line in gateway.log if line["event"] == "backlog_empty")


@pytest.mark.parametrize("syphon", [True, False])
@pytest.mark.parametrize("management", [True, False])
async def test_at_no_moment_of_an_outage_do_status_metrics_and_log_contradict_the_queues(
    shared_nodes: Nodes, gateways: Gateways, management: bool, syphon: bool
) -> None:
    async with installation_of(
        shared_nodes, gateways, management=management, syphon=syphon
    ) as installation:
        gateway = installation.gateway
        assert await send(gateway.address, installation.label, b"x") == (201, "primary")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(installation.follow)
            installation.proxy.fault = Refuse()
            assert await send(gateway.address, installation.label, b"x") == (201, "backlog")
            # `namespace_back` counts what was diverted since it was lost. A busy RabbitMQ may have
            # been lost, and back, before.
            await gateway.until(partial(is_lost, gateway, "north"), PATIENCE)
            for _ in range(MESSAGES):
                assert await send(gateway.address, installation.label, b"x") == (201, "backlog")
            began = time.time()
            await trio.sleep(4)
            diverted = await installation.audit()
            in_outage = await installation.answered_since(began)
            installation.proxy.fault = Pass()
            if syphon:
                # A copy that the secondary answered late may come when the others are home.
                await gateway.until(lambda: moved(gateway) >= diverted, PATIENCE)
                await gateway.seen("outage_over", empty=True)
            else:
                await gateway.until(lambda: gateway.count("backlog_orphaned") > 0, PATIENCE)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        left = await installation.audit()
        last = await installation.told(left)
        code, _, _ = await pairgate(gateway, "status")
        await gateway.stop()
        await gateway.start()
        restarted = await installation.told(left)

    # A publish that the secondary answered late went to another backlog queue, too.
    assert diverted >= MESSAGES
    assert installation.contradictions() == []
    assert not any(each.good for each in in_outage)
    back = [
        line
        for line in gateway.log
        if line["event"] == "namespace_back" and line["namespace"] == "north"
    ]
    # On a busy machine RabbitMQ may miss heartbeats once more; each loss is told, and its end.
    assert gateway.count("namespace_lost", namespace="north") == len(back) >= 1
    outage = max(back, key=lambda line: line["diverted"])
    assert outage["diverted"] >= MESSAGES
    assert outage["entities"] == 1
    assert last.sample == left
    if syphon:
        assert (last.problems, restarted.problems) == ([], [])
        assert (left, last.good, code, restarted.good) == (0, True, 0, True)
        assert moved(gateway) == diverted
    else:
        assert (left, last.good, code, restarted.good) == (diverted, False, 1, False)
        assert any("no syphon moves them" in text for text in restarted.problems)


async def test_an_entity_that_waits_after_a_return_that_did_not_last_is_no_problem(
    shared_nodes: Nodes, gateways: Gateways
) -> None:
    async with installation_of(
        shared_nodes, gateways, management=False, syphon=True
    ) as installation:
        gateway, label = installation.gateway, installation.label
        assert await send(gateway.address, label, b"x") == (201, "primary")
        for outage in (1, 2):
            installation.proxy.fault = Refuse()
            since = moves(gateway, "secondary")
            with trio.fail_after(PATIENCE):
                # A gateway that was paused forgets the failure of a send: it needs another one.
                while moves(gateway, "secondary") == since:
                    assert (await send(gateway.address, label, b"x"))[0] == 201
                    await trio.sleep(0.5)
            in_outage = await installation.status()
            before = moves(gateway, "primary")
            installation.proxy.fault = Pass()
            if outage == 1:
                await gateway.until(lambda: moves(gateway, "primary") > before, PATIENCE)  # noqa: B023
        cured = await installation.first_good_status()
        returned = moves(gateway, "primary") > before

    assert not in_outage["good"]
    assert not returned
    assert cured["pair"]["states"]["half-open"] == 1
    assert cured["pair"]["answering"] == {"half-open": 1}


def is_lost(gateway: GatewayProcess, namespace: str) -> bool:
    """True while the namespace has been lost more often than it was back."""
    lost, back = (
        gateway.count(event, namespace=namespace) for event in ("namespace_lost", "namespace_back")
    )
    return lost > back


def moves(gateway: GatewayProcess, state: str) -> int:
    """Return how often the entity has come to that state."""
    return gateway.count("entity_state_changed", after=state)
