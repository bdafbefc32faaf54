"""Several gateways send to one ordered entity: the others forward their sends to the orderer."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import attrs
import pytest
import trio

from gateway.capabilities import Sessions
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    Busy,
    HolderSilent,
    MessageTooLarge,
    NotOrderer,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.extensions.cluster.peer import AFTER_TAKE_OVER
from gateway.extensions.cluster.requests import LARGEST
from gateway.extensions.order import forward, lease
from gateway.extensions.order.events import OrderLeaseTaken
from gateway.extensions.order.keys import key_of
from gateway.extensions.order.options import OrderLeaseMode
from gateway.extensions.order.queues import ordered_queue
from gateway.offering import required
from gateway.pairing.additions import PairPeers, SendsInOrder
from gateway.pairing.options import OnUnknown
from tests.extensions.cluster.gateways import Network, Node
from tests.extensions.order.order_lease import (
    KEY,
    LOCK,
    NAME,
    Gateway,
    Switch,
    asked_for_leases,
    gateway,
    keep_locked,
    status_of,
)
from tests.extensions.order.order_lease import QUEUE as LEASES
from tests.harness.faults import Hang, Operation, Refuse
from tests.pairing.harness import LABEL, ORDERS, Harness, Slow, Timed, message, virtual_time

pytestmark = virtual_time

PRIMARY, BACKLOG = AcceptedBy.PRIMARY, AcceptedBy.BACKLOG
ADDRESSES = tuple(f"gateway-{number}.test:5680" for number in range(5))
RESULTS = [each.value for each in lease.ForwardResult]
QUEUE = ordered_queue(LABEL, KEY.number)
SOON = 1.0
MAX_REQUESTS = 4


@attrs.define(eq=False)
class Orders:
    """A pair as its peers see it: once silent, it takes sends, and neither sends nor answers."""

    in_order: SendsInOrder
    is_silent: bool = False
    asked: int = 0  # since then
    is_orderer: bool = True
    refused: int = 0

    async def send_forwarded(
        self, entity: EntityPath, queue: EntityPath, messages: Sequence[Message], seconds: float
    ) -> AcceptedBy:
        if not self.is_orderer:
            self.refused += 1
            raise NotOrderer("not here")
        if self.is_silent:
            self.asked += 1
            await trio.sleep_forever()
        return await self.in_order.send_forwarded(entity, queue, messages, seconds)

    def record_orderer(self, queue: EntityPath, address: str) -> None:
        self.in_order.record_orderer(queue, address)


@attrs.define(eq=False)
class Cluster:
    """Gateways that know each other."""

    harness: Harness
    network: Network
    connect_timeout: float = 2.0
    nodes: dict[Gateway, Node] = attrs.field(factory=dict)

    async def start(
        self, switch: Switch | None = None, *, knows=True, at: int | None = None, **options
    ) -> Gateway:
        """
        Start the next gateway, or (`at`) a process that takes over from one before. One that
        doesn't know the others forwards nothing.
        """
        address = ADDRESSES[len(self.nodes) if at is None else at]
        node = await self.network.start(
            address,
            peers=ADDRESSES,
            max_requests=MAX_REQUESTS,
            connect_timeout=self.connect_timeout,
        )
        options = {"order_lease": OrderLeaseMode.FORWARD, **options}
        peers = PairPeers(orderers=node.cluster.peers) if knows else PairPeers()
        started = await gateway(self.harness, switch, peers=peers, **options)
        self.nodes[started] = node
        if knows:
            node.orders = Orders(started.pair.in_order)
        return started

    async def kill(self, one: Gateway) -> None:
        one.kill()
        await self.nodes[one].kill()

    def silence(self, one: Gateway) -> Orders:
        """Let that gateway accept forwarded sends from now on, and not answer."""
        orders = self.nodes[one].orders
        assert isinstance(orders, Orders)
        orders.is_silent = True
        return orders

    async def before_a_frozen_orderer(self) -> tuple[Gateway, Orders]:
        """A gateway that raises unknown outcomes, and the orderer that it knows, which hangs."""
        switch = Switch()
        orderer, other = await self.start(switch), await self.start(on_unknown=OnUnknown.RAISE)
        await orderer.send("a")
        await other.send("known")
        silent = self.silence(orderer)
        switch.fault = Hang()
        return other, silent

    async def use_all_connections(self, to: Gateway, of: Gateway) -> None:
        """Let settlements, which hang, use all connections of one gateway to the other."""
        held, asking = self.nodes[to], self.nodes[of].leases
        locked = await held.leases.receive(ORDERS, MAX_REQUESTS)
        held.hindered.hangs = True

        async def settle(token: str) -> None:
            with suppress(HolderSilent):
                await asking.settle(ORDERS, token, Complete())

        for each in locked:
            self.harness.nursery.start_soon(settle, each.lock_token)
        await trio.sleep(0.1)

    @property
    def taken(self) -> int:
        """The number of times that a gateway became orderer."""
        return len(self.harness.events.of(OrderLeaseTaken))


@pytest.fixture
def ordered() -> bool:
    return True


@pytest.fixture
def cluster(harness: Harness) -> Cluster:
    return Cluster(harness, Network(harness.nursery, harness.primary.store))


def messages_of_queue(keys: int = 40) -> list[Message]:
    """Messages of so many keys, as far as these are of that queue."""
    keyed = (message(session_id=str(number)) for number in range(keys))
    of_queue = [each for each in keyed if key_of(ORDERS, each).number == KEY.number]
    return [attrs.evolve(each, message_id=f"c{n}") for n, each in enumerate(of_queue)]


async def send_noting(gateway: Gateway, verdicts: list[object], one_message: Message) -> None:
    """Send the message; add the place that accepted it, or the unknown outcome."""
    try:
        verdicts.append(await gateway.pair.broker.send_diverting(ORDERS, [one_message]))
    except OutcomeUnknown as error:
        verdicts.append(error.outcome)


def leases(*gateways: Gateway) -> list[int]:
    return [status_of(each.pair).leases for each in gateways]


async def test_a_send_at_another_gateway_is_forwarded_and_the_orderer_stays_one(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")

    with Timed() as took:
        accepted = [
            await each.send(name) for each, name in [(other, "b"), (one, "c"), (other, "d")]
        ]

    assert accepted == [PRIMARY] * 3
    assert took.seconds < SOON
    assert await harness.primary.ids() == ["a", "b", "c", "d"]
    assert (leases(one, other), cluster.taken) == ([1, 0], 1)


async def test_once_the_orderer_is_known_a_forwarded_send_costs_the_secondary_nothing(
    harness, cluster
):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("b")
    asked = asked_for_leases(harness)

    with Timed() as took:
        for number in range(20):
            await other.send(f"c{number}")

    assert took.seconds == 0
    assert asked_for_leases(harness) == asked


async def test_gateways_that_all_send_keep_the_order_of_each(harness, cluster):
    gateways = [await cluster.start() for _ in range(3)]

    async def send_some(one, number):
        for count in range(20):
            await one.send(f"{number}-{count}")

    with Timed() as took:
        async with trio.open_nursery() as nursery:
            for number, one in enumerate(gateways):
                nursery.start_soon(send_some, one, number)

    assert took.seconds < 2 * SOON
    ids = await harness.primary.ids()
    for number in range(3):
        assert [each for each in ids if each.startswith(f"{number}-")] == [
            f"{number}-{count}" for count in range(20)
        ]
    assert cluster.taken == 1


async def test_sends_that_come_at_once_are_forwarded_in_their_order(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("first")
    harness.primary.fail(Slow(0.5), Operation.SEND)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(other.send, f"{number:02}")
            await trio.sleep(0.05)

    assert await harness.primary.ids() == ["first", *(f"{number:02}" for number in range(30))]


async def test_the_client_learns_that_the_orderer_diverted_its_message(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)

    assert await other.send("b") is BACKLOG
    assert len(await harness.secondary.messages(QUEUE)) == 1
    assert leases(one, other) == [1, 0]


async def test_the_gateway_that_had_a_send_from_a_client_counts_it_and_the_orderer_doesnt(cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    for name in "bcd":
        await other.send(name)

    counted = [each.pair.broker.sends.all() for each in (one, other)]
    assert [sum(row.messages for row in rows) for rows in counted] == [1, 3]


async def test_the_status_says_how_sends_that_were_forwarded_ended(harness, cluster):
    one, other = await cluster.start(), await cluster.start(send_timeout=8.0)
    await one.send("a")
    assert status_of(other.pair).forwarded == dict.fromkeys(RESULTS, 0)
    await other.send("b")
    harness.primary.fail(Refuse(lambda: QuotaExceeded("full")), Operation.SEND, times=1)
    with pytest.raises(QuotaExceeded):
        await other.send("c")
    cluster.silence(one)
    with pytest.raises(OutcomeUnknown):
        await other.send("d")

    status = status_of(other.pair)
    assert status.forwarded == {
        **dict.fromkeys(RESULTS, 0),
        "accepted": 1,
        "refused": 1,
        "no-answer": 1,
    }
    assert status_of(one.pair).missed == 0


@pytest.mark.parametrize("error", [QuotaExceeded, NotSupported, MessageTooLarge])
async def test_the_orderers_error_is_the_clients(harness, cluster, error):
    """The error says nothing of the way to the orderer, which remains the orderer."""
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    harness.primary.fail(Refuse(lambda: error("refused by the namespace")), Operation.SEND)

    with pytest.raises(error, match="refused by the namespace"):
        await other.send("b")

    assert status_of(other.pair).forwarded["refused"] == 1
    assert (leases(one, other), cluster.taken) == ([1, 0], 1)


async def test_an_idle_orderer_whose_sends_all_come_from_others_stays_one(cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    for number in range(10):
        await trio.sleep(lease.IDLE / 2)
        await other.send(f"b{number}")

    assert (leases(one, other), cluster.taken) == ([1, 0], 1)


async def test_after_an_orderer_that_ended_the_other_one_sends_itself(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("b")
    one.stop()
    await trio.sleep(0.1)

    with Timed() as took:
        assert await other.send("c") is PRIMARY

    assert took.seconds < 2 * SOON
    assert await harness.primary.ids() == ["a", "b", "c"]


async def test_an_orderer_that_ends_finishes_what_was_forwarded_and_lets_go(harness, cluster):
    one, other = await cluster.start(), await cluster.start(on_unknown=OnUnknown.RAISE)
    await one.send("a")
    await other.send("b")
    harness.primary.fail(Slow(3.0), Operation.SEND, times=1)

    async def end():
        await trio.sleep(0.1)
        await one.pair.leave()
        one.stop()
        cluster.nodes[one].stop()

    harness.nursery.start_soon(end)
    with Timed() as took:
        assert await other.send("c") is PRIMARY
    assert took.seconds == pytest.approx(3.0)

    with Timed() as took:
        assert await other.send("d") is PRIMARY
    assert took.seconds < 2 * SOON
    assert await harness.primary.ids() == ["a", "b", "c", "d"]


async def test_an_orderer_that_ends_has_sent_nothing_that_waits_for_its_turn(harness, cluster):
    one, *others = [await cluster.start(on_unknown=OnUnknown.RAISE) for _ in ADDRESSES]
    await one.send("a")
    for each in others:
        await each.send("known")
    harness.primary.fail(Slow(3.0), Operation.SEND, times=1)
    accepted: list[AcceptedBy] = []

    async def send(each: Gateway, name: str) -> None:
        accepted.append(await each.send(name))

    async with trio.open_nursery() as nursery:
        for each, name in zip(others, "bcde", strict=True):
            nursery.start_soon(send, each, name)
            await trio.sleep(0.1)
        await one.pair.leave()
        one.stop()
        cluster.nodes[one].stop()

    assert accepted == [PRIMARY] * len(others)


async def test_a_forwarded_send_that_goes_along_as_the_orderer_ends_has_its_verdict(
    harness, cluster
):
    one, *others = [await cluster.start(on_unknown=OnUnknown.RAISE) for _ in range(3)]
    await one.send("a")
    for each in others:
        await each.send("known")
    harness.primary.fail(Slow(1.0), Operation.SEND, times=2)
    sent = harness.primary.sends()
    async with trio.open_nursery() as nursery:
        for each, name in zip((one, *others), "bcd", strict=True):
            nursery.start_soon(each.send, name)
            await trio.sleep(0.01)
        await trio.sleep(1.0)
        await one.pair.leave()

    assert harness.primary.sends() - sent == len(["b", "cd"])


async def test_no_two_gateways_wait_for_each_others_turn(harness, cluster):
    """
    The lease goes to the other gateway while its send waits at the former orderer, behind one
    which that one then forwards.
    """
    one, other = await cluster.start(), await cluster.start(on_unknown=OnUnknown.RAISE)
    await one.send("a")
    await other.send("b")
    harness.primary.fail(Slow(3.0), Operation.SEND, times=1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, "c")
        await trio.sleep(0.3)
        nursery.start_soon(one.send, "d")
        await trio.sleep(0.1)
        nursery.start_soon(other.send, "e")
        await trio.sleep(0.1)
        [keyed, *_] = messages_of_queue()
        large = attrs.evolve(keyed, body=bytes(LARGEST - 50))
        nursery.start_soon(other.pair.broker.send_diverting, ORDERS, [large])

    assert leases(one, other) == [0, 1]
    assert sorted(await harness.primary.ids()) == sorted(["a", "b", "c", "d", "e", "c0"])


async def test_after_an_orderer_that_was_killed_the_other_one_waits_for_the_lease(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("b")
    await cluster.kill(one)

    with Timed() as took:
        assert await other.send("c") is PRIMARY

    assert lease.LEASE < took.seconds < LOCK + lease.LEASE + SOON
    assert await harness.primary.ids() == ["a", "b", "c"]


async def test_an_orderer_that_dies_with_a_forwarded_send_leaves_it_unknown_or_sent(
    harness, cluster
):
    one, other = await cluster.start(), await cluster.start(on_unknown=OnUnknown.RAISE)
    await one.send("a")
    cluster.silence(one)

    async def kill():
        await trio.sleep(0.5)
        await cluster.kill(one)

    harness.nursery.start_soon(kill)
    with Timed() as took, pytest.raises(OutcomeUnknown):
        await other.send("b")

    assert took.seconds == pytest.approx(0.5, abs=0.1)


async def test_an_orderer_that_stands_still_is_replaced_within_the_sends_time(harness, cluster):
    switch = Switch()
    one, other = await cluster.start(switch), await cluster.start()
    await one.send("a")
    await other.send("known")
    silent = cluster.silence(one)
    switch.fault = Hang()

    with Timed() as took:
        assert await other.send("b") is PRIMARY

    assert silent.asked == 1
    assert lease.LEASE < took.seconds < LOCK + lease.LEASE + SOON
    assert leases(one, other) == [0, 1]


async def test_an_orderer_that_was_replaced_and_is_one_again_is_forwarded_to(harness, cluster):
    switch = Switch()
    one, other = await cluster.start(switch), await cluster.start()
    await one.send("a")
    await other.send("known")
    silent = cluster.silence(one)
    switch.fault = Hang()
    await other.send("b")
    switch.fault, silent.is_silent = None, False
    await trio.sleep(lease.IDLE + SOON)
    assert leases(one, other) == [0, 0]
    await one.send("c")
    taken = cluster.taken

    await other.send("d")
    assert (leases(one, other), cluster.taken) == ([1, 0], taken)


async def test_sends_that_never_left_for_a_frozen_orderer_arent_unknown(harness, cluster):
    """At most two are forwarded at once; the others wait for their turn, and are sent here."""
    other, silent = await cluster.before_a_frozen_orderer()
    verdicts: list[object] = []
    send = partial(send_noting, other, verdicts)

    of_queue = messages_of_queue()
    async with trio.open_nursery() as nursery:
        for each in of_queue:
            nursery.start_soon(send, each)

    assert silent.asked == verdicts.count(Outcome.UNKNOWN) == 2
    assert verdicts.count(PRIMARY) == len(of_queue) - 2 > 2


async def test_a_frozen_orderer_that_answers_no_settlement_either_is_replaced(harness, cluster):
    """
    The settlements use all connections to the orderer, so that no send is forwarded; none is
    refused as busy.
    """
    switch = Switch()
    one, other = await cluster.start(switch), await cluster.start()
    for name in "abcd":
        await one.send(name)
    await other.send("known")
    switch.fault = Hang()
    cluster.silence(one)
    await cluster.use_all_connections(one, other)

    assert await other.send("e") is PRIMARY
    assert leases(one, other) == [0, 1]


async def test_a_message_that_waits_to_be_forwarded_lives_no_longer_for_it(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("known")
    harness.primary.fail(Slow(5.0), Operation.SEND, times=2)
    of_queue = messages_of_queue()
    for each in of_queue[:2]:
        harness.nursery.start_soon(other.pair.broker.send_diverting, ORDERS, [each])
    await trio.sleep(0.1)

    mortal = attrs.evolve(of_queue[2], time_to_live=timedelta(seconds=60))
    await other.pair.broker.send_diverting(ORDERS, [mortal])

    [arrived] = [each for each in await harness.primary.messages() if each.time_to_live]
    assert arrived.time_to_live < timedelta(seconds=56)


async def test_a_send_without_an_answer_is_unknown_even_if_nothing_else_accepts_it(
    harness, cluster
):
    one, other = await cluster.start(), await cluster.start(send_timeout=8.0)
    await one.send("a")
    cluster.silence(one)

    with pytest.raises(OutcomeUnknown) as caught:
        await other.send("b")

    assert caught.value.outcome is Outcome.UNKNOWN


async def test_an_orderer_that_is_slow_keeps_its_lease(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    harness.primary.fail(Slow(2 * forward.PATIENCE), Operation.SEND, times=1)

    assert await other.send("b") is PRIMARY
    assert await harness.primary.ids() == ["a", "b"]
    assert (leases(one, other), cluster.taken) == ([1, 0], 1)


async def test_an_orderer_that_cant_be_reached_is_asked_to_let_go(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("b")
    await cluster.nodes[one].kill()  # the cluster's port alone

    with Timed() as took:
        assert await other.send("c") is PRIMARY

    assert took.seconds < lease.TENURE + 2 * SOON
    assert await harness.primary.ids() == ["a", "b", "c"]
    assert leases(one, other) == [0, 1]


async def test_an_orderer_that_cant_reach_the_other_one_lets_go(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    cluster.nodes[other].is_up = False

    with Timed() as took:
        assert await other.send("b") is PRIMARY

    assert took.seconds < lease.TENURE + 2 * SOON
    assert leases(one, other) == [0, 1]


@pytest.mark.parametrize("forwards_first", [True, False])
async def test_beside_a_gateway_that_waits_the_lease_goes_to_and_fro(
    harness, cluster, forwards_first
):
    """As while the option is changed in one gateway after the other."""
    gateways = [await cluster.start(knows=knows) for knows in (forwards_first, not forwards_first)]
    for name in "abcd":
        await gateways[name in "bd"].send(name)

    assert await harness.primary.ids() == ["a", "b", "c", "d"]
    assert cluster.taken > 1


async def test_a_message_that_is_too_large_for_the_channel_is_sent_here(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    large = Message(message_id="b", body=bytes(LARGEST - 50))

    assert await other.pair.broker.send_diverting(ORDERS, [large]) is PRIMARY
    assert await harness.primary.ids() == ["a", "b"]
    assert leases(one, other) == [0, 1]
    assert await one.send("c") is PRIMARY
    assert leases(one, other) == [0, 1]


async def test_a_gateway_that_isnt_the_orderer_neither_sends_nor_forwards_what_was_forwarded(
    harness, cluster
):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("b")

    with Timed() as took, pytest.raises(NotOrderer) as caught:
        await other.pair.in_order.send_forwarded(ORDERS, QUEUE, [message("c")], 30.0)

    assert (took.seconds, caught.value.outcome) == (0, Outcome.NOT_SENT)
    assert await harness.primary.ids() == ["a", "b"]


async def test_a_forwarded_send_whose_turn_comes_after_the_end_of_the_lease_isnt_sent(
    harness, cluster
):
    switch = Switch()
    one = await cluster.start(switch, attempt_timeout=60.0, send_timeout=240.0)
    await one.send("a")
    harness.primary.fail(Slow(2 * lease.VALID), Operation.SEND, times=1)
    switch.fault = Hang()
    harness.nursery.start_soon(one.send, "b")
    await trio.sleep(0.1)

    with pytest.raises(NotOrderer):
        await one.pair.in_order.send_forwarded(ORDERS, QUEUE, [message("c")], 200.0)

    assert await harness.primary.ids() == ["a", "b"]


@pytest.mark.parametrize(
    ("entity", "queue"),
    [
        (EntityPath("Bills"), QUEUE),
        (ORDERS, ordered_queue("west", KEY.number)),
        (ORDERS, ordered_queue(LABEL, (KEY.number + 1) % 4)),
    ],
)
async def test_nothing_is_sent_for_peers_but_messages_of_that_queues_keys(cluster, entity, queue):
    one = await cluster.start()
    await one.send("a")

    with pytest.raises(NotOrderer):
        await one.pair.in_order.send_forwarded(entity, queue, [message("b")], 30.0)


async def test_a_forwarded_send_doesnt_go_along_with_one_that_may_be_forwarded(harness, cluster):
    """Else the orderer, once it isn't one any more, would forward it again."""
    one, other = await cluster.start(), await cluster.start(send_timeout=240.0)
    await one.send("a")
    await other.send("b")
    harness.primary.fail(Slow(1.0), Operation.SEND, times=1)
    sent = harness.primary.sends()

    async with trio.open_nursery() as nursery:
        for each, name in ((one, "c"), (one, "d"), (one, "e"), (other, "f"), (other, "g")):
            nursery.start_soon(each.send, name)
            await trio.sleep(0.01)

    assert await harness.primary.ids() == ["a", "b", "c", "d", "e", "f", "g"]
    assert harness.primary.sends() - sent == len(["c", "de", "f", "g"])


