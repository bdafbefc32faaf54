"""Clients of Service Bus REST and of the Queue service behind a balancer."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.errors import LockLost, MessageNotFound, OutcomeUnknown
from gateway.wire.http.messages import Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.rest import build_request
from tests.extensions.cluster.frontends import rest_of, storage_of
from tests.extensions.cluster.gateways import ADDRESSES, Node, open_network
from tests.frontends.rest_client import locked_target

ONE, TWO, _ = ADDRESSES


@pytest.fixture
async def nodes():
    async with open_network() as network:
        yield await network.start(ONE), await network.start(TWO)


Nodes = tuple[Node, Node]


@pytest.mark.parametrize("method", ["DELETE", "PUT", "POST"])
async def test_rest_settles_and_renews_at_the_other_gateway(
    nodes: Nodes, method: str, autojump_clock: MockClock
) -> None:
    target = await locked_target(rest_of(nodes[0]))

    response = await rest_of(nodes[1]).ask(method, target)

    assert response.status == 200
    again = await rest_of(nodes[0]).ask("DELETE", target)
    assert again.status == (200 if method == "POST" else 404)


async def test_a_client_without_the_right_to_receive_settles_nothing(
    nodes: Nodes, autojump_clock: MockClock
) -> None:
    target = await locked_target(rest_of(nodes[0]))
    stranger = rest_of(nodes[1], "stranger")

    assert (await stranger.ask("DELETE", target)).status == 401
    assert nodes[0].connections == [], "the right is checked where the client asks"
    elsewhere = target.replace("/orders/", "/others/")
    assert (await stranger.ask("DELETE", elsewhere)).status == 404
    assert (await rest_of(nodes[1]).ask("DELETE", target)).status == 200


async def test_a_lock_token_with_more_digits_than_a_uuid_is_lost_as_any_other(
    nodes: Nodes, autojump_clock: MockClock
) -> None:
    crafted = "f" * 16 + "4fff" + "b" + "f" * 15

    response = await rest_of(nodes[1]).ask("DELETE", f"/orders/messages/1/{crafted}")

    assert response.status == 404
    assert response.headers.get("X-Pairgate-Error") == "lock-lost"


async def test_rest_says_that_the_lock_is_lost_if_the_holder_is_gone(
    nodes: Nodes, autojump_clock: MockClock
) -> None:
    target = await locked_target(rest_of(nodes[0]))
    await nodes[0].kill()

    response = await rest_of(nodes[1]).ask("DELETE", target)

    assert response.status == 404
    assert response.headers.get("X-Pairgate-Error") == "lock-lost"
    assert trio.current_time() == 0


async def killed_when_asked(node: Node) -> None:
    await node.hindered.asked.wait()
    await node.kill()


async def while_it_dies(node: Node, client: object, *arguments: object) -> Response:
    """The answer to a request whose holder dies as soon as the request reaches it."""
    node.hindered.hangs = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(killed_when_asked, node)
        ask = getattr(client, "ask" if isinstance(arguments[0], str) else "send")
        response: Response = await ask(*arguments)
    return response


async def test_rest_says_unknown_if_the_holder_died_after_it_was_asked(
    nodes: Nodes, autojump_clock: MockClock
) -> None:
    target = await locked_target(rest_of(nodes[0]))

    response = await while_it_dies(nodes[0], rest_of(nodes[1]), "DELETE", target)

    assert response.status == 504
    assert response.headers.get("X-Pairgate-Outcome") == "unknown"


async def test_a_queue_message_is_updated_and_deleted_at_the_other_gateway(
    nodes: Nodes, autojump_clock: MockClock
) -> None:
    one, two = map(storage_of, nodes)
    (got,) = await one.get()

    changed = await two.update(got, 60)
    with pytest.raises(LockLost):
        await one.delete(got)
    again = await one.update(changed, 60)
    await two.delete(again)

    with pytest.raises(MessageNotFound):
        await one.delete(again)
    assert len(await two.get(limit=32)) == 2


async def test_a_receipt_that_was_tampered_with_is_refused_as_any_other(
    nodes: Nodes, autojump_clock: MockClock
) -> None:
    one, two = map(storage_of, nodes)
    (got,) = await one.get()
    receipt = got.pop_receipt or ""
    for index in range(0, len(receipt) - 4, 3):
        changed = receipt[:index] + ("A" if receipt[index] != "A" else "B") + receipt[index + 1 :]
        with pytest.raises((LockLost, MessageNotFound)):
            await two.delete(attrs.evolve(got, pop_receipt=changed))
    assert nodes[0].connections == []
    await two.delete(got)


async def test_the_queue_service_says_that_the_receipt_is_none_if_the_holder_is_gone(
    nodes: Nodes, autojump_clock: MockClock
) -> None:
    (got,) = await storage_of(nodes[0]).get()
    await nodes[0].kill()

    with pytest.raises(LockLost):
        await storage_of(nodes[1]).delete(got)
    with pytest.raises(LockLost):
        await storage_of(nodes[1]).update(got, 60)
    assert trio.current_time() == 0


@pytest.mark.parametrize("updates", [False, True])
async def test_the_queue_service_says_unknown_if_the_holder_died_after_it_was_asked(
    nodes: Nodes, updates: bool, autojump_clock: MockClock
) -> None:
    """
    A second request would be wrong: the next holder knows no such message, as after a deletion.
    """
    (got,) = await storage_of(nodes[0]).get()
    fields = {"queue": "orders", "message_id": got.message_id, "pop_receipt": got.pop_receipt or ""}
    operation: storage.Operation = storage.DeleteMessage(**fields)
    if updates:
        operation = storage.UpdateMessage(**fields, visibility=60)

    client = storage_of(nodes[1])
    response = await while_it_dies(nodes[0], client, build_request(operation))

    assert response.status == 500
    assert response.headers.get("X-Pairgate-Outcome") == OutcomeUnknown.outcome.value
    assert trio.current_time() == 0
