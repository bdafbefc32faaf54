"""Dead letters of a queue of the only namespace are shown, edited and moved back."""

import json
from typing import Any

import pytest

from tests.e2e.commands import ADMIN, run
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rest import request, send, take

pytestmark = pytest.mark.slow

ALONE = (
    '[namespaces.test]\nurl = "memory:"\n\n'
    '[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:0"\n' + ADMIN
)
ONE_DELIVERY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<MaxDeliveryCount>1</MaxDeliveryCount></QueueDescription></content></entry>"
)


async def bury(gateway: GatewayProcess, count: int) -> None:
    """Dead-letter messages: each is delivered as often as it may be."""
    for number in range(count):
        await send(gateway.address, "orders", b"%d" % number)
    for _ in range(count):
        status, headers, _ = await request(gateway.address, "POST", "/orders/messages/head")
        assert status == 201
        path = headers["location"].partition(gateway.address)[2]
        assert (await request(gateway.address, "PUT", path))[0] == 200


async def asked(gateway: GatewayProcess, *words: str) -> tuple[int, Any]:
    code, output, errors = await run(gateway.folder, *words, "--json")
    assert output, errors
    return code, json.loads(output)


async def test_dead_letters_of_a_queue_are_shown_and_moved_back(gateways: Gateways) -> None:
    gateway = await gateways.start(ALONE)
    made = await request(
        gateway.address, "PUT", "/orders?api-version=2021-05", ONE_DELIVERY.encode()
    )
    assert made[0] == 201
    await bury(gateway, 3)
    (gateway.folder / "body").write_text("fixed")

    shown = await asked(gateway, "dead-letters", "orders", "--peek", "3")
    looked = await asked(gateway, "redrive", "orders")
    first = shown[1]["samples"][0]["message_id"]
    chosen = ("--id", first, "--set", "fixed=yes", "--body", "body", "--reason", "case 7")
    one = await asked(gateway, "redrive", "orders", "--execute", *chosen)
    fixed = await request(gateway.address, "DELETE", "/orders/messages/head?timeout=10")
    others = await run(gateway.folder, "redrive", "orders", "--execute", "--rate", "0")
    bodies = {await take(gateway.address, "orders") for _ in range(2)}
    nothing = await asked(gateway, "dead-letters", "orders")

    assert [(each["reason"], each["messages"]) for each in shown[1]["groups"]] == [
        ("MaxDeliveryCountExceeded", 3)
    ]
    assert (looked[0], looked[1]["moves"], looked[1]["moved"]) == (0, 3, 0)
    assert (one[0], one[1]["moved"]) == (0, 1)
    assert (fixed[2], fixed[1]["fixed"]) == (b"fixed", '"yes"')
    assert others[0] == 0
    assert "2 messages are on orders again" in others[1]
    assert bodies == {b"1", b"2"}
    assert (nothing[0], nothing[1]["messages"]) == (0, 0)
    moved = await gateway.seen("dead_letters_redriven", queue="orders", reason="case 7")
    assert (moved["messages"], moved["left"]) == (1, 0)


async def test_an_order_that_can_not_be_meant_is_refused(gateways: Gateways) -> None:
    gateway = await gateways.start(ALONE)

    for words, text in (
        (["redrive"], "name a QUEUE for its dead letters"),
        (["redrive", "--set", "a=b"], "queue: expected with"),
        (["redrive", "news/subscriptions/all"], "target: expected for a subscription"),
        (["redrive", "orders", "--namespace", "west"], "the configuration has no 'west'"),
        (["redrive", "orders", "--set", "a"], "NAME=VALUE expected"),
    ):
        code, _, errors = await run(gateway.folder, *words)
        assert (code, text in errors) == (2, True), errors
