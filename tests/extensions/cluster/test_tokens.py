"""
Gateways of a cluster before a namespace whose tokens any of them can settle with: a gateway holds
nothing, and the others settle although it is gone.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.brokers.servicebus.broker import ServiceBusRestBroker, ServiceBusRestOptions
from gateway.brokers.storage_queue.broker import StorageQueueBroker
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.capabilities import SettlesByToken, Visibility
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import Abandon, Complete, Message
from gateway.domain.storage_queue import TakenMessage, Terms
from gateway.extensions.cluster.options import ALONE
from gateway.frontends.leases import Leases
from gateway.offering import required
from gateway.wire.http.messages import Request, Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.rest import build_request
from tests.brokers.servicebus.broker import tokens as signer
from tests.brokers.storage_queue.harness import Account, Harness, harness
from tests.extensions.cluster.frontends import rest_of, storage_of
from tests.extensions.cluster.gateways import (
    ADDRESSES,
    ORDERS,
    OTHERS,
    Network,
    Node,
    open_network,
)
from tests.frontends import rest_client
from tests.frontends.rest_client import frontend_of, locked_target, wall_clock
from tests.harness.clocks import VirtualClock

ONE, TWO, THREE = ADDRESSES
TERMS = Terms(hidden=timedelta(seconds=30))


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with open_network() as network:
        yield network


# --- a queue service


@attrs.define(eq=False)
class Gateways:
    """Two of them before one account, each with an adapter of its own."""

    network: Network
    account: Account
    one: Node
    two: Node


@pytest.fixture
async def gateways(network: Network) -> AsyncIterator[Gateways]:
    async with harness() as made:
        await made.broker.create_queue(ORDERS, QueueProperties())
        await made.broker.create_queue(OTHERS, QueueProperties())
        await made.broker.send(ORDERS, [Message(body=b"%d" % each) for each in range(3)])
        network.adapters = {ONE: made.broker, TWO: adapter_for(made, 2), THREE: made.broker}
        one, two = await network.start(ONE), await network.start(TWO)
        yield Gateways(network, made.account, one, two)


def adapter_for(made: Harness, number: int) -> StorageQueueBroker:
    return StorageQueueBroker(
        client=None,
        account=made.peer,
        options=StorageQueueNamespaceOptions(),
        clock=made.clock,
        rng=random.Random(number),
    )


async def taken_by(visibility: Visibility, entity: EntityPath = ORDERS) -> TakenMessage:
    (taken,) = await visibility.dequeue(entity, 1, lambda _: TERMS)
    assert taken.receipt is not None
    return taken


async def test_any_gateway_deletes_a_message_although_the_one_that_got_it_is_gone(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    (got,) = await storage_of(gateways.one).get()
    await gateways.one.kill()

    await storage_of(gateways.two).delete(got)

    assert gateways.one.connections == []
    with pytest.raises(MessageNotFound):
        await storage_of(gateways.two).delete(got)
    assert len(await storage_of(gateways.two).get(limit=32)) == 2


async def test_nothing_is_held_and_the_message_is_visible_again_as_its_client_said(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    client = storage_of(gateways.one)
    (got,) = await client.get(hidden=7)
    asked = len(gateways.account.asked)
    await trio.sleep(6)

    assert len(gateways.account.asked) == asked, "no lock is renewed"
    assert len(await client.get(limit=32)) == 2
    await trio.sleep(2)
    (again,) = await client.get(limit=32)
    assert (again.body, again.dequeues) == (got.body, 2)


async def test_an_update_returns_another_receipt_that_works_at_each_gateway(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    one, two = storage_of(gateways.one), storage_of(gateways.two)
    (got,) = await one.get()

    first = await two.update(got, 60)
    second = await one.update(first, 60, "changed & <short>")
    with pytest.raises(LockLost):
        await two.delete(first)
    shown = await two.update(second, 0)
    (again,) = [each for each in await two.get(limit=32) if each.message_id == got.message_id]

    assert shown.pop_receipt != second.pop_receipt
    assert again.body == b"changed & <short>"
    stored = await gateways.account.store.peek(EntityPath("orders"), limit=10)
    assert b"changed & <short>" in [each.message.body for each in stored], "it is a text there too"


async def test_the_end_of_a_receiver_or_of_the_gateway_gives_nothing_back(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    (got,) = await storage_of(gateways.one).get(hidden=300)
    await trio.sleep(100)  # an idle receiver is closed after 30 s

    assert len(await storage_of(gateways.two).get(limit=32)) == 2
    await storage_of(gateways.two).delete(got)


async def test_a_message_with_more_than_a_text_is_held_as_before(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    await gateways.network.adapters[ONE].send(OTHERS, [Message(body=b"first", properties={"n": 1})])
    taken = await taken_by(gateways.one.visibility, OTHERS)
    assert taken.receipt is not None
    assert taken.receipt.holder

    changed = await gateways.two.visibility.change(OTHERS, taken.receipt, timedelta(0), b"second")
    assert changed.receipt is None
    again = await taken_by(gateways.two.visibility, OTHERS)

    assert again.delivery.message.properties["n"] == 1
    assert again.delivery.message.body == b"second"
    await gateways.two.kill()
    assert again.receipt is not None
    with pytest.raises(LockLost):
        await gateways.one.visibility.remove(OTHERS, again.receipt)


async def test_a_receipt_of_another_queue_or_message_is_none(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    two = storage_of(gateways.two)
    first, second = await storage_of(gateways.one).get(limit=2)

    for strange in (
        attrs.evolve(first, pop_receipt=second.pop_receipt),
        attrs.evolve(second, message_id=first.message_id),
    ):
        with pytest.raises((LockLost, MessageNotFound)):
            await two.delete(strange)
    with pytest.raises((LockLost, MessageNotFound)):
        await two.do(
            storage.DeleteMessage(
                queue="others",
                message_id=first.message_id,
                pop_receipt=first.pop_receipt or "",
            )
        )
    await two.delete(first)
    await two.delete(second)


async def test_a_receipt_that_was_tampered_with_asks_the_account_nothing(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    (got,) = await storage_of(gateways.one).get()
    receipt = got.pop_receipt or ""
    deletions = gateways.account.count("DELETE", "/messages/")
    for index in range(0, len(receipt) - 4, 7):
        changed = receipt[:index] + ("A" if receipt[index] != "A" else "B") + receipt[index + 1 :]
        with pytest.raises((LockLost, MessageNotFound)):
            await storage_of(gateways.two).delete(attrs.evolve(got, pop_receipt=changed))
    with pytest.raises(InvalidRequest):  # it isn't Base64 any more
        await storage_of(gateways.two).delete(attrs.evolve(got, pop_receipt=receipt * 1000))

    assert gateways.account.count("DELETE", "/messages/") == deletions


@attrs.define(eq=False)
class Fault:
    """Deletions are cut off, before the account has done them or after that."""

    error: BrokerError
    is_done: bool = False
    times: int = 1000

    async def __call__(
        self, request: Request, go_on: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if request.method != "DELETE" or not self.times:
            return await go_on(request)
        self.times -= 1
        if self.is_done:
            await go_on(request)
        await trio.lowlevel.checkpoint()
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"), [(OutcomeUnknown("cut"), 500), (Unavailable("refused"), 503)]
)
async def test_a_step_that_the_account_leaves_unknown_or_undone_is_told_so(
    gateways: Gateways, error: BrokerError, status: int, autojump_clock: MockClock
) -> None:
    (got,) = await storage_of(gateways.one).get(hidden=300)
    gateways.account.fault = Fault(error)
    response = await storage_of(gateways.two).send(deletion(got))

    assert response.status == status
    assert response.headers.get("X-Pairgate-Outcome") == error.outcome.value
    gateways.account.fault = None
    await storage_of(gateways.two).delete(got)


async def test_a_deletion_whose_answer_was_lost_is_done_when_the_message_is_gone(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    (got,) = await storage_of(gateways.one).get(hidden=300)
    gateways.account.fault = Fault(OutcomeUnknown("cut"), is_done=True, times=1)

    await storage_of(gateways.two).delete(got)

    with pytest.raises(MessageNotFound):
        await storage_of(gateways.one).delete(got)


def deletion(got: storage.QueueMessage) -> Request:
    return build_request(
        storage.DeleteMessage(
            queue="orders", message_id=got.message_id, pop_receipt=got.pop_receipt or ""
        )
    )


async def test_poison_messages_go_as_before(gateways: Gateways, autojump_clock: MockClock) -> None:
    visibility = gateways.one.visibility
    terms = Terms(hidden=timedelta(seconds=1), poison_after=1)
    await visibility.dequeue(ORDERS, 3, lambda _: terms)
    await trio.sleep(2)

    assert await visibility.dequeue(ORDERS, 3, lambda _: terms) == []
    assert (await gateways.account.depths())["orders-poison"] == 3


async def test_service_bus_rest_holds_what_a_queue_service_renews_with_another_receipt(
    gateways: Gateways, autojump_clock: MockClock
) -> None:
    target = await locked_target(rest_of(gateways.one))

    assert (await rest_of(gateways.two).ask("POST", target)).status == 200
    assert (await rest_of(gateways.two).ask("DELETE", target)).status == 200


async def test_a_worker_of_a_gateway_alone_settles_what_another_one_got(
    network: Network, autojump_clock: MockClock
) -> None:
    async with harness() as made:
        await made.broker.create_queue(ORDERS, QueueProperties())
        await made.broker.send(ORDERS, [Message(body=b"1")])
        network.adapters[ALONE] = made.broker
        parent, worker, _ = await network.start_workers(ALONE)

        (got,) = await parent.leases.receive_hidden(ORDERS, 1, timedelta(seconds=30))
        token = got.lock_token or ""
        assert not parent.leases.holds(token)
        await worker.leases.settle(ORDERS, token, Complete())

        assert made.account.count("DELETE", "/messages/") == 1


async def test_without_a_cluster_a_token_is_open_and_outlives_its_gateway(
    network: Network, autojump_clock: MockClock
) -> None:
    async with harness() as made:
        await made.broker.create_queue(ORDERS, QueueProperties())
        await made.broker.send(ORDERS, [Message(body=b"1")])
        before, after = Leases(made.broker, wall_clock), Leases(made.broker, wall_clock)
        async with trio.open_nursery() as nursery:
            await nursery.start(before.run)
            (got,) = await before.receive_hidden(ORDERS, 1, timedelta(seconds=30))
            nursery.cancel_scope.cancel()
        await network.nursery.start(after.run)

        hidden = await after.hide(ORDERS, got.lock_token or "", timedelta(seconds=60))
        with pytest.raises(LockLost):  # the account has given another receipt
            await after.settle(ORDERS, got.lock_token or "", Complete())
        await after.settle(ORDERS, hidden.lock_token or "", Complete())
        for foreign in ("a token", "A" * 64, "!" * 64):
            with pytest.raises(LockLost):
                await after.settle(ORDERS, foreign, Complete())


# --- Service Bus over REST


@attrs.define(eq=False)
class Namespace:
    """A Pairgate without a cluster, which stands for a namespace of Service Bus."""

    client: rest_client.Client
    asked: list[Request] = attrs.field(factory=list)

    async def request(self, request: Request, max_body: int | None = None) -> Response:
        self.asked.append(request)
        return await self.client.send(request)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class RestGateways:
    network: Network
    namespace: Namespace
    one: Node
    two: Node


@pytest.fixture
async def rest_gateways(network: Network) -> RestGateways:
    leases = Leases(network.broker, wall_clock)
    await network.nursery.start(leases.run)
    client = rest_client.Client(frontend_of(network.broker, leases), network.broker)
    namespace = Namespace(client)
    for address in ADDRESSES:
        network.adapters[address] = ServiceBusRestBroker(
            client=namespace,  # type: ignore[arg-type]
            polls=namespace,  # type: ignore[arg-type]
            tokens=signer(VirtualClock()),
            options=ServiceBusRestOptions(key="secret"),
            clock=VirtualClock(),
        )
    one, two = await network.start(ONE), await network.start(TWO)
    return RestGateways(network, namespace, one, two)


@pytest.mark.parametrize("method", ["DELETE", "PUT", "POST"])
async def test_rest_settles_and_renews_although_the_gateway_that_received_is_gone(
    rest_gateways: RestGateways, method: str, autojump_clock: MockClock
) -> None:
    target = await locked_target(rest_of(rest_gateways.one))
    assert not rest_gateways.one.leases.holds(target.rpartition("/")[2])
    await rest_gateways.one.kill()

    response = await rest_of(rest_gateways.two).ask(method, target)

    assert response.status == 200
    assert (response.headers.get("X-Pairgate-Locked-Until") is not None) is (method == "POST")
    again = await rest_of(rest_gateways.two).ask("DELETE", target)
    assert again.status == (200 if method == "POST" else 404)
    assert again.headers.get("X-Pairgate-Error") == (None if method == "POST" else "lock-lost")
    assert rest_gateways.one.connections == []


async def test_rights_are_judged_by_the_entity_and_a_token_is_of_one_entity(
    rest_gateways: RestGateways, autojump_clock: MockClock
) -> None:
    target = await locked_target(rest_of(rest_gateways.one))
    stranger = rest_of(rest_gateways.two, "stranger")
    asked = len(rest_gateways.namespace.asked)

    assert (await stranger.ask("DELETE", target)).status == 401
    elsewhere = target.replace("/orders/", "/others/")
    assert (await stranger.ask("DELETE", elsewhere)).status == 404
    assert (await stranger.ask("POST", elsewhere)).status == 404
    changed = target[:-9] + ("A" if target[-9] != "A" else "B") + target[-8:]
    assert (await rest_of(rest_gateways.two).ask("DELETE", changed)).status == 404
    assert (await rest_of(rest_gateways.two).ask("DELETE", target + "A" * 2000)).status == 404
    assert len(rest_gateways.namespace.asked) == asked, "the namespace is asked for none of them"
    assert (await rest_of(rest_gateways.two).ask("DELETE", target)).status == 200


async def test_another_pairgate_gets_many_and_dead_letters_one_at_another_gateway(
    rest_gateways: RestGateways, autojump_clock: MockClock
) -> None:
    """A Pairgate whose namespace is the cluster: its tokens are sealed twice, and still fit."""
    outer = open_outer(rest_gateways.one), open_outer(rest_gateways.two)
    async with outer[0].open_receiver(ORDERS) as receiver:
        first, second, _ = await receiver.receive(3)
        by_token = required(receiver, SettlesByToken)
        tokens = [by_token.hand_out(each) for each in (first, second)]
    async with outer[1].open_receiver(ORDERS) as receiver:
        by_token = required(receiver, SettlesByToken)
        for token, settlement in zip(tokens, (Complete(), Abandon()), strict=True):
            assert token is not None
            with by_token.adopt(token) as delivery:
                await receiver.settle(delivery, settlement)
    left = [each.message.body for each in await rest_gateways.network.broker.peek(ORDERS, limit=9)]

    assert left == [b"1", b"2"]


def open_outer(node: Node) -> ServiceBusRestBroker:
    inner = Namespace(rest_of(node))
    return ServiceBusRestBroker(
        client=inner,  # type: ignore[arg-type]
        polls=inner,  # type: ignore[arg-type]
        tokens=signer(VirtualClock()),
        options=ServiceBusRestOptions(key="secret"),
        clock=VirtualClock(),
    )


async def test_a_lease_of_a_token_that_is_longer_than_a_uuid_has_one_of_its_own(
    rest_gateways: RestGateways, autojump_clock: MockClock
) -> None:
    """A client of AMQP, whose tokens are UUIDs, behind a gateway before the cluster."""
    leases = Leases(open_outer(rest_gateways.one), wall_clock)
    await rest_gateways.network.nursery.start(leases.run)
    (delivery,) = await leases.receive(ORDERS, 1)

    assert len(delivery.lock_token or "") == 36
    await leases.settle(ORDERS, delivery.lock_token or "", Complete())
    assert len(await rest_gateways.network.broker.peek(ORDERS, limit=9)) == 2


async def test_a_received_and_deleted_message_is_gone(
    rest_gateways: RestGateways, autojump_clock: MockClock
) -> None:
    response = await rest_of(rest_gateways.one).ask("DELETE", "/orders/messages/head?timeout=1")

    assert response.status == 200
    assert len(await rest_gateways.network.broker.peek(ORDERS, limit=9)) == 2
