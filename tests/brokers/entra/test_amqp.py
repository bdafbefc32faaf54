"""Access tokens on $cbs: put for each entity, and renewed while the connection is open."""

from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from gateway.brokers.amqp.broker import AmqpBroker
from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.transactions import TransactionLinks
from gateway.domain.entity import EntityPath
from gateway.domain.errors import CredentialRefused, NotAuthorized, NoToken
from gateway.domain.message import Message
from gateway.wire.amqp.exchange import NodeRequest
from gateway.wire.amqp.servicebus.cbs import JWT
from tests.brokers.entra.provider import PATIENCE, Provider, opened
from tests.brokers.entra.strict import HOST, StrictPeer, broker_at

ORDERS, BILLS = EntityPath("orders"), EntityPath("bills")
ONE = [Message(message_id="1", body=b"x")]
HOUR = 3600.0


async def send_until(end: float, broker: AmqpBroker) -> None:
    """Send a message every 20 s; none fails."""
    while trio.current_time() < end:
        await broker.send(ORDERS, ONE)
        await trio.sleep(20)


async def test_a_token_is_put_for_each_entity_with_its_type_and_audience(
    autojump_clock: MockClock,
) -> None:
    peer, provider = StrictPeer(), Provider()
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await broker.send(ORDERS, ONE)
        await broker.send(BILLS, ONE)

    assert [(put.type, put.audience, put.token) for put in peer.put] == [
        (JWT, f"sb://{HOST}/orders", "1"),
        (JWT, f"sb://{HOST}/bills", "1"),
    ]


async def test_the_token_of_an_open_link_is_renewed_before_it_expires(
    autojump_clock: MockClock,
) -> None:
    peer, provider = StrictPeer(), Provider()
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await send_until(5 * HOUR, broker)

    assert peer.detached == 0
    assert len(peer.server.connections) == 1
    assert len({put.token for put in peer.put}) >= 5
    assert peer.messages == 5 * HOUR / 20


async def test_an_outage_of_the_provider_shorter_than_a_tokens_rest_fails_no_send(
    autojump_clock: MockClock,
) -> None:
    peer, provider = StrictPeer(), Provider()
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await send_until(0.4 * HOUR, broker)
        provider.failure = NoToken("login.example: connection refused")
        await send_until(0.95 * HOUR, broker)
        provider.failure = None
        await send_until(3 * HOUR, broker)

    assert peer.detached == 0


async def test_an_outage_beyond_expiry_is_an_honest_error_and_sends_work_again_after_it(
    autojump_clock: MockClock,
) -> None:
    peer, provider = StrictPeer(), Provider()
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await send_until(0.4 * HOUR, broker)
        provider.failure = NoToken("login.example: connection refused")
        await send_until(HOUR - 60, broker)
        await trio.sleep_until(HOUR + 25)  # the link is detached
        began = trio.current_time()
        for _ in range(10):
            with pytest.raises(NoToken, match="connection refused"):
                await broker.send(ORDERS, ONE)
        assert trio.current_time() - began < 1.0
        await trio.sleep_until(2 * HOUR)
        provider.failure = None
        await trio.sleep(7)
        await send_until(2.1 * HOUR, broker)

    assert peer.detached >= 1


async def test_with_an_expired_token_nothing_is_sent_on_a_link_that_is_still_attached(
    autojump_clock: MockClock,
) -> None:
    """The outcome of a send would be unknown, since the link ends before the answer."""
    peer, provider = StrictPeer(), Provider()
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await send_until(0.4 * HOUR, broker)
        provider.failure = NoToken("login.example: connection refused")
        await send_until(HOUR - 10, broker)
        await trio.sleep_until(HOUR + 5)
        sent = peer.messages
        for _ in range(10):
            with pytest.raises(NoToken, match="connection refused"):
                await broker.send(ORDERS, ONE)

        assert (peer.messages, peer.detached) == (sent, 0)


async def test_seconds_before_a_token_expires_it_is_not_sent_with_however_often_it_was_put(
    autojump_clock: MockClock,
) -> None:
    peer, provider = StrictPeer(), Provider()
    last = 0.0
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await send_until(0.4 * HOUR, broker)
        provider.failure = NoToken("login.example: connection refused")
        await send_until(HOUR - 20, broker)
        while trio.current_time() < HOUR + 5:
            with suppress(NoToken):
                await broker.send(ORDERS, ONE)
                last = trio.current_time()
            await trio.sleep(0.1)

    assert HOUR - last == pytest.approx(5, abs=0.3)
    assert peer.detached == 0


async def test_with_an_expired_token_nothing_is_sent_in_a_transaction_or_asked_for(
    autojump_clock: MockClock,
) -> None:
    peer, provider = StrictPeer(), Provider()
    schedule = NodeRequest(operation="schedule")
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await broker.send(ORDERS, ONE)
        connection = await broker._sending.acquire(trio.current_time())
        links = TransactionLinks(connection, LinkOptions())

        async def use_all() -> None:
            await links.sender(ORDERS, None)
            await connection.ask("node", schedule)

        with trio.move_on_after(1):  # the peer doesn't answer
            await use_all()
        provider.failure = NoToken("login.example: connection refused")
        await trio.sleep_until(HOUR - 20)
        with trio.move_on_after(1):
            await use_all()
        await trio.sleep_until(HOUR - 3)
        sent = peer.messages
        with pytest.raises(NoToken):
            await links.sender(ORDERS, None)
        with pytest.raises(NoToken):
            await connection.ask("node", schedule)

        assert (peer.messages, peer.detached) == (sent, 0)


async def test_a_token_that_comes_after_the_last_expired_is_put_for_the_same_link(
    autojump_clock: MockClock,
) -> None:
    peer, provider = StrictPeer(), Provider()
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await send_until(0.4 * HOUR, broker)
        provider.failure = NoToken("login.example: connection refused")
        await send_until(HOUR - 10, broker)
        provider.failure = None
        await trio.sleep_until(HOUR + 5)
        await send_until(1.1 * HOUR, broker)

    assert peer.detached == 0
    assert len(peer.server.connections) == 1


async def test_a_refused_credential_is_told_to_who_sends(autojump_clock: MockClock) -> None:
    provider = Provider(failure=CredentialRefused("login.example: AADSTS90002: Tenant not found"))
    async with opened(provider) as tokens, broker_at(StrictPeer(), tokens) as broker:
        with pytest.raises(CredentialRefused, match="AADSTS90002"):
            await broker.send(ORDERS, ONE)


async def test_a_provider_that_hangs_is_an_error_before_the_attempt_ends(
    autojump_clock: MockClock,
) -> None:
    provider = Provider(takes=1e6)
    async with opened(provider) as tokens, broker_at(StrictPeer(), tokens) as broker:
        with pytest.raises(NoToken, match="no access token"):
            await broker.send(ORDERS, ONE)

    assert trio.current_time() <= PATIENCE + 0.1


async def test_a_token_that_the_namespace_refuses_is_replaced(autojump_clock: MockClock) -> None:
    peer, provider = StrictPeer(refuses=True), Provider()
    async with opened(provider) as tokens, broker_at(peer, tokens) as broker:
        await trio.sleep(90)
        with pytest.raises(NotAuthorized, match="as said"):
            await broker.send(ORDERS, ONE)
        peer.refuses = False
        await trio.sleep(1)
        await broker.send(ORDERS, ONE)

    assert [put.token for put in peer.put] == ["1", "2"]