async def test_a_send_that_finds_no_room_at_the_orderer_doesnt_keep_the_others_waiting(
    harness, cluster
):
    """Each of two gateways may wait for room that the other one's forwarded sends take."""
    one, other = await cluster.start(max_inflight=100), await cluster.start()
    await one.send("a")
    await other.send("b")
    harness.primary.fail(Slow(20.0), Operation.SEND, times=1)
    harness.nursery.start_soon(one.send, "c")
    await trio.sleep(0.1)

    with Timed() as took, pytest.raises(Busy):
        await other.send("d")

    assert took.seconds <= SOON


async def test_an_address_in_the_lease_queue_that_is_no_peers_is_not_connected_to(harness, cluster):
    one = await cluster.start()
    await one.send("a")
    elsewhere = await cluster.network.start("elsewhere.test:1", peers=ADDRESSES)
    request = Message(
        body=b"somebody", session_id=NAME, properties={lease.ADDRESS: "elsewhere.test:1"}
    )
    await harness.secondary.store.send(LEASES, [request])
    await trio.sleep(lease.TENURE + SOON)

    assert elsewhere.connections == []
    assert leases(one) == [0], "it lets go, as if asked to"


async def test_a_send_that_gets_neither_lease_nor_orderer_in_its_time_isnt_sent(harness, cluster):
    one = await cluster.start(send_timeout=20.0)
    sessions = required(harness.secondary.store, Sessions)
    async with sessions.open_session(LEASES, NAME) as holder:
        harness.nursery.start_soon(keep_locked, holder)
        with pytest.raises(Unavailable, match="another gateway has it") as caught:
            await one.send("a")

    assert caught.value.outcome is Outcome.NOT_SENT
    assert await harness.primary.ids() == []
    assert status_of(one.pair).missed == 1


