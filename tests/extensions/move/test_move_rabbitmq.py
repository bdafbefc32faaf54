"""A queue moves from RabbitMQ 3.10 to RabbitMQ 4 behind two gateways, of which one is killed."""

import json
from pathlib import Path

import pytest
import trio

from tests.brokers.conftest import rabbits
from tests.brokers.rabbitmq.nodes import NEWER, Nodes
from tests.e2e.commands import ADMIN, pairgate_provision, run
from tests.e2e.processes import ENVELOPE_VARIABLE, Gateways
from tests.e2e.rest import send, take
from tests.extensions.move.load import Load
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER

__all__ = ["rabbits"]

pytestmark = [pytest.mark.slow, pytest.mark.shared]

QUEUE = "moved-under-load"
DIVERTED = "moved-while-diverted"


def config(nodes: Nodes, folder: Path, queue: str, pair: str = "") -> str:
    password = folder / "password"
    password.write_text(USER)
    password.chmod(0o600)

    def namespace(name: str, node: str) -> str:
        url = f"rabbitmq://{USER}@127.0.0.1:{nodes.port(node)}/"
        return f'[namespaces.{name}]\nurl = "{url}"\npassword = {{ file = "{password}" }}\n'

    return f"""
{namespace("old", "primary")}
queues = ["{queue}"]

{namespace("new", NEWER)}

{namespace("backlog", "secondary") if pair else ""}
{pair}

[move]
to = "new"
entities = ["{queue}"]
state = "{folder / "moves"}"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
{ADMIN}"""


async def test_a_queue_moves_to_a_newer_rabbitmq_though_the_gateway_that_moves_is_killed(
    gateways: Gateways, rabbits: Nodes, tmp_path: Path
) -> None:
    text = config(rabbits, tmp_path, QUEUE)
    await pairgate_provision(gateways, text)
    first, second = await gateways.start(text), await gateways.start(text)
    loads = [Load(first, QUEUE, "a"), Load(second, QUEUE, "b")]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(loads[0].run, 0)
        nursery.start_soon(loads[1].run, 1)
        await trio.sleep(3.0)
        code, _, errors = await run(first.folder, "move", "start", QUEUE)
        assert code == 0, errors
        await trio.sleep(4.0)  # it has begun to move, most likely
        await first.kill()
        await first.start()
        with trio.fail_after(PATIENCE):
            stage = ""
            while stage != "new":  # messages come all the time, so that a look may find one
                _, output, _ = await run(second.folder, "move", "status", "--json")
                stage = json.loads(output)["moves"][0]["stage"]
        for load in loads:
            load.over = True

    accepted = loads[0].accepted | loads[1].accepted
    both = Load(second, QUEUE, accepted=accepted, received=loads[1].received)
    with trio.fail_after(PATIENCE):
        await both.receive_all()
    assert len(accepted) > 100


async def test_a_syphon_of_its_own_delivers_to_the_new_side(
    gateways: Gateways, rabbits: Nodes, tmp_path: Path
) -> None:
    pair = f"""[pairing]
primary = "old"
secondary = "backlog"
label = "moved"
backlog_queues = 1
envelope_keys = [{{ id = "test", key = {{ env = "{ENVELOPE_VARIABLE}" }} }}]
"""
    text = config(rabbits, tmp_path, DIVERTED, pair)
    await pairgate_provision(gateways, text)
    gateway = await gateways.start(text)
    code, _, errors = await run(gateway.folder, "failover", DIVERTED, "--force")
    assert code == 0, errors
    syphon = await gateways.start(text, name="syphon", command=("syphon",), wait=False)
    await syphon.seen("started")
    code, _, errors = await run(gateway.folder, "move", "start", DIVERTED)
    assert code == 0, errors
    accepted = [await send(gateway.address, DIVERTED, b"%d" % number) for number in range(5)]
    stage = ""
    with trio.fail_after(PATIENCE):
        while stage != "new":
            _, output, _ = await run(gateway.folder, "move", "status", "--json")
            stage = json.loads(output)["moves"][0]["stage"]
    await trio.sleep(2.5)  # `stages.SWITCH`, and a reading

    assert (await run(gateway.folder, "failback", DIVERTED))[0] == 0
    found = {await take(gateway.address, DIVERTED) for _ in range(5)}

    assert accepted == [(201, "backlog")] * 5
    assert found == {b"%d" % number for number in range(5)}
    assert syphon.running
