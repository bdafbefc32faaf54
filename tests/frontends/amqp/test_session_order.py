"""In a session later messages never overtake those that a client gives back."""

import pytest
import trio
import trio.testing

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.store.local.sessions import LocalSessionReceiver
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from tests.frontends.amqp.sessions import SQ, holds
from tests.harness.faults import FaultyReceiver

MANY = 60
RETURNS = [amqp.RELEASED, amqp.Modified(delivery_failed=True)]


@pytest.fixture
async def link(house, sdk):
    """A link that holds a session with many messages."""
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True))
    messages = [Message(message_id=f"{number}", session_id="a") for number in range(MANY)]
    await house.broker.send(SQ, messages)
    link, _ = await holds(sdk, "a")
    return link


def late(settle):
    async def settle_late(*asked):
        await trio.sleep(1)
        return await settle(*asked)

    return settle_late


@pytest.fixture
def slow(monkeypatch):
    """A namespace that takes a second for each settlement."""
    for name in ("settle", "settle_many"):
        monkeypatch.setattr(LocalSessionReceiver, name, late(getattr(LocalSessionReceiver, name)))


async def received(sdk, link, count):
    return [await sdk.delivery(link) for _ in range(count)]


def ids(transfers):
    return [int(decode_delivery(each.payload).message.message_id) for each in transfers]


def arrived(sdk):
    """Take the transfers that have come meanwhile."""
    transfers = [event for event in sdk.told if isinstance(event, amqp.TransferReceived)]
    for each in transfers:
        sdk.told.remove(each)
    return transfers


@pytest.mark.parametrize("state", RETURNS, ids=lambda state: type(state).__name__)
@pytest.mark.parametrize("itself", [True, False], ids=["settles itself", "waits"])
async def test_new_credit_behind_a_release_brings_the_released_first(
    sdk, link, state, itself, autojump_clock
):
    sdk.engine.grant(link, 3)
    first = await received(sdk, link, 3)
    for each in reversed(first):
        (sdk.engine.settle if itself else sdk.engine.update)(each.delivery, state)
    sdk.engine.grant(link, MANY)

    assert ids(await received(sdk, link, MANY)) == list(range(MANY))


async def test_a_message_that_a_client_releases_while_it_drains_comes_first(
    sdk, link, autojump_clock
):
    """As .NET's SDK receives: it takes one, drains, and releases what comes meanwhile."""
    sdk.engine.grant(link, MANY)
    [kept] = await received(sdk, link, 1)
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)
    released = arrived(sdk)
    for each in released:
        sdk.engine.settle(each.delivery, amqp.RELEASED)
    sdk.engine.grant(link, MANY - 1)

    again = ids(await received(sdk, link, MANY - 1))
    assert [*ids([kept]), *again] == list(range(MANY))


@pytest.mark.parametrize("state", RETURNS, ids=lambda state: type(state).__name__)
async def test_a_message_that_goes_back_slowly_is_not_overtaken(
    sdk, link, state, slow, autojump_clock
):
    sdk.engine.grant(link, 1)
    [first] = await received(sdk, link, 1)
    sdk.engine.update(first.delivery, state)
    await trio.sleep(0.5)
    sdk.engine.grant(link, MANY)

    assert ids(await received(sdk, link, MANY)) == list(range(MANY))


@pytest.mark.parametrize("state", RETURNS, ids=lambda state: type(state).__name__)
async def test_a_message_that_comes_meanwhile_does_not_overtake_the_one_that_goes_back(
    house, sdk, link, state, slow, autojump_clock
):
    sdk.engine.grant(link, MANY + 2)
    last = (await received(sdk, link, MANY))[-1]
    sdk.engine.update(last.delivery, state)
    await trio.sleep(0.5)
    await house.broker.send(SQ, [Message(message_id=f"{MANY}", session_id="a")])

    assert ids(await received(sdk, link, 2)) == [MANY - 1, MANY]


async def test_a_message_that_was_taken_before_a_release_goes_back_behind_the_released(
    sdk, link, monkeypatch, autojump_clock
):
    sdk.engine.grant(link, 1)
    [first] = await received(sdk, link, 1)
    receive = FaultyReceiver.receive

    async def receive_late(receiver, limit):
        found = await receive(receiver, limit)
        with trio.CancelScope(shield=True):  # the release comes too late to stop it
            await trio.sleep(1)
        return found

    monkeypatch.setattr(FaultyReceiver, "receive", receive_late)
    sdk.engine.grant(link, 2)
    await trio.sleep(0.5)
    sdk.engine.update(first.delivery, amqp.RELEASED)

    assert ids(await received(sdk, link, 2)) == [0, 1]


@pytest.mark.parametrize("session", [True, False])
async def test_a_drain_is_answered_at_once(house, sdk, link, session, autojump_clock):
    if not session:
        link = await sdk.receiver()
        await house.broker.send(EntityPath("orders"), [Message(message_id="0")])
    sdk.engine.grant(link, MANY + 10)
    await received(sdk, link, 1)
    began = trio.current_time()
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)

    assert trio.current_time() == began


async def test_a_drain_is_answered_at_once_while_messages_go_back(sdk, link, slow, autojump_clock):
    sdk.engine.grant(link, 1)
    [first] = await received(sdk, link, 1)
    sdk.engine.update(first.delivery, amqp.RELEASED)
    await trio.sleep(0.5)
    began = trio.current_time()
    sdk.engine.grant(link, 5)
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)

    assert trio.current_time() == began
    assert arrived(sdk) == []


async def test_a_message_sent_after_a_drain_comes_with_later_credit_only(
    house, sdk, link, autojump_clock
):
    link = await sdk.receiver(credit=5)
    await trio.sleep(1)
    sdk.engine.drain(link)
    await trio.sleep(0.1)
    await house.broker.send(EntityPath("orders"), [Message(message_id="0")])
    await trio.sleep(1)
    early = arrived(sdk)
    sdk.engine.grant(link, 1)

    assert early == []
    assert ids(await received(sdk, link, 1)) == [0]