async def test_forwarded_sends_leave_connections_for_settlements(harness, cluster):
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("b")
    silent = cluster.silence(one)
    for number in range(30):
        keyed = message(f"c{number}", session_id=str(number))
        harness.nursery.start_soon(other.pair.broker.send_diverting, ORDERS, [keyed])
    await trio.sleep(0.5)

    assert silent.asked <= 2
    await cluster.nodes[other].cluster.peers.notify_orderer(ADDRESSES[0], QUEUE)


async def test_after_a_take_over_the_new_process_learns_at_once_who_the_orderer_is(
    harness, cluster
):
    """The orderer still has a connection to the old process, which drains."""
    one, other = await cluster.start(), await cluster.start()
    await one.send("a")
    await other.send("b")
    await trio.sleep(lease.TENURE)
    new = await cluster.start(at=1)

    with Timed() as took:
        assert await new.send("c") is PRIMARY
        assert await other.send("d") is PRIMARY

    assert took.seconds < SOON
    assert (leases(one, other, new), cluster.taken) == ([1, 0, 0], 1)


async def test_sends_that_wait_as_this_gateway_takes_the_lease_arent_forwarded(harness, cluster):
    """A send has room at the frozen orderer once the sends before it have given up."""
    other, silent = await cluster.before_a_frozen_orderer()
    verdicts: list[object] = []
    send = partial(send_noting, other, verdicts)

    first, second, *later = messages_of_queue(200)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, first)
        nursery.start_soon(send, second)
        for each in later:
            await trio.sleep(forward.PATIENCE / 2)
            nursery.start_soon(send, each)

    assert silent.asked == verdicts.count(Outcome.UNKNOWN) == 2
    assert verdicts.count(PRIMARY) == len(later) > 2


