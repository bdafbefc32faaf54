"""
A pair and its processes, an outage of its primary, and everybody who watches.

    producer ──▶ gateway(s) ──▶ proxy ──▶ primary
                     └────────▶ secondary ──(own syphon, or a process of its own)──▶ primary
    each second: /status, /metrics, /v1/history and /readyz of each process
    every few seconds: the page of one of them, in a browser
    all the time: the true counts of the backlog queues
"""

import http.client
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import Final

import attrs
import trio
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.chaos.servers import AmqpServer, EmbeddedServer, RabbitServer, Server
from benchmarks.fleet import BACKLOG_QUEUES, LABEL, Fleet, client_of
from benchmarks.honesty.judge import Answer, Drawn, Story, TrueCount, first_trouble
from benchmarks.honesty.page import Page
from gateway.capabilities import send_accepted_by
from gateway.demo.audit import pending
from gateway.demo.machines import DemoMachine, broker_config
from gateway.demo.ports import free_port
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError
from gateway.domain.message import AcceptedBy, Message
from gateway.ports import Broker
from tests.harness.chaos_proxy import ChaosProxy, Late, Pass
from tests.harness.chromium import browser
from tests.harness.rabbitmq import MANAGEMENT, management_at, messages_on, rabbitmq
from tests.harness.secret_files import write_secret
from tests.harness.servers import ServerProcess

ENTITIES: Final = ("orders", "invoices")
SEND_LIMIT: Final = 10.0
PATIENCE: Final = 240.0  # seconds for the cure
LATE: Final = 13.0  # seconds: RabbitMQ's management tells counts of some seconds ago
SLOW: Final = 6.0  # seconds: longer than an attempt


@attrs.frozen(kw_only=True)
class Scene:
    """The processes that run, and the outage of their primary."""

    kind: str = "embedded"  # amqp, rabbitmq, rabbitmq-management
    processes: str = "own"  # syphon; separate, or two gateways
    outage: str = "killed"  # frozen, slow
    seconds: float = 20.0
    after: float = 15.0  # seconds of watching after the cure
    rate: float = 20.0  # messages/s
    healthy: float = 8.0  # seconds before the outage: what is said at the start counts, too
    pairing: str = ""  # further options
    has_browser: bool = True  # looks at the pages

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.processes}, {self.outage}"


@attrs.define(eq=False)
class Namespace:
    server: Server
    port: int
    process: ServerProcess | None  # of a RabbitMQ
    extra: str = ""  # lines of its configuration


