"""`pairgate listen` as a process, on namespaces that are real."""

import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.ports import Broker
from tests.brokers.storage_queue.azurites import client as storage_queues
from tests.brokers.storage_queue.azurites import url_of
from tests.e2e.commands import ADMIN
from tests.e2e.handlers import SOME
from tests.e2e.installation import client
from tests.e2e.listen import LOOK, NOTE, ORDERS, SERVER, noted, until_noted
from tests.e2e.processes import GatewayProcess, Gateways, broker_config
from tests.e2e.rabbitmq_nodes import VHOST, ExampleNodes
from tests.harness.azurite import KEY, azurite
from tests.harness.chaos_proxy import ChaosProxy, Link, Pass
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER
from tests.harness.secret_files import write_secret
from tests.harness.servers import kill

pytestmark = pytest.mark.slow

# The lock duration: so long the messages of a killed listener stay locked.
LOCK = timedelta(seconds=20)
SENT = [str(number) for number in range(400)]  # Azurite is the slower the more it holds
DEFINITIONS = "rabbitmq-definitions.json"  # of users and their rights
NOTE_SOME = ("--python", "tests.e2e.handlers:note_until_told_to_end")


@attrs.define(eq=False, kw_only=True)
class Place:
    """A namespace with the queue `orders`, and the configuration by which a listener finds it."""

    config: str
    broker: Broker


@asynccontextmanager
async def behind_a_gateway(gateways: Gateways, *_: object) -> AsyncIterator[Place]:
    gateway = await gateways.start(broker_config() + ADMIN, name="gateway")
    async with client(gateway) as broker:
        await broker.create_queue(ORDERS, QueueProperties(lock_duration=LOCK))
        yield Place(config=gateway.config, broker=broker)


@asynccontextmanager
async def on_rabbitmq(
    gateways: Gateways, rabbits: ExampleNodes, folder: Path
) -> AsyncIterator[Place]:
    await rabbits.north.prepare(DEFINITIONS)
    secret = folder / "password"
    write_secret(secret, f"{USER}\n")
    config = f"""
        logging = {{ level = "debug" }}
        [namespaces.here]
        url = "rabbitmq://{USER}@127.0.0.1:{rabbits.north.node.port}/{VHOST}"
        password = {{ file = {json.dumps(str(secret))} }}
    """
    async with rabbits.north.client() as broker:
        await broker.create_queue(ORDERS, QueueProperties())
        yield Place(config=config, broker=broker)


@asynccontextmanager
async def on_azurite(
    gateways: Gateways, rabbits: ExampleNodes, folder: Path
) -> AsyncIterator[Place]:
    async with azurite(folder / "azurite") as (_, port), storage_queues(port) as broker:
        await broker.create_queue(ORDERS, QueueProperties(lock_duration=LOCK))
        yield Place(config=storage_config(folder, port), broker=broker)


def storage_config(folder: Path, port: int) -> str:
    secret = folder / "key"
    write_secret(secret, f"{KEY}\n")
    return f"""
        logging = {{ level = "debug" }}
        [namespaces.here]
        url = "storage-queue:{url_of(port)}"
        key = {{ file = {json.dumps(str(secret))} }}
    """


OpenPlace = Callable[[Gateways, ExampleNodes, Path], AbstractAsyncContextManager[Place]]
everywhere = pytest.mark.parametrize("open_place", [behind_a_gateway, on_rabbitmq, on_azurite])


async def send(broker: Broker, *bodies: str) -> None:
    for start in range(0, len(bodies), 100):
        chunk = bodies[start : start + 100]
        await broker.send(ORDERS, [Message(message_id=each, body=each.encode()) for each in chunk])


async def start_listener(
    gateways: Gateways, place: Place, *arguments: str, name: str = "listener"
) -> GatewayProcess:
    command = ("listen", "orders", *arguments)
    return await gateways.start(place.config, name=name, command=command)


def repeated(*listeners: GatewayProcess) -> set[str]:
    return {name for name, times in Counter(noted(*listeners)).items() if times > 1}


def too_late(*listeners: GatewayProcess) -> set[str]:
    """
    The messages that may come twice: the listener said that it settled them after their lock ended.
    """
    lines = [line for listener in listeners for line in listener.log]
    return {line["message_id"] for line in lines if line.get("event") == "settled_too_late"}