async def test_a_send_that_finds_no_connection_to_the_orderer_in_its_time_isnt_unknown(
    harness, cluster
):
    one, other = await cluster.start(), await cluster.start(send_timeout=2.0)
    await one.send("a")
    cluster.nodes[one].hangs = True

    with Timed() as took, pytest.raises(Unavailable) as caught:
        await other.send("b")

    assert (took.seconds, caught.value.outcome) == (pytest.approx(1.5), Outcome.NOT_SENT)
    assert await harness.primary.ids() == ["a"]


async def orderer_no_more(cluster: Cluster, one: Gateway) -> Orders:
    """
    Let that gateway answer that it isn't the orderer. Its peers connect to it again, as to a new
    process, which hangs.
    """
    orders = cluster.nodes[one].orders
    assert isinstance(orders, Orders)
    orders.is_orderer = False
    await trio.sleep(AFTER_TAKE_OVER)
    cluster.nodes[one].hangs = True
    return orders


async def test_a_send_that_one_process_refused_and_no_other_got_isnt_unknown(harness, cluster):
    one, other = await cluster.start(), await cluster.start(send_timeout=2.0)
    await one.send("a")
    await other.send("known")
    orders = await orderer_no_more(cluster, one)

    with pytest.raises(Unavailable) as caught:
        await other.send("b")

    assert (caught.value.outcome, orders.refused) == (Outcome.NOT_SENT, 1)


async def test_a_refused_send_isnt_unknown_as_this_gateway_takes_the_lease(harness, cluster):
    """The refused send waits for a connection to another process of that peer."""
    cluster.connect_timeout = 2 * forward.PATIENCE
    one, other = await cluster.start(), await cluster.start(on_unknown=OnUnknown.RAISE)
    await one.send("a")
    await other.send("known")
    orders = await orderer_no_more(cluster, one)
    one.stop()

    with Timed() as took:
        assert await other.send("b") is PRIMARY

    assert took.seconds < cluster.connect_timeout
    assert orders.refused == 1


async def test_a_send_waits_for_a_connection_to_the_orderer_no_longer_than_it_may(harness, cluster):
    one, other = await cluster.start(), await cluster.start(send_timeout=1.0)
    for name in "abcd":
        await one.send(name)
    await other.send("known")
    await cluster.use_all_connections(one, other)

    with Timed() as took, pytest.raises(Unavailable):
        await other.send("e")

    assert took.seconds <= 1.0
