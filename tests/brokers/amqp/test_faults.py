"""Service Bus over AMQP when the network or the rights go: our own endpoint behind a bad wire."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities import send_accepted_by
from gateway.domain.access import AccessPolicy, Right, TokenClaim
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import BrokerError, NotAuthorized, OutcomeUnknown, Unavailable, Untrusted
from gateway.domain.health.trust import SILENCE, YOUNG
from gateway.domain.message import AcceptedBy, Complete, Delivery, Message
from gateway.frontends.auth import Authorizer
from gateway.net.certs import write_certificates
from gateway.net.tls import ClientTlsOptions, TlsOptions, server_context
from tests.brokers.amqp.faults import ORDERS, failure_of, numbered, wired
from tests.brokers.amqp.served import client, served
from tests.brokers.servicebus.served import real_date
from tests.harness.chaos_proxy import (
    BlackHole,
    DeadLinks,
    Hold,
    Pass,
    Refuse,
    ResetAtOnce,
)
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

DIALS = 7  # that failed: the pause after them is 5 s, 20 % more or less
SHORTEST_PAUSE = 4.0


@pytest.fixture
async def wire():
    async with wired() as wire:
        yield wire


async def test_a_cut_in_a_window_of_sends_leaves_exactly_those_under_way_unknown(wire):
    outcomes: dict[str, object] = {}

    async def send(number: int) -> None:
        try:
            outcomes[str(number)] = await send_accepted_by(wire.broker, ORDERS, numbered(number))
        except BrokerError as error:
            outcomes[str(number)] = type(error)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(send, number)
    wire.proxy.fault = Hold()
    async with trio.open_nursery() as nursery:
        for number in range(10, 20):
            nursery.start_soon(send, number)
        await wait_all_tasks_blocked(0.05)
        wire.proxy.reset_all()
        wire.proxy.fault = Pass()
    for number in range(20, 30):
        await send(number)

    told = [outcomes[str(number)] for number in range(30)]
    assert told == [AcceptedBy.PRIMARY] * 10 + [OutcomeUnknown] * 10 + [AcceptedBy.PRIMARY] * 10
    accepted = {name for name, outcome in outcomes.items() if outcome is AcceptedBy.PRIMARY}
    assert accepted <= set(await wire.sent())


async def test_a_cut_in_a_pipeline_leaves_only_the_batches_that_were_written_unknown():
    async with wired(window=3) as wire:
        await wire.broker.send(ORDERS, numbered("first"))
        wire.proxy.fault = Hold()
        verdicts = []

        async def send_many() -> None:
            batches = [numbered(number) for number in range(5)]
            verdicts.extend(await wire.broker.send_many(ORDERS, batches, fails_fast=True))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_many)
            await wait_all_tasks_blocked(0.05)
            wire.proxy.fault = Refuse()
            wire.proxy.reset_all()

        assert [type(error) for error in verdicts] == [OutcomeUnknown] * 3 + [Unavailable] * 2


async def test_a_peer_without_credit_gets_the_batches_in_their_order(wire):
    await wire.broker.send(ORDERS, numbered("first"))

    async with trio.open_nursery() as nursery:
        for call in range(20):
            batches = [numbered(f"{call}-{number}") for number in range(100)]
            nursery.start_soon(wire.broker.send_many, ORDERS, batches)
            await trio.lowlevel.checkpoint()

    shown = await wire.house.broker.peek(ORDERS, limit=3000)
    expected = ["first", *(f"{call}-{number}" for call in range(20) for number in range(100))]
    assert [each.message.message_id for each in shown] == expected


async def test_a_peer_that_is_frozen_is_found_by_its_silence():
    async with wired(idle_timeout=4.0, connect_timeout=2.0) as wire:
        await wire.broker.send(ORDERS, numbered(1))
        wire.proxy.fault = BlackHole()
        under_way = await failure_of(wire.broker.send(ORDERS, numbered(2)))
        while not isinstance(
            next_one := await failure_of(wire.broker.send(ORDERS, numbered(3))), Unavailable
        ):
            assert type(next_one) is OutcomeUnknown
        wire.proxy.fault = Pass()
        wire.proxy.reset_all()
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    await wire.broker.send(ORDERS, numbered(4))
                    break
                except Unavailable:
                    await trio.sleep(0.1)

        assert type(under_way) is OutcomeUnknown
        assert await wire.sent() == ["1", "4"]


async def test_a_quiet_connection_stays_open():
    async with wired(idle_timeout=16.0) as wire:  # longer than the machine stalls
        await wire.broker.send(ORDERS, numbered(1))
        before = set(wire.proxy.links)
        await trio.sleep(32.5)  # silence is noticed after once to twice the timeout
        await wire.broker.send(ORDERS, numbered(2))

        assert set(wire.proxy.links) == before


async def test_a_lock_outlives_the_connection_it_was_taken_on(wire):
    await wire.broker.send(ORDERS, numbered(1))
    async with wire.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        wire.proxy.reset_all()
        await wait_all_tasks_blocked(0.05)
        until = await receiver.renew(delivery)
        await receiver.settle(delivery, Complete())

    assert until > delivery.locked_until
    assert await wire.sent() == []


async def test_a_receiver_goes_on_over_another_connection(wire):
    async with wire.broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:

        async def cut() -> None:
            await wait_all_tasks_blocked(0.05)
            wire.proxy.reset_all()
            await wait_all_tasks_blocked(0.05)
            await wire.broker.send(ORDERS, numbered(1))

        nursery.start_soon(cut)
        with trio.fail_after(PATIENCE):
            [delivery] = await receiver.receive(1)

        assert delivery.message.message_id == "1"


async def test_more_than_a_connection_buffers_can_be_settled():
    async with wired() as wire:
        for number in range(20):
            big = Message(message_id=str(number), body=bytes(1000_000))
            await wire.broker.send(ORDERS, [big])
        async with wire.broker.open_receiver(ORDERS) as receiver:
            taken: list[Delivery] = []
            with trio.fail_after(PATIENCE):
                while len(taken) < 20:
                    taken += await receiver.receive(20 - len(taken))
                for delivery in taken:
                    await receiver.settle(delivery, Complete())

        assert await wire.sent() == []


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    write_certificates(folder, now=real_date())
    return folder


async def test_tls_is_for_messages_and_management(certificates):
    server = server_context(
        TlsOptions(certificate=certificates / "server.pem", key=certificates / "server.key")
    )
    trusting = ClientTlsOptions(ca=certificates / "ca.pem")
    async with served(server) as house:
        async with client(house.port, plain=False, tls=trusting) as broker:
            await broker.create_queue(ORDERS, QueueProperties())
            await broker.send(ORDERS, numbered(1))
            async with broker.open_receiver(ORDERS) as receiver:
                [delivery] = await receiver.receive(1)
                await receiver.settle(delivery, Complete())
        async with client(house.port, plain=False) as broker:
            error = await failure_of(broker.send(ORDERS, numbered(2)))

    assert type(error) is Untrusted
    assert not error.counts_as_outage


# --- rights


@pytest.mark.parametrize("how", [{"key": "another"}, {"key_name": "nobody"}], ids=repr)
async def test_a_key_that_is_refused_is_no_outage(how):
    async with served() as house, client(house.port, **how) as broker:
        await house.broker.create_queue(ORDERS, QueueProperties())
        for operation in (broker.send(ORDERS, numbered(1)), broker.probe(ORDERS)):
            error = await failure_of(operation)

            assert type(error) is NotAuthorized
            assert not error.counts_as_outage


async def test_tokens_are_renewed_while_links_are_there(monkeypatch):
    renewals, claim = trio.Semaphore(0), Authorizer.claim

    def noted(authorizer: Authorizer, header: str) -> TokenClaim:
        renewals.release()
        return claim(authorizer, header)

    monkeypatch.setattr(Authorizer, "claim", noted)
    async with served() as house, client(house.port, token_lifetime=10.0) as broker:
        await house.broker.create_queue(ORDERS, QueueProperties())
        async with broker.open_receiver(ORDERS) as receiver:
            await broker.send(ORDERS, numbered(1))
            [delivery] = await receiver.receive(1)
            with trio.fail_after(PATIENCE):
                for _ in range(renewals.value + 2):
                    await renewals.acquire()
            await receiver.settle(delivery, Complete())
            await broker.send(ORDERS, numbered(2))
            with trio.fail_after(PATIENCE):
                [delivery] = await receiver.receive(1)

        assert (delivery.message.message_id, delivery.delivery_count) == ("2", 1)


async def test_a_right_that_is_taken_away_is_no_outage():
    async with served() as house, client(house.port) as broker:
        await house.broker.create_queue(ORDERS, QueueProperties())
        await broker.send(ORDERS, numbered(1))
        reader = AccessPolicy(
            name="tester", keys=("a key of this test",), rights=frozenset({Right.LISTEN})
        )
        house.authorizer.replace([reader])
        await wait_all_tasks_blocked(0.05)

        assert type(await failure_of(broker.send(ORDERS, numbered(2)))) is NotAuthorized
        async with broker.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.settle(delivery, Complete())


async def test_a_send_dials_in_the_pause_after_failed_dials_and_a_try_does_not(wire):
    await wire.broker.send(ORDERS, numbered(1))
    wire.proxy.fault = refused = ResetAtOnce()
    wire.proxy.reset_all()
    while len(refused.made) < DIALS:
        await failure_of(wire.broker.try_send(ORDERS, numbered(2)))
        await trio.sleep(0.01)
    wire.proxy.fault = Pass()

    assert isinstance(await failure_of(wire.broker.try_send(ORDERS, numbered(3))), Unavailable)
    began = trio.current_time()
    await wire.broker.send(ORDERS, numbered(4))
    assert trio.current_time() - began < SHORTEST_PAUSE
    assert await wire.sent() == ["1", "4"]


async def test_a_connection_that_seems_to_live_and_answers_nothing_is_replaced(wire):
    await wire.broker.send(ORDERS, numbered(1))
    await wire.broker.probe(ORDERS)
    await trio.sleep(YOUNG)
    wire.proxy.fault = DeadLinks(frozenset(wire.proxy.links))

    with trio.move_on_after(SILENCE + 0.25) as sent:
        await wire.broker.send(ORDERS, numbered(2))
    with trio.fail_after(PATIENCE):
        await wire.broker.probe(ORDERS)
        await wire.broker.send(ORDERS, numbered(3))

    assert sent.cancelled_caught
    assert await wire.sent() == ["1", "2", "3"]
