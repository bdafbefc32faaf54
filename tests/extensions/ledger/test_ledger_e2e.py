"""
A staged outage with a frozen primary, and 50 messages of which each is explained: by a gateway and
by a syphon of its own, each with a ledger of its own. The truth is what the primary's queue has.
"""

import json
import random
import shlex
import signal
from collections import Counter
from typing import Any

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import AcceptedBy, Message
from tests.e2e.commands import ADMIN, admin_of, pairgate, with_fixed_port
from tests.e2e.installation import client
from tests.e2e.plain_rest import PlainRest
from tests.e2e.processes import IMPATIENT, GatewayProcess, Gateways, broker_config, pair_config
from tests.harness.patience import PATIENCE
from tests.pages import blocks

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
QUEUE = backlog.queue_name("east", 0)
EACH = (15, 25, 10)  # messages before, in and after the outage
SOME = 10  # messages that are asked for where the other test has asked for all
LOOK = 0.2  # seconds between two looks


def ledger_config(name: str, limit: str = "64MiB") -> str:
    return f'\n[ledger]\nfile = "{name}.db"\nlimit = "{limit}"\n'


@attrs.define
class Scene:
    """The processes, and who has accepted each message."""

    primary: GatewayProcess
    gateway: GatewayProcess
    syphon: GatewayProcess
    accepted: dict[str, AcceptedBy] = attrs.field(factory=dict)

    async def produce(self, messages: int) -> None:
        producer = PlainRest(self.gateway.port)
        for _ in range(messages):
            message = Message(message_id=f"m{len(self.accepted)}", body=b"x")
            self.accepted[message.message_id] = await producer.send(ORDERS, [message])
        await producer.aclose()

    async def told(self, command: str, *arguments: str) -> tuple[int, Any]:
        """The command's answer from both processes."""
        ports = [process.ports[-1] for process in (self.gateway, self.syphon)]
        urls = [text for port in ports for text in ("--url", f"http://127.0.0.1:{port}")]
        code, output, errors = await pairgate(self.gateway, command, *arguments, *urls, "--json")
        assert output, errors
        return code, json.loads(output)

    async def words(self, message: str) -> str:
        """The answer of the gateway alone, for people."""
        _, output, _ = await pairgate(self.gateway, "explain", message)
        return output

    async def explained(self, message: str, *arguments: str) -> Any:
        code, told = await self.told("explain", message, *arguments)
        assert code == 0
        [found] = told["entities"]
        return found

    async def until_home(self) -> None:
        with trio.fail_after(PATIENCE):
            while (await self.told("reconcile"))[1]["waiting"]:  # noqa: ASYNC110 another process
                await trio.sleep(LOOK)

    async def copies(self) -> Counter[str]:
        """The messages in the primary's queue, by id."""
        found: Counter[str] = Counter()
        async with client(self.primary) as broker, broker.open_receiver(ORDERS) as receiver:
            while sum(found.values()) < (await broker.inspect(ORDERS)).active or not found:
                deliveries = await receiver.receive(100)
                found.update(str(each.message.message_id) for each in deliveries)
        return found


async def open_scene(gateways: Gateways, *, encrypt: bool = False, top: str = "") -> Scene:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    async with client(secondary) as broker:
        for queue in (QUEUE, backlog.heartbeat_queue("east")):
            await broker.create_queue(queue, QueueProperties())
    options = {"backlog_queues": 1, "enable_syphon": False, "encrypt": encrypt, **IMPATIENT}
    pair = pair_config(primary.address, secondary.address, **options)
    alone, _, _ = pair.partition("[[endpoints]]")
    config = top + pair + ADMIN + ledger_config("gateway")
    gateway = await gateways.start(config, name="gateway")
    syphon = await gateways.start(
        alone + admin_of("syphon") + ledger_config("syphon"), name="syphon", command=("syphon",)
    )
    await with_fixed_port(gateway)
    return Scene(primary, gateway, syphon)


