"""Any message, and any failure in between: what was accepted arrives, once at least, as it was."""

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, OutcomeUnknown, Unavailable
from gateway.domain.message import Complete, Message
from gateway.testing.faults import Fault, LoseAnswer, Operation, Refuse
from gateway.wire.amqp.message import decode_message, encode_message
from tests.claims.lab import A_DAY, LARGE, ORDERS, open_lab
from tests.strategies import messages


@given(message=messages(), filler=st.binary(min_size=1, max_size=3), seed=st.integers(0, 9))
def test_every_message_arrives_as_it_was_sent(message: Message, filler: bytes, seed: int) -> None:
    """Bodies of all kinds, and the bytes of all sections, as they came over the wire."""

    async def main() -> None:
        sent = decode_message(encode_message(attrs.evolve(message, time_to_live=None)))
        async with open_lab(above=1) as lab:
            await lab.broker.send(ORDERS, [sent])
            found = (await lab.take()).message

        assert found.body == sent.body
        assert type(found.body) is type(sent.body)
        assert found == sent
        assert encode_message(found) == encode_message(sent)

    message = attrs.evolve(message, scheduled=None)
    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(data=st.data(), seed=st.random_module())
def test_whatever_fails_nothing_that_was_accepted_is_lost_and_nothing_else_comes(
    data: st.DataObject, seed: object
) -> None:
    """Each step of store and namespace may fail, before or after it's done; then all is well."""

    async def main() -> None:
        async with open_lab(missing_grace=A_DAY) as lab:
            on = True

            def trouble(moment: str, step: str, name: str) -> None:
                if on and data.draw(st.integers(0, 3)) == 0:
                    raise Unavailable(f"{moment} {step}")

            def fault(operation: Operation, entity: EntityPath) -> Fault | None:
                if not on:
                    return None
                return data.draw(st.sampled_from([None, None, None, Refuse(), LoseAnswer()]))

            lab.store.trouble, lab.faulty.fault = trouble, fault
            accepted, refused = set(), set()
            for number in range(6):
                body = LARGE if number % 3 else b"small"
                message = Message(message_id=str(number), body=body)
                try:
                    await lab.broker.send(ORDERS, [message])
                    accepted.add(str(number))
                except OutcomeUnknown:
                    pass
                except BrokerError:
                    refused.add(str(number))
            found = set()
            with trio.fail_after(30 * A_DAY):
                while True:
                    try:
                        async with lab.broker.open_receiver(ORDERS) as receiver:
                            with trio.move_on_after(300) as scope:
                                for delivery in await receiver.receive(3):
                                    body = delivery.message.body
                                    number = delivery.message.message_id
                                    assert body == (LARGE if int(number) % 3 else b"small")
                                    found.add(number)
                                    await receiver.settle(delivery, Complete())
                    except BrokerError:
                        continue
                    if scope.cancelled_caught:
                        if not on:
                            break
                        on = False
                    elif not data.draw(st.integers(0, 5)):
                        on = False

            assert accepted <= found
            assert not found & refused
            assert await lab.raw(ORDERS) == []

    trio.run(main, clock=MockClock(autojump_threshold=0))
