"""Any message, and any failure in between: an accepted message arrives unchanged, at least once."""

import random
from typing import Final

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, OutcomeUnknown, Unavailable
from gateway.domain.message import Complete, Message
from gateway.wire.amqp.message import decode_message, encode_message
from tests.extensions.claims.harness import A_DAY, LARGE, ORDERS, Harness, open_harness
from tests.harness.faults import Fault, LoseAnswer, Operation, Refuse
from tests.strategies import messages

WHILE: Final = 600.0  # virtual seconds


@given(message=messages(), filler=st.binary(min_size=1, max_size=3), seed=st.integers(0, 9))
def test_every_message_arrives_as_it_was_sent(message: Message, filler: bytes, seed: int) -> None:
    """Bodies of all kinds, and the bytes of all sections, as they came over the wire."""

    async def main() -> None:
        sent = decode_message(encode_message(attrs.evolve(message, time_to_live=None)))
        async with open_harness(above=1) as harness:
            await harness.broker.send(ORDERS, [sent])
            found = (await harness.take()).message

        assert found.body == sent.body
        assert type(found.body) is type(sent.body)
        assert found == sent
        assert encode_message(found) == encode_message(sent)

    message = attrs.evolve(message, scheduled=None)
    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(seed=st.integers(0, 2**32), order=st.random_module())
def test_no_failure_loses_an_accepted_message_or_adds_another(seed: int, order: object) -> None:
    """Each step of store and namespace may fail for a while, before or after it's done."""
    rng = random.Random(seed)

    def trouble(moment: str, step: str, name: str) -> None:
        if rng.random() < 0.3 and trio.current_time() < WHILE:
            raise Unavailable(f"{moment} {step}")

    def fault(operation: Operation, entity: EntityPath) -> Fault | None:
        if rng.random() < 0.3 and trio.current_time() < WHILE:
            return rng.choice([Refuse(), LoseAnswer()])
        return None

    async def main() -> None:
        async with open_harness(
            QueueProperties(max_delivery_count=1000), missing_grace=A_DAY
        ) as harness:
            harness.store.trouble, harness.faulty.fault = trouble, fault
            accepted, refused, found = set[str](), set[str](), set[str]()
            for number in map(str, range(6)):
                try:
                    await harness.broker.send(
                        ORDERS, [Message(message_id=number, body=body_of(number))]
                    )
                    accepted.add(number)
                except OutcomeUnknown:
                    continue
                except BrokerError:
                    refused.add(number)
            with trio.move_on_after(A_DAY):
                while True:
                    await receive_some(harness, found)

            assert accepted <= found
            assert not found & refused
            assert await harness.raw(ORDERS) == []
            assert await harness.raw(ORDERS.dead_letter) == []

    trio.run(main, clock=MockClock(autojump_threshold=0))


def body_of(number: str) -> bytes:
    return LARGE if int(number) % 3 else b"small"


async def receive_some(harness: Harness, found: set[str]) -> None:
    try:
        async with harness.broker.open_receiver(ORDERS) as receiver:
            for delivery in await receiver.receive(3):
                assert delivery.message.body == body_of(delivery.message.message_id)
                found.add(delivery.message.message_id)
                await receiver.settle(delivery, Complete())
    except BrokerError:
        await trio.sleep(1)
