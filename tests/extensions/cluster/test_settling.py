"""A delivery that one gateway holds is settled at another one."""

import random
from datetime import timedelta

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    HolderSilent,
    LockLost,
    MessageNotFound,
    Outcome,
    OutcomeUnknown,
)
from gateway.domain.message import Abandon, Complete, DeadLetter
from gateway.extensions.cluster.events import PeerFound, PeerLost, PeerRefused
from gateway.extensions.cluster.peer import AFTER_TAKE_OVER, IDLE_SECONDS
from gateway.extensions.cluster.tokens import HolderTokens, tag_of
from gateway.frontends.leases import Leases
from tests.extensions.cluster.gateways import (
    ADDRESSES,
    ORDERS,
    OTHERS,
    SECRET,
    Network,
    Node,
    open_network,
)
from tests.frontends.rest_client import wall_clock

ONE, TWO, THREE = ADDRESSES


@pytest.fixture
async def network():
    async with open_network() as network:
        yield network


async def pair_of(network: Network) -> tuple[Node, Node]:
    return await network.start(ONE), await network.start(TWO)


async def left(network: Network, entity: EntityPath = ORDERS) -> int:
    info = await network.broker.inspect(entity)
    return info.active or 0


async def test_a_delivery_is_completed_at_another_gateway(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery = await one.received()

    await two.leases.settle(ORDERS, delivery.lock_token, Complete())

    assert await left(network) == 2
    with pytest.raises(LockLost):  # the holder knows it
        await one.leases.settle(ORDERS, delivery.lock_token, Complete())


async def test_no_two_leases_have_the_same_token(
    network: Network, autojump_clock: MockClock
) -> None:
    """Else the client of the first one would settle the second one's message."""
    twice = iter(["a", "a", "a", "b"])
    leases = Leases(network.broker, wall_clock, new_token=twice.__next__)
    await network.nursery.start(leases.run)

    first, second = await leases.receive(ORDERS, 2)

    assert (first.lock_token, second.lock_token) == ("a", "b")


async def test_so_is_one_that_is_dead_lettered_with_its_reason(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery = await one.received()

    wish = DeadLetter(reason="Odd", description="It is odd.", properties={"tries": 3})
    await two.leases.settle(ORDERS, delivery.lock_token, wish)

    dead = await two.received(EntityPath("orders/$deadletterqueue"))
    assert dead.message.properties["DeadLetterReason"] == "Odd"
    assert dead.message.properties["tries"] == 3


async def test_a_lock_is_renewed_at_another_gateway(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery = await one.received()
    await trio.sleep(40)

    renewed = await two.leases.renew(ORDERS, delivery.lock_token)
    assert renewed.locked_until > delivery.locked_until
    await trio.sleep(40)

    await two.leases.settle(ORDERS, delivery.lock_token, Complete())
    assert await left(network) == 2


async def test_many_are_settled_together_wherever_they_are_held(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    held = [await node.received() for node in (one, two, one)]
    of_nothing = two.cluster.tokens.new_token()

    asked = [(each.lock_token, Complete()) for each in held]
    verdicts = await two.leases.settle_many(ORDERS, [*asked, (of_nothing, Complete())])

    assert verdicts[:3] == [None, None, None]
    assert isinstance(verdicts[3], LockLost)
    assert await left(network) == 0


async def test_a_hidden_message_is_changed_and_removed_at_another_gateway(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    taken = await one.taken()

    changed = await two.visibility.change(ORDERS, taken.receipt, timedelta(seconds=90))
    assert changed.receipt.holder == taken.receipt.holder == tag_of(ONE)
    with pytest.raises(LockLost):  # the receipt was replaced
        await two.visibility.remove(ORDERS, taken.receipt)
    await trio.sleep(60)
    await two.visibility.remove(ORDERS, changed.receipt)

    assert await left(network) == 2
    with pytest.raises(MessageNotFound):
        await two.visibility.remove(ORDERS, changed.receipt)


async def test_a_message_is_shown_at_once_through_another_gateway(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    taken = await one.taken()

    shown = await two.visibility.change(ORDERS, taken.receipt, timedelta(0))

    assert shown.receipt is None
    again = await two.taken()
    assert again.delivery.message.body == taken.delivery.message.body


async def test_a_settlement_reaches_no_entity_but_its_own(
    network: Network, autojump_clock: MockClock
) -> None:
    """A client that may receive from `others` has the token of a message of `orders`."""
    one, two = await pair_of(network)
    delivery, taken = await one.received(), await one.taken()

    with pytest.raises(LockLost):
        await two.leases.settle(OTHERS, delivery.lock_token, Complete())
    with pytest.raises(MessageNotFound):
        await two.visibility.remove(OTHERS, taken.receipt)

    await two.leases.settle(ORDERS, delivery.lock_token, Complete())
    await two.visibility.remove(ORDERS, taken.receipt)


@pytest.mark.parametrize("made_by", ["a changed token", "another cluster", "somebody"])
async def test_a_forged_token_is_unknown_and_nobody_is_asked(
    network: Network, made_by: str, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    token = (await one.received()).lock_token
    if made_by == "a changed token":
        token = token[:-1] + ("0" if token[-1] != "0" else "1")
    elif made_by == "another cluster":
        of_others = HolderTokens(tag_of(ONE), ("o" * 32,), random.Random(9))
        token = of_others.new_token()
    else:
        token = "0f9c5b1e-8f1d-4a57-9f53-2a0c3c4f7a10"

    with pytest.raises(LockLost, match="unknown or has expired"):
        await two.leases.settle(ORDERS, token, Complete())
    assert one.connections == []


async def test_a_gateway_that_is_gone_has_lost_its_locks_at_once(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    first, second, taken = await one.received(), await one.received(), await one.taken()
    await two.leases.settle(ORDERS, first.lock_token, Complete())
    await one.kill()
    await wait_all_tasks_blocked()
    began = trio.current_time()

    with pytest.raises(LockLost, match="can't be asked"):
        await two.leases.settle(ORDERS, second.lock_token, Complete())
    with pytest.raises(LockLost):
        await two.leases.renew(ORDERS, second.lock_token)
    with pytest.raises(LockLost):
        await two.visibility.remove(ORDERS, taken.receipt)

    assert trio.current_time() == began
    lost = [event for event in two.events if isinstance(event, PeerLost)]
    assert [event.peer for event in lost] == [ONE], "the loss is reported once"


async def test_so_has_one_that_has_restarted(network: Network, autojump_clock: MockClock) -> None:
    one, two = await pair_of(network)
    delivery, taken = await one.received(), await one.taken()
    await one.kill()
    again = await network.start(ONE)

    with pytest.raises(LockLost):
        await two.leases.settle(ORDERS, delivery.lock_token, Complete())
    with pytest.raises(MessageNotFound):
        await two.visibility.remove(ORDERS, taken.receipt)
    another = await again.received()
    await two.leases.settle(ORDERS, another.lock_token, Complete())


async def test_a_machine_that_doesnt_answer_costs_one_timeout_a_second(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery = await one.received()
    one.hangs = True
    began = trio.current_time()

    for _ in range(20):
        with pytest.raises(LockLost):
            await two.leases.settle(ORDERS, delivery.lock_token, Complete())

    assert trio.current_time() - began == two.cluster.options.connect_timeout
    one.hangs = False
    await trio.sleep(1)
    await two.leases.settle(ORDERS, delivery.lock_token, Complete())
    assert [type(event) for event in two.events] == [PeerLost, PeerFound]


async def test_a_machine_that_has_lost_its_power_leaves_one_outcome_unknown(
    network: Network, autojump_clock: MockClock
) -> None:
    """The idle connections of the machine look as if it were there."""
    one, two = await pair_of(network)
    held = [(await one.received()).lock_token for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for token in held:
            nursery.start_soon(two.leases.renew, ORDERS, token)
    assert len(one.connections) == 3
    one.hindered.hangs = one.hangs = True

    with pytest.raises(HolderSilent):
        await two.leases.settle(ORDERS, held[0], Complete())
    began = trio.current_time()
    for token in held[1:]:
        with pytest.raises(LockLost, match="didn't connect"):
            await two.leases.settle(ORDERS, token, Complete())

    assert trio.current_time() - began == two.cluster.options.connect_timeout


async def test_a_gateway_that_left_the_cluster_has_lost_its_locks(
    network: Network, autojump_clock: MockClock
) -> None:
    one = await network.start(ONE)
    two = await network.start(TWO, peers=(THREE,))
    delivery = await one.received()

    with pytest.raises(LockLost, match="isn't in this cluster"):
        await two.leases.settle(ORDERS, delivery.lock_token, Complete())
    assert one.connections == []


async def test_a_gateway_that_dies_before_it_answers_leaves_the_outcome_unknown(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery, taken = await one.received(), await one.taken()
    for ask in (
        lambda: two.leases.settle(ORDERS, delivery.lock_token, Complete()),
        lambda: two.visibility.remove(ORDERS, taken.receipt),
    ):
        one.hindered.hangs, one.hindered.asked = True, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_when_asked, one)
            with pytest.raises(HolderSilent) as caught:
                await ask()
        assert caught.value.outcome is Outcome.UNKNOWN
        one.is_up = True


async def kill_when_asked(node: Node) -> None:
    await node.hindered.asked.wait()
    await node.kill()


async def test_one_that_never_answers_leaves_it_unknown_after_the_timeout(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery = await one.received()
    one.hindered.hangs = True
    began = trio.current_time()

    with pytest.raises(HolderSilent):
        await two.leases.settle(ORDERS, delivery.lock_token, Complete())

    assert trio.current_time() - began == two.cluster.options.timeout


async def test_an_error_of_the_namespace_arrives_as_it_was(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery = await one.received()
    one.hindered.error = EntityDisabled("the queue is disabled")
    with pytest.raises(EntityDisabled, match="the queue is disabled"):
        await two.leases.settle(ORDERS, delivery.lock_token, Complete())

    one.hindered.error = OutcomeUnknown("the namespace didn't answer")
    with pytest.raises(HolderSilent, match="the namespace didn't answer"):
        await two.leases.settle(ORDERS, delivery.lock_token, Complete())


async def test_connections_are_used_again_and_bounded(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await network.start(ONE), await network.start(TWO, max_requests=2)
    held = [await one.received() for _ in range(3)]

    async with trio.open_nursery() as nursery:
        for each in held:
            nursery.start_soon(two.leases.settle, ORDERS, each.lock_token, Complete())

    assert await left(network) == 0
    assert len(one.connections) == 2


async def test_a_request_that_is_cancelled_ends_its_connection(
    network: Network, autojump_clock: MockClock
) -> None:
    """The late answer to the request would be taken for that of the next one."""
    one, two = await pair_of(network)
    first, second = await one.received(), await one.received()
    one.hindered.hangs = True
    with trio.move_on_after(1):
        await two.leases.settle(ORDERS, first.lock_token, Complete())
    one.hindered.hangs = False

    await two.leases.settle(ORDERS, second.lock_token, Abandon())

    assert len(one.connections) == 2


async def test_a_connection_that_nobody_needs_is_closed(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    delivery = await one.received()
    await two.leases.settle(ORDERS, delivery.lock_token, Complete())
    (stream,) = one.connections

    await trio.sleep(2 * IDLE_SECONDS + 1)

    with pytest.raises(trio.ClosedResourceError):  # by the server, as its client has left
        await stream.send_all(b"x")


@pytest.mark.parametrize("in_use", [False, True], ids=["idle", "in use"])
async def test_a_connection_to_a_gateway_that_left_the_cluster_is_closed_after_its_request(
    network: Network, in_use: bool, autojump_clock: MockClock
) -> None:
    network.found = [ONE, TWO]
    one = await network.start(ONE)
    two = await network.start(TWO, peers=(), service="gateways.test:5680", refresh=0.5)
    delivery = await one.received()
    await trio.sleep(IDLE_SECONDS - 1.25)
    one.hindered.hangs = in_use
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.leases.settle, ORDERS, delivery.lock_token, Complete())
        await one.hindered.asked.wait()
        network.found = [TWO]
        await trio.sleep(2)
        one.hindered.resumed.set()

    await trio.sleep(0.25)

    assert await left(network) == 2, "the request was answered"
    assert [await is_closed(each) for each in one.connections] == [True]


async def is_closed(stream: trio.abc.Stream) -> bool:
    """True if the server has closed the stream, as it does once its client has left."""
    try:
        await stream.send_all(b"x")
    except trio.ClosedResourceError:
        return True
    return False


async def test_after_a_take_over_the_new_process_is_asked_for_what_it_holds(
    network: Network, autojump_clock: MockClock
) -> None:
    """The connections that were there before it reach the old process as long as it drains."""
    one, two = await pair_of(network)
    before = await one.received()
    await two.leases.renew(ORDERS, before.lock_token)
    await trio.sleep(AFTER_TAKE_OVER)
    new = await network.start(ONE)
    first, taken = await new.received(), await new.taken()

    await two.visibility.remove(ORDERS, taken.receipt)
    await two.leases.settle(ORDERS, first.lock_token, Complete())

    assert await left(network) == 1
    assert (len(one.connections), len(new.connections)) == (1, 1)


async def test_a_delivery_that_the_old_process_holds_is_settled_there_too(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await pair_of(network)
    held = await one.received(), await one.received()
    await two.leases.renew(ORDERS, held[0].lock_token)
    await trio.sleep(AFTER_TAKE_OVER)
    new = await network.start(ONE)
    of_new = await new.received()
    await two.leases.settle(ORDERS, of_new.lock_token, Complete())

    for each in held:
        await two.leases.settle(ORDERS, each.lock_token, Complete())

    assert await left(network) == 0


async def test_locks_that_are_lost_cost_one_connection_a_second(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await network.start(ONE), await network.start(TWO, max_requests=2)
    lost = one.cluster.tokens.new_token()
    for _ in range(10):
        for _ in range(20):
            with pytest.raises(LockLost):
                await two.leases.settle(ORDERS, lost, Complete())
        await trio.sleep(AFTER_TAKE_OVER)
    await wait_all_tasks_blocked()

    assert len(one.connections) == 10
    assert [await is_closed(each) for each in one.connections] == [True] * 8 + [False] * 2


async def test_gateways_with_other_secrets_refuse_each_other(
    network: Network, autojump_clock: MockClock
) -> None:
    one, two = await network.start(ONE, "o" * 32), await network.start(TWO, SECRET)
    token = HolderTokens(tag_of(ONE), (SECRET,), random.Random(9)).new_token()

    with pytest.raises(LockLost, match="compare the secrets"):
        await two.leases.settle(ORDERS, token, Complete())
    await wait_all_tasks_blocked()
    assert any(isinstance(event, PeerRefused) for event in one.events)


async def test_a_secret_is_changed_without_losing_a_lock(
    network: Network, autojump_clock: MockClock
) -> None:
    new = "n" * 32
    one, two = await network.start(ONE, SECRET, new), await network.start(TWO, new, SECRET)
    held = await one.received(), await two.received()

    await two.leases.settle(ORDERS, held[0].lock_token, Complete())
    await one.leases.settle(ORDERS, held[1].lock_token, Complete())

    assert await left(network) == 1


async def test_a_peer_may_settle_only_what_is_held_here(
    network: Network, autojump_clock: MockClock
) -> None:
    """A peer that forwards a third one's token isn't forwarded further."""
    one, two = await pair_of(network)
    three = await network.start(THREE)
    delivery = await three.received()

    with pytest.raises(BrokerError):
        await one.own.settle(ORDERS, delivery.lock_token, Complete())
    assert three.connections == []
    await two.leases.settle(ORDERS, delivery.lock_token, Complete())