async def until_active(broker: Broker, entity: EntityPath, count: int) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            if (await broker.inspect(entity)).active == count:
                return
            await trio.sleep(LOOK)


@everywhere
async def test_listeners_that_are_stopped_or_killed_under_load_lose_nothing(
    open_place: OpenPlace, gateways: Gateways, rabbits: ExampleNodes, tmp_path: Path
) -> None:
    async with open_place(gateways, rabbits, tmp_path) as place:
        await send(place.broker, *SENT)
        stopped = await start_listener(gateways, place, *NOTE_SOME, name="stopped")
        await until_noted(SOME, stopped)
        code = await stopped.wait()
        done_first = set(noted(stopped))
        killed = await start_listener(gateways, place, *NOTE, name="killed")
        await until_noted(len(done_first) + SOME, stopped, killed)
        await killed.kill()
        last = await start_listener(gateways, place, *NOTE, name="last")
        await until_noted(len(SENT), stopped, killed, last)
        # Messages that a killed listener noted and didn't complete come again when their locks end.
        await until_active(place.broker, ORDERS, 0)
        codes = [code, await last.stop()]

    assert codes == [0, 0]
    assert len(done_first) < len(SENT)  # the machine was under load
    assert set(noted(stopped, killed, last)) == set(SENT)
    assert repeated(stopped) | (done_first & set(noted(killed, last))) <= too_late(stopped)


@everywhere
async def test_a_poison_message_holds_up_no_others(
    open_place: OpenPlace, gateways: Gateways, rabbits: ExampleNodes, tmp_path: Path
) -> None:
    async with open_place(gateways, rabbits, tmp_path) as place:
        await send(place.broker, "poison", *SENT[:50])
        listener = await start_listener(gateways, place, *NOTE, "--poison-after", "2")
        await until_noted(50, listener)
        line = await listener.seen("poisoned")
        code = await listener.stop()
        async with place.broker.open_receiver(ORDERS.dead_letter) as receiver:
            with trio.fail_after(PATIENCE):
                (found,) = await receiver.receive(1)

    assert (code, line["message_id"], line["attempts"]) == (0, "poison", 2)
    assert found.message.body == b"poison"
    assert "ValueError" in found.message.properties["DeadLetterErrorDescription"]


@attrs.define(eq=False)
class Counting(Pass):
    """Notes the requests of clients that send each head in one piece: the method, and when."""

    wanted: int
    enough: trio.Event = attrs.field(factory=trio.Event)
    requests: list[tuple[str, float]] = attrs.field(factory=list)

    async def up(self, link: Link, data: bytes) -> None:
        head, ends, _ = data.partition(b" HTTP/1.1\r\n")
        if ends:
            self.requests.append((head.split(b" ")[0].decode(), trio.current_time()))
        if len(self.requests) >= self.wanted:
            self.enough.set()
        await link.send_up(data)


async def test_an_idle_listener_asks_azurite_ever_more_seldom(
    gateways: Gateways, tmp_path: Path, nursery: trio.Nursery
) -> None:
    fault = Counting(1 + 7)  # its settings, then seven looks
    async with azurite(tmp_path / "azurite") as (_, port), storage_queues(port) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
        proxy = ChaosProxy("127.0.0.1", port, rng=random.Random(1))
        proxy.fault = fault
        await nursery.start(proxy.serve)
        place = Place(config=storage_config(tmp_path, proxy.port), broker=broker)
        listener = await start_listener(gateways, place, *NOTE)
        with trio.fail_after(PATIENCE):
            await fault.enough.wait()
        code = await listener.stop()
        nursery.cancel_scope.cancel()
    methods, moments = zip(*fault.requests[1:], strict=True)

    assert code == 0
    assert set(methods) == {"GET"}
    # Six pauses: 12 s together, 9.6 s at least. Who asks each second has made them in six.
    assert moments[6] - moments[0] > 6.0


async def test_a_command_has_the_body_as_input_and_the_rest_in_its_environment(
    gateways: Gateways, tmp_path: Path
) -> None:
    script = tmp_path / "work.sh"
    script.write_text(
        'read -r body; echo "$PAIRGATE_QUEUE:$PAIRGATE_PROPERTY_colour:$body" >> notes'
    )
    async with behind_a_gateway(gateways) as place:
        await place.broker.send(ORDERS, [Message(body=b"one\n", properties={"colour": "red"})])
        listener = await start_listener(gateways, place, "--exec", f"/bin/sh {script}")
        await until_noted(1, listener)
        await until_active(place.broker, ORDERS, 0)
        code = await listener.stop()

    assert (code, noted(listener)) == (0, ["orders:red:one"])