@pytest.mark.parametrize("encrypt", [False, True])
async def test_each_message_of_an_outage_is_explained_rightly(
    gateways: Gateways, encrypt: bool
) -> None:
    scene = await open_scene(gateways, encrypt=encrypt)
    before, during, after = EACH
    await scene.produce(before)
    scene.primary.signal(signal.SIGSTOP)
    await scene.produce(during)
    waiting = await scene.explained(f"m{before + during - 1}", "--no-search")
    words = await scene.words(f"m{before + during - 1}")
    scene.primary.signal(signal.SIGCONT)
    await scene.until_home()
    await scene.produce(after)
    asked = [*scene.accepted] if not encrypt else random.sample([*scene.accepted], SOME)
    found = {message: await scene.explained(message, "--no-search") for message in asked}
    code, report = await scene.told("reconcile")
    copies = await scene.copies()

    assert waiting["where"] == "on-backlog"
    assert waiting["queues"] == [QUEUE.name]
    assert waiting["way_home"] in {"waiting", "moving"}
    assert f"Now: it waits in {QUEUE.name}. " in words
    assert f"Seen in {QUEUE.name} on the secondary: active" in words
    diverted = {message for message, by in scene.accepted.items() if by is AcceptedBy.BACKLOG}
    assert diverted
    for message, each in found.items():
        assert (each["entity"], each["where"]) == ("orders", "at-primary"), message
        moved = any(one["side"] == "secondary" for one in each["facts"])
        assert moved == (message in diverted), message
        assert each["twice"] != "certain" or copies[message] > 1, message
        assert each["twice"] != "no" or copies[message] == 1, message
    assert (code, report["complete"]) == (0, True)
    assert (report["accepted"], report["waiting"]) == (len(scene.accepted), 0)
    assert set(report["ids"]["diverted"]) == {f"orders/{message}" for message in diverted}
    assert set(report["ids"]["moved"]) == set(report["ids"]["diverted"])
    twice = {*report["ids"]["twice"], *report["ids"]["possibly_twice"]}
    assert twice >= {f"orders/{message}" for message in copies if copies[message] > 1}


async def test_a_killed_process_makes_the_report_incomplete(gateways: Gateways) -> None:
    scene = await open_scene(gateways)
    await scene.produce(3)
    await scene.gateway.kill()
    await scene.gateway.start()
    await with_fixed_port(scene.gateway)
    await scene.produce(2)

    code, report = await scene.told("reconcile")

    assert (code, report["complete"]) == (3, False)
    assert [len(each["gaps"]) for each in report["sources"]] == [1, 0]
    assert 2 <= report["accepted"] <= 5


async def test_a_process_that_does_not_answer_is_told(gateways: Gateways) -> None:
    scene = await open_scene(gateways)
    await scene.produce(1)
    await scene.syphon.stop()

    code, told = await scene.told("explain", "m0")
    _, report = await scene.told("reconcile")

    assert code == 3
    assert told["entities"][0]["where"] == "at-primary"
    assert "error" in told["sources"][1]
    assert not report["complete"]
    assert report["sources"][1]["error"]


async def test_a_message_that_nobody_knows_is_told_as_such(gateways: Gateways) -> None:
    scene = await open_scene(gateways)

    code, told = await scene.told("explain", "no-such-message", "--entity", "orders")
    words = await scene.words("no-such-message")

    assert (code, told["entities"], told["seen"]) == (1, [], [])
    assert "no-such-message: it isn't recorded here" in words
    assert {(each["queue"], each["whole"]) for each in told["searched"]} >= {("orders", True)}


async def test_a_sealed_report_is_verified(gateways: Gateways) -> None:
    scene = await open_scene(gateways)
    await scene.produce(3)
    file = scene.gateway.folder / "report.json"
    await scene.told("reconcile", "--seal", str(file))

    right, _, _ = await pairgate(scene.gateway, "reconcile", "--verify", str(file))
    file.write_text(file.read_text().replace('\\"accepted\\": 3', '\\"accepted\\": 4'))
    wrong, _, errors = await pairgate(scene.gateway, "reconcile", "--verify", str(file))

    assert (right, wrong) == (0, 1)
    assert "no key of the pair has sealed this report as it is" in errors


async def test_the_pages_commands_work_as_printed(gateways: Gateways) -> None:
    scene = await open_scene(gateways)
    await scene.produce(20)
    explained, reconciled = blocks("docs/how-to/operate/explain-a-message.md", "sh")
    ports = [process.ports[-1] for process in (scene.gateway, scene.syphon)]
    printed = ("http://10.0.0.11:9640", "http://10.0.0.12:9641")

    results = []
    for line in (*explained.splitlines(), *reconciled.splitlines()):
        for place, port in zip(printed, ports, strict=True):
            line = line.replace(place, f"http://127.0.0.1:{port}")
        results.append(await pairgate(scene.gateway, *shlex.split(line)[1:]))

    codes = [code for code, _, _ in results]
    assert codes == [0, 3, 3], results  # the ledgers are younger than two hours
    outputs = [output for _, output, _ in results]
    assert "Now: accepted by the primary at " in outputs[0]
    assert "       20  accepted\n" in outputs[1]
    assert outputs[1] == outputs[2]


async def test_workers_write_into_the_ledger_of_their_gateway(gateways: Gateways) -> None:
    scene = await open_scene(gateways, top="workers = 2\n")
    for _ in range(4):  # each with connections of its own, which go to either worker
        await scene.produce(2)

    with trio.fail_after(PATIENCE):
        while (await scene.told("reconcile"))[1]["accepted"] < 8:  # noqa: ASYNC110 another process
            await trio.sleep(LOOK)
    code, report = await scene.told("reconcile")

    assert (code, report["accepted"], report["twice"]) == (0, 8, 0)
