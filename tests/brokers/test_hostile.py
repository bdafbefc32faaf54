"""However a namespace misbehaves, sends go to the backlog, and the process continues."""

import random
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Busy, InternalError, InvalidRequest, NotSupported
from gateway.domain.message import Abandon, AcceptedBy, Complete, Message
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.brokers.hostile import (
    CASES,
    HERE,
    SETTLING,
    Hostile,
    make_amqp,
    make_rabbitmq,
    network_of,
    real_date,
)
from tests.brokers.pairs import pair_of
from tests.fuzz.by_input import resident

ORDERS = EntityPath("orders")
ONE = [Message(message_id="1", body=b"x")]
ATTEMPT = 10.0  # seconds: the pair's limit of one attempt
SEND = 30.0
MIB = 2**20
# Of a namespace that refuses a request, in order, its producer is told.
REFUSED = ("orders is busy", "redirects aren't followed", "no (406)")

cases = pytest.mark.parametrize(("make", "serve"), CASES)


@cases
async def test_a_send_fails_over_and_is_never_called_accepted_by_it(
    make: Callable[[], Broker],
    serve: Hostile,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    before = resident()
    async with network_of(serve, monkeypatch) as network:
        secondary = MemoryBroker(real_date, random.Random(0))
        async with make() as primary, secondary, pair_of(primary, secondary, real_date) as pair:
            for _ in range(3):
                began = trio.current_time()
                try:
                    by = await pair.broker.send_diverting(ORDERS, ONE)
                except (Busy, NotSupported, InvalidRequest) as refused:
                    assert str(refused).startswith(REFUSED)  # noqa: PT017
                else:
                    assert by is AcceptedBy.BACKLOG
                assert trio.current_time() - began <= SEND
        assert set(network.dialed) == {HERE}
    assert resident() - before < 256 * MIB


@cases
async def test_each_call_ends_in_time_with_an_error_of_the_gateway(
    make: Callable[[], Broker],
    serve: Hostile,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    async def receive() -> None:
        async with broker.open_receiver(ORDERS) as receiver:
            await receiver.receive(10)

    async with network_of(serve, monkeypatch) as network, make() as broker:
        assert await error_of(lambda: broker.send(ORDERS, ONE)) is not None
        await error_of(receive)
        await error_of(lambda: broker.probe(ORDERS))
        await error_of(lambda: broker.inspect(ORDERS))
        began = trio.current_time()
    assert trio.current_time() - began <= ATTEMPT
    assert set(network.dialed) == {HERE}


@pytest.mark.parametrize(("make", "serve"), SETTLING)
async def test_each_call_for_a_locked_message_ends_in_time_with_an_error_or_a_value_that_fits(
    make: Callable[[], Broker],
    serve: Hostile,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    renewed: list[object] = []
    before = resident()
    async with network_of(serve, monkeypatch) as network, make() as broker:
        with trio.fail_after(20 * ATTEMPT):
            async with broker.open_receiver(ORDERS) as receiver:
                [delivery] = await receiver.receive(1)

                async def renew() -> None:
                    renewed.append(await receiver.renew(delivery))

                refused = await error_of(renew)
                verdicts = [
                    await error_of(lambda: receiver.settle(delivery, Abandon())),
                    await error_of(lambda: receiver.settle(delivery, Complete())),
                ]
        assert refused is not None or isinstance(renewed[0], datetime)
        if make in {make_amqp, make_rabbitmq}:  # over HTTP any 200 may be the answer
            assert None not in verdicts
        assert set(network.dialed) == {HERE}
    assert resident() - before < 256 * MIB


async def error_of(call: Callable[[], Awaitable[object]]) -> BrokerError | trio.TooSlowError | None:
    """
    The exception of a call of at most `ATTEMPT` seconds; an exception that isn't a broker's is
    raised.
    """
    try:
        with trio.fail_after(ATTEMPT):
            await call()
    except (BrokerError, trio.TooSlowError) as error:
        found = error
    else:
        return None
    assert not isinstance(found, InternalError)
    return found