async def test_a_command_that_is_killed_gets_its_message_again(
    gateways: Gateways, tmp_path: Path
) -> None:
    script = tmp_path / "work.sh"
    script.write_text('[ "$PAIRGATE_ATTEMPT" = 1 ] && kill -KILL $$; cat >> notes; echo >> notes')
    async with behind_a_gateway(gateways) as place:
        await send(place.broker, "one")
        listener = await start_listener(gateways, place, "--exec", f"/bin/sh {script}")
        await until_noted(1, listener)
        await until_active(place.broker, ORDERS, 0)
        await listener.stop()

    assert noted(listener) == ["one"]
    assert listener.count("item_failed", attempts=1) == 1


async def test_an_endpoint_that_is_down_pauses_the_listener_and_poisons_nothing(
    gateways: Gateways, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    async with behind_a_gateway(gateways) as place, trio.open_nursery() as nursery:
        port = free_port()
        options = ("--to", f"http://127.0.0.1:{port}/work", "--poison-after", "1")
        await send(place.broker, *SENT[:20])
        listener = await start_listener(gateways, place, *options)
        await listener.seen("listener_paused")
        nursery.start_soon(
            partial(
                trio.run_process,
                [sys.executable, str(script), str(port)],
                cwd=listener.folder,
                deliver_cancel=kill,
            )
        )
        await until_noted(20, listener)
        await until_active(place.broker, ORDERS, 0)
        code = await listener.stop()
        dead = (await place.broker.inspect(ORDERS)).dead_lettered
        nursery.cancel_scope.cancel()

    assert code == 0
    assert dead == 0
    assert Counter(noted(listener)) == Counter(SENT[:20])


@everywhere
async def test_an_endpoint_that_takes_one_message_a_second_poisons_nothing(
    open_place: OpenPlace, gateways: Gateways, rabbits: ExampleNodes, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text(BUSY_SERVER)
    async with open_place(gateways, rabbits, tmp_path) as place, trio.open_nursery() as nursery:
        port = free_port()
        options = ("--to", f"http://127.0.0.1:{port}/work", "--poison-after", "1")
        await send(place.broker, *SENT[:4])
        listener = await start_listener(gateways, place, *options)
        nursery.start_soon(
            partial(
                trio.run_process,
                [sys.executable, str(script), str(port)],
                cwd=listener.folder,
                deliver_cancel=kill,
            )
        )
        await until_noted(4, listener)
        await until_active(place.broker, ORDERS, 0)
        code = await listener.stop()
        nursery.cancel_scope.cancel()

    assert code == 0
    assert listener.count("listener_paused") > 1
    assert [each for each in listener.log if each["event"] == "poisoned"] == []
    assert Counter(noted(listener)) == Counter(SENT[:4])


BUSY_SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    rest = 0.0
    has_refused = True  # it does so after each message, also if the next one comes late
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not Handler.has_refused or time.monotonic() < Handler.rest:
            Handler.has_refused = True
            self.send_response(429)
            self.send_header("Retry-After", "1")
        else:
            Handler.has_refused = False
            Handler.rest = time.monotonic() + 1.0
            with open("notes", "ab") as notes:
                notes.write(body + b"\\n")
            self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


async def test_a_second_signal_cuts_a_handler_that_hangs(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with behind_a_gateway(gateways) as place:
        await send(place.broker, "one")
        script = tmp_path / "work.sh"
        script.write_text("echo begun >> notes; exec sleep 1000")
        listener = await start_listener(
            gateways, place, "--exec", f"/bin/sh {script}", "--grace", "1h"
        )
        await until_noted(1, listener)
        listener.signal(signal.SIGTERM)
        await listener.seen("draining")
        code = await listener.stop()
        left = (await place.broker.inspect(ORDERS)).active

    assert (code, left) == (0, 1)


async def test_a_listener_that_is_told_wakes_up_for_each_message(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with behind_a_gateway(gateways) as place:
        listener = await start_listener(gateways, place, *NOTE)
        await listener.seen("triggers_regained")
        for number in range(3):
            await send(place.broker, str(number))
            await until_noted(number + 1, listener)
        code = await listener.stop()

    assert (code, noted(listener)) == (0, ["0", "1", "2"])
