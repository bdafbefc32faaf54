"""`pairgate move` of a running gateway, under load, with the process killed at each stage."""

import json
import re
import shlex
from pathlib import Path

import pytest
import trio

from tests.brokers.conftest import azurites
from tests.brokers.storage_queue.azurites import Azurites, url_of
from tests.e2e.commands import ADMIN, run
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rest import request, send, take
from tests.extensions.move.load import Load
from tests.extensions.move.ordering import move, until
from tests.harness.azurite import KEY
from tests.harness.patience import PATIENCE
from tests.harness.secret_files import write_secret
from tests.pages import blocks

__all__ = ["azurites"]

pytestmark = [pytest.mark.slow, pytest.mark.shared]

PAIR = (
    """
[namespaces.old]
url = "embedded:old.db"

[namespaces.new]
url = "embedded:new.db"

[namespaces.backlog]
url = "embedded:backlog.db"

[pairing]
primary = "old"
secondary = "backlog"
enable_syphon = true

[move]
to = "new"
state = "moves"

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
"""
    + ADMIN
)


QUEUE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<LockDuration>%s</LockDuration><MaxDeliveryCount>%d</MaxDeliveryCount>"
    "</QueueDescription></content></entry>"
)


async def started(
    gateways: Gateways, lock: str = "PT1M", *, deliveries: int = 100, top: str = ""
) -> GatewayProcess:
    gateway = await gateways.start(top + PAIR)
    queue = (QUEUE % (lock, deliveries)).encode()
    made = await request(gateway.address, "PUT", "/orders?api-version=2021-05", queue)
    assert made[0] == 201
    return gateway


async def test_a_queue_moves_under_load_and_back_though_the_gateway_is_killed_at_each_stage(
    gateways: Gateways,
) -> None:
    gateway = await started(gateways, "PT5S")  # what a killed receiver holds comes again soon
    load = Load(gateway)
    for number in range(300):  # more than the receivers take at once
        await send(gateway.address, "orders", b"early %d" % number)
        load.accepted.add(f"early {number}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, 1)
        plan = await move(gateway, "plan", "orders")
        await move(gateway, "start", "orders")
        for stage, order in (("to-new", ""), ("new", "rollback"), ("to-old", ""), ("old", "start")):
            await until(gateway, stage)
            await gateway.kill()
            await gateway.start()
            if order:
                await move(gateway, order, "orders")
        await until(gateway, "new")
        load.over = True
    with trio.fail_after(PATIENCE):
        await load.receive_all()

    [planned] = plan["entities"]
    assert (plan["to"], planned["exists"], planned["problems"]) == ("new", False, [])
    assert not load.accepted - load.received.keys()
    [last] = (await move(gateway, "report"))["moves"]
    assert last["stage"] == "new"
    assert last["left"] == 0


async def test_no_message_comes_twice_while_a_queue_moves(gateways: Gateways) -> None:
    gateway = await started(gateways)
    load = Load(gateway)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, 2)
        await trio.sleep(2.0)
        await move(gateway, "start", "orders")
        await until(gateway, "new")
        await move(gateway, "rollback", "orders")
        await until(gateway, "old")
        load.over = True
    with trio.fail_after(PATIENCE):
        await load.receive_all()

    assert max(load.received.values()) == 1, load.longest


async def test_the_orders_of_an_operator_are_told_in_words(gateways: Gateways) -> None:
    gateway = await started(gateways)
    await send(gateway.address, "orders", b"a")

    texts = []
    for words in (["status"], ["plan"], ["start", "orders", "--reason", "case 7"], ["report"]):
        code, output, errors = await run(gateway.folder, "move", *words)
        assert code == 0, errors
        texts.append(output)
    code, _, errors = await run(gateway.folder, "move", "pause", "nothing")

    assert "no move was started" in texts[0]
    assert "orders  queue, is made, messages: 1" in texts[1]
    assert "orders  to-new, left: 1" in texts[2]
    assert re.search("moved: [01] active", texts[3])  # the move has begun, and may be over
    assert (code, "no move of nothing was started" in errors) == (1, True)
    assert (await gateway.seen("control_called", action="move-start"))["reason"] == "case 7"


async def test_each_worker_sends_to_the_side_of_the_stage(gateways: Gateways) -> None:
    gateway = await started(gateways, top="workers = 2\n")
    await move(gateway, "start", "orders")
    await until(gateway, "new")

    for number in range(20):  # each on a connection of its own
        await send(gateway.address, "orders", b"%d" % number)
    await move(gateway, "pause", "orders")
    await move(gateway, "rollback", "orders")
    [state] = (await move(gateway, "status"))["moves"]

    assert (state["stage"], state["paused"], state["left"]) == ("to-old", True, 20)
    assert {await take(gateway.address, "orders") for _ in range(20)} == {
        b"%d" % number for number in range(20)
    }


async def test_a_dead_letter_is_redriven_at_the_new_side(gateways: Gateways) -> None:
    gateway = await started(gateways, deliveries=1)
    await send(gateway.address, "orders", b"a")
    _, headers, _ = await request(gateway.address, "POST", "/orders/messages/head")
    await request(gateway.address, "PUT", headers["location"].partition(gateway.address)[2])
    await move(gateway, "start", "orders")
    moved = await until(gateway, "new")

    code, output, errors = await run(
        gateway.folder, "redrive", "orders", "--namespace", "new", "--execute"
    )
    assert moved["report"]["dead_lettered"] == 1
    assert (code, "1 messages are on orders again" in output) == (0, True), errors
    with trio.fail_after(PATIENCE):
        assert await take(gateway.address, "orders") == b"a"


async def test_a_gateway_that_can_not_know_the_stages_does_not_start(gateways: Gateways) -> None:
    gateway = gateways.prepare(PAIR)
    gateway.folder.mkdir(parents=True)
    (gateway.folder / "moves").write_text("no folder")

    await gateway.start(wait=False)

    assert await gateway.wait() == 1
    assert "move.state" in "".join(gateway.garbage)


async def test_the_commands_of_the_page_are_taken_in_their_order(gateways: Gateways) -> None:
    gateway = await started(gateways)
    page = blocks("docs/how-to/operate/move-to-another-broker.md", "sh")

    for line in "".join(page).splitlines():
        program, *words = shlex.split(line, comments=True)
        code, _, errors = await run(gateway.folder, *words)
        assert (program, code) == ("pairgate", 0), errors

    await until(gateway, "old")  # the page's roll back


async def test_a_plan_says_that_a_storage_queue_keeps_no_order(
    gateways: Gateways, azurites: Azurites, tmp_path: Path
) -> None:
    write_secret(tmp_path / "key", KEY)
    url = f"storage-queue:{url_of(azurites.port('primary'))}"
    new = f'url = "{url}"\nkey = {{ file = "{tmp_path / "key"}" }}'
    ordered = 'ordered = ["orders"]\n\n[move]'
    pair = PAIR.replace('url = "embedded:new.db"', new).replace("[move]", ordered)
    gateway = await gateways.start(pair)
    queue = (QUEUE % ("PT1M", 10)).encode()
    await request(gateway.address, "PUT", "/orders?api-version=2021-05", queue)

    _, output, errors = await run(gateway.folder, "move", "plan", "orders", "--json")
    code, _, refusal = await run(gateway.folder, "move", "start", "orders")

    text = "its order is kept, and a Storage Queue doesn't keep the order of its messages"
    assert text in json.loads(output)["entities"][0]["problems"], errors
    assert code != 0
    assert f"orders: {text}" in refusal