@attrs.define(eq=False)
class Watched:
    """A process and its endpoint `admin`."""

    name: str
    port: int

    def ask(self, last: float) -> Answer:
        """Status, metrics and history; `last` is the date of the answer before. Blocks."""
        status, end = json.loads(self._get("/status")), time.time()
        text, end_of_metrics = self._get("/metrics").decode(), time.time()
        metrics = {
            sample.name: max(sample.value, 0.0)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        history, ready = json.loads(self._get("/v1/history")), json.loads(self._get("/readyz"))
        dates = [datetime.fromisoformat(each).timestamp() for each in history["at"]]
        return Answer(
            process=self.name,
            end=end,
            seconds=end - last,
            status=status,
            metrics=metrics,
            end_of_metrics=end_of_metrics,
            history=history["pending"][-1] if dates else None,
            history_at=dates[-1] if dates else None,
            ready=ready["ready"],
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.2:{self.port}/"

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.2", self.port, timeout=20)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()


@attrs.define(eq=False)
class Run:
    """A scene, with everything that was seen."""

    scene: Scene
    fleet: Fleet
    primary: Namespace = attrs.field(init=False)
    secondary: Namespace = attrs.field(init=False)
    proxy: ChaosProxy = attrs.field(init=False)
    gateways: list[DemoMachine] = attrs.field(factory=list)
    watched: list[Watched] = attrs.field(factory=list)
    counts: list[TrueCount] = attrs.field(factory=list)
    answers: list[Answer] = attrs.field(factory=list)
    drawn: list[Drawn] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)  # answers that didn't come
    _diverted: list[float] = attrs.field(factory=list, init=False)  # the dates
    _stopping: bool = attrs.field(default=False, init=False)

    async def perform(self) -> Story:
        """
        Return what really happened; `answers` has what the processes said.

        Raises:
            trio.TooSlowError: the pair wasn't cured within `PATIENCE`.
        """
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            await self._start(stack, nursery)
            nursery.start_soon(self._keep_counting, stack)
            for each in self.watched:
                nursery.start_soon(self._keep_asking, each)
            for machine in self.gateways:
                nursery.start_soon(self._keep_sending, machine)
            if self.scene.has_browser:
                profile = self.fleet.folder / "browser" / "profile"
                profile.parent.mkdir()
                page = Page(stack.enter_context(browser(profile)))
                nursery.start_soon(self._keep_looking, page)
            await trio.sleep(self.scene.healthy)
            taken = time.time()
            await self._take_away()
            await trio.sleep(self.scene.seconds)
            await self._bring_back()
            repaired = time.time()
            with trio.fail_after(PATIENCE):
                cured = await self._cured(repaired)
            await trio.sleep(self.scene.after)
            nursery.cancel_scope.cancel()
        return Story(
            trouble=first_trouble(self._diverted, taken, repaired),
            repaired=repaired,
            cured=cured,
            counts=self.counts,
            reading=LATE if self.scene.kind == "rabbitmq-management" else 1.0,
            diverted=self._diverted,
        )

    async def _start(self, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        self.primary = await self._namespace(stack, "primary")
        self.secondary = await self._namespace(stack, "secondary")
        self.proxy = ChaosProxy("127.0.0.1", self.primary.port, rng=random.Random(1))
        await nursery.start(self.proxy.serve)
        config = self._config()
        for name in ("east", "west") if self.scene.processes == "two" else ("gateway",):
            machine = await self.fleet.start(name, self._with_admin(config, name, "serve"))
            self.gateways.append(machine)
        if self.scene.processes == "separate":
            alone, _, _ = config.partition("[[endpoints]]")
            await self.fleet.start("syphon", self._with_admin(alone, "syphon", "syphon"), "syphon")

    async def _namespace(self, stack: AsyncExitStack, name: str) -> Namespace:
        queues = [backlog.queue_name(LABEL, index) for index in range(BACKLOG_QUEUES)]
        if name == "primary":
            queues = [EntityPath(each) for each in ENTITIES]
        if self.scene.kind.startswith("rabbitmq"):
            return await self._rabbitmq(stack, name, queues)
        config = broker_config(*(each.name for each in queues))
        if self.scene.kind == "amqp":
            config = config.replace('"service-bus-http"', '"service-bus"')
        machine = await self.fleet.start(name, config)
        server = AmqpServer if self.scene.kind == "amqp" else EmbeddedServer
        return Namespace(server(machine, self.fleet.nursery), machine.port, None)

    async def _rabbitmq(
        self, stack: AsyncExitStack, name: str, queues: Sequence[EntityPath]
    ) -> Namespace:
        folder, http_port = self.fleet.folder / name, free_port()
        folder.mkdir(parents=True)
        managed = self.scene.kind == "rabbitmq-management" and name == "secondary"
        process, port = await stack.enter_async_context(
            rabbitmq(
                folder,
                name,
                plugins=(MANAGEMENT,) if managed else (),
                settings=management_at(http_port) if managed else (),
            )
        )
        server = RabbitServer(process)
        async with server.client(port) as broker:
            for queue in queues:
                own = backlog.is_backlog(queue)
                properties = backlog.QUEUE_PROPERTIES if own else QueueProperties()
                await broker.create_queue(queue, properties)
        await server.keep_queues()
        extra = 'heartbeat = "1s"\nconnect_timeout = "1s"\n'
        if managed:
            extra += f'management = "http://127.0.0.1:{http_port}"\n'
        return Namespace(server, port, process, extra)

    def _config(self) -> str:
        key = self.fleet.folder / "envelope.key"
        write_secret(key, "an envelope key for the audit, and only for it")
        syphon = self.scene.processes != "separate"
        return f"""
[namespaces.primary]
{self.primary.server.url(self.proxy.port)}
{self.primary.extra}
[namespaces.secondary]
{self.secondary.server.url(self.secondary.port)}
{self.secondary.extra}
[pairing]
primary = "primary"
secondary = "secondary"
label = "{LABEL}"
envelope_keys = [{{ id = "1", key = {{ file = {json.dumps(str(key))} }} }}]
failover_interval = "1s"
attempt_timeout = "2s"
send_timeout = "10s"
enable_syphon = {str(syphon).lower()}
{self.scene.pairing}

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""

    def _with_admin(self, config: str, name: str, process: str) -> str:
        watched = Watched(name, free_port())
        self.watched.append(watched)
        # Of another address: a machine has one port at 127.0.0.1.
        return (
            f'{config}\n[[endpoints]]\nprotocol = "admin"\nprocess = "{process}"\n'
            f'bind = "127.0.0.2:{watched.port}"\n'
        )

    async def _keep_counting(self, stack: AsyncExitStack) -> None:
        process = self.secondary.process
        client: Broker | None = None
        if process is None:
            client = await stack.enter_async_context(client_of(self.secondary.port))
        prefix = backlog.queue_prefix(LABEL)
        while True:
            begin = time.time()
            if process is not None:
                messages = await messages_on(process, prefix)
            elif client is not None:
                messages = await pending(client)
            self.counts.append(TrueCount(begin, time.time(), messages))
            await trio.sleep(0.1)

    async def _keep_asking(self, watched: Watched) -> None:
        last = time.time()
        while True:
            try:
                answer = await trio.to_thread.run_sync(watched.ask, last, abandon_on_cancel=True)
            except OSError as error:
                self.failures.append(f"{watched.name}: {error}")
            else:
                self.answers.append(answer)
                last = answer.end
            await trio.sleep(1.0)

    async def _keep_looking(self, page: Page) -> None:
        """Look at the page of one process after the other."""
        for watched in itertools.cycle(self.watched):
            look = partial(page.look, watched.name, watched.url)
            try:
                self.drawn.append(await trio.to_thread.run_sync(look))
            except AssertionError as error:
                self.failures.append(f"page of {watched.name}: {error}")
            await trio.sleep(3.0)

    async def _keep_sending(self, machine: DemoMachine) -> None:
        async with client_of(machine.port, connections=200) as broker, trio.open_nursery() as tasks:
            number = 0
            while True:
                entity = EntityPath(ENTITIES[number % len(ENTITIES)])
                tasks.start_soon(self._send, broker, entity)
                number += 1
                await trio.sleep(1.0 / self.scene.rate)

    async def _send(self, broker: Broker, entity: EntityPath) -> None:
        with trio.move_on_after(SEND_LIMIT):
            try:
                accepted_by = await send_accepted_by(broker, entity, [Message(body=b"x")])
            except BrokerError as error:
                self.failures.append(f"send: {error}")
                return
            if accepted_by is not AcceptedBy.PRIMARY:
                self._diverted.append(time.time())

    async def _take_away(self) -> None:
        match self.scene.outage:
            case "killed":
                await self.primary.server.kill()
            case "frozen":
                os.kill(self.primary.server.pid, signal.SIGSTOP)
            case _:
                self.proxy.fault = Late(least=SLOW, most=SLOW)

    async def _bring_back(self) -> None:
        match self.scene.outage:
            case "killed":
                await self.primary.server.start()
            case "frozen":
                os.kill(self.primary.server.pid, signal.SIGCONT)
            case _:
                self.proxy.fault = Pass()

    async def _cured(self, repaired: float) -> float:
        """Wait until nothing was diverted for some seconds, and the backlog is empty."""
        while True:
            await trio.sleep(0.5)
            last = max((*self._diverted, repaired))
            filled = [each.end for each in self.counts if each.messages]
            is_empty = self.counts[-1].messages == 0
            cured = max(last, *filled) if filled else last
            if is_empty and time.time() > cured + 3.0:
                return cured
