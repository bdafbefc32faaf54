"""The contract of receivers with `ReceivesAvailable`: they know when nothing is available."""

from collections.abc import Sequence
from typing import Any

import trio

from gateway.capabilities import ReceivesAvailable
from gateway.domain.message import Complete, Delivery
from gateway.offering import required
from tests.brokers.contract import ids, numbered, take_one
from tests.brokers.kinds import Capability, needs
from tests.harness.patience import PATIENCE

ROUNDS = 10


async def available(receiver: Any, limit: int) -> Sequence[Delivery]:
    with trio.fail_after(PATIENCE):
        return await required(receiver, ReceivesAvailable).receive_available(limit)


@needs(Capability.AVAILABLE)
async def test_a_receiver_says_that_nothing_is_available(broker, orders):
    async with broker.open_receiver(orders) as receiver:
        assert not await available(receiver, 10)


@needs(Capability.AVAILABLE)
async def test_a_message_that_was_sent_before_is_available(broker, orders):
    async with broker.open_receiver(orders) as receiver:
        for number in range(ROUNDS):
            await broker.send(orders, numbered(number))
            taken = await available(receiver, 10)
            for delivery in taken:
                await receiver.settle(delivery, Complete())

            assert ids(taken) == [str(number)]
            assert not await available(receiver, 10)


@needs(Capability.AVAILABLE)
async def test_all_that_is_available_comes_before_an_empty_answer(broker, orders):
    taken: list[Delivery] = []
    await broker.send(orders, numbered(*range(ROUNDS)))
    async with broker.open_receiver(orders) as receiver:
        held = await take_one(receiver)
        while found := await available(receiver, 3):
            assert len(found) <= 3
            taken += found

        wanted = {str(number) for number in range(ROUNDS)}
        assert set(ids([held, *taken])) == wanted
        assert len(taken) == ROUNDS - 1


@needs(Capability.AVAILABLE)
async def test_all_that_is_available_comes_also_if_some_of_it_is_held(broker, orders):
    """The broker counts what is held, and delivers what a settlement makes room for."""
    count, taken = 100, list[Delivery]()
    await broker.send(orders, numbered(*range(count)))
    async with broker.open_receiver(orders) as receiver:
        while found := await available(receiver, 10):
            taken += found
            for delivery in found[::2]:
                await receiver.settle(delivery, Complete())

    assert len(set(ids(taken))) == count


@needs(Capability.AVAILABLE)
async def test_a_message_that_is_sent_while_a_look_is_cut_is_not_lost(broker, orders):
    async with broker.open_receiver(orders) as receiver:
        for number in range(ROUNDS):
            with trio.move_on_after(0.001 * (number % 5)):
                await required(receiver, ReceivesAvailable).receive_available(1)
        await broker.send(orders, numbered("last"))

        assert ids([await take_one(receiver)]) == ["last"]
