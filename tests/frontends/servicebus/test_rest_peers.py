"""The requests that one Pairgate sends to another."""

from datetime import timedelta
from uuid import UUID

from trio.testing import MockClock

from gateway.domain.errors import Unavailable
from gateway.domain.message import Abandon, AcceptedBy, Complete, DeadLetter, Message, ReceiveMode
from gateway.wire.servicebus.operations import (
    Delivered,
    Form,
    PeekMessages,
    ProbeEntity,
    ReceiveMessages,
    Renewed,
    RenewLock,
    SendAccepted,
    SendMessages,
    SettleMessage,
)
from tests.frontends.rest_client import ORDERS, Client, Scripted, head, locked_target, wall_clock


async def test_encoded_messages_keep_what_rest_has_no_words_for(
    autojump_clock: MockClock, client: Client
) -> None:
    message = Message(message_id="m", body=b"x", properties={"id": UUID(int=7), "big": 2**62})

    accepted = await client.do(SendMessages(entity=ORDERS, messages=(message,), form=Form.AMQP))
    delivered = await client.do(ReceiveMessages(entity=ORDERS, timeout=0, limit=10))

    assert accepted == SendAccepted(accepted_by=AcceptedBy.PRIMARY)
    assert isinstance(delivered, Delivered)
    assert [d.message.properties for d in delivered.deliveries] == [message.properties]


async def test_batch_is_received_settled_and_dead_lettered(
    autojump_clock: MockClock, client: Client
) -> None:
    messages = tuple(Message(message_id=str(n), body=b"x") for n in range(3))
    await client.do(SendMessages(entity=ORDERS, messages=messages, form=Form.AMQP))

    delivered = await client.do(ReceiveMessages(entity=ORDERS, timeout=0, limit=10))
    assert isinstance(delivered, Delivered)
    for delivery, settlement in zip(
        delivered.deliveries,
        (Complete(), Abandon(), DeadLetter(reason="bad", description="very")),
        strict=True,
    ):
        await client.do(
            SettleMessage(
                entity=ORDERS,
                message=str(delivery.sequence_number),
                lock_token=delivery.lock_token or "",
                settlement=settlement,
            )
        )

    again = await client.do(ReceiveMessages(entity=ORDERS, timeout=0, limit=10))
    dead = await client.do(ReceiveMessages(entity=ORDERS.dead_letter, timeout=0, limit=10))
    assert isinstance(again, Delivered)
    assert isinstance(dead, Delivered)
    assert [d.message.message_id for d in again.deliveries] == ["1"]
    assert [d.message.properties["DeadLetterReason"] for d in dead.deliveries] == ["bad"]


async def test_destructive_batch_keeps_its_order(autojump_clock: MockClock, client: Client) -> None:
    messages = tuple(Message(message_id=str(n), body=b"x") for n in range(20))
    await client.do(SendMessages(entity=ORDERS, messages=messages, form=Form.AMQP))

    delivered = await client.do(
        ReceiveMessages(entity=ORDERS, mode=ReceiveMode.RECEIVE_AND_DELETE, timeout=0, limit=50)
    )

    assert isinstance(delivered, Delivered)
    assert [d.message.message_id for d in delivered.deliveries] == [str(n) for n in range(20)]


async def test_renewal_tells_until_when(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages")
    *_, message, token = (await locked_target(client)).split("/")

    renewed = await client.do(RenewLock(entity=ORDERS, message=message, lock_token=token))

    assert renewed == Renewed(locked_until=wall_clock() + timedelta(seconds=60))


async def test_peek_shows_and_takes_nothing(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages", b"seen")

    peeked = await client.do(PeekMessages(entity=ORDERS, limit=5))

    assert isinstance(peeked, Delivered)
    assert [(d.message.body, d.lock_token) for d in peeked.deliveries] == [(b"seen", None)]
    assert (await head(client)).body == b"seen"


async def test_large_messages_are_peeked_in_several_answers(
    autojump_clock: MockClock, client: Client
) -> None:
    for _ in range(2):
        large = tuple(Message(body=bytes(600 * 1024)) for _ in range(20))
        await client.broker.send(ORDERS, large)

    answers: list[Delivered] = []
    while not answers or answers[-1].deliveries:
        after = answers[-1].deliveries[-1].sequence_number + 1 if answers else 0
        answer = await client.do(PeekMessages(entity=ORDERS, from_sequence=after, limit=4500))
        assert isinstance(answer, Delivered)
        answers.append(answer)

    assert [len(each.deliveries) for each in answers] == [2] * 20 + [0]


async def test_namespace_that_cannot_peek_says_so(
    autojump_clock: MockClock, client: Client, scripted: Scripted
) -> None:
    answer = await client.ask("GET", "/orders/messages")

    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (501, "not-supported")


async def test_probe_asks_whether_one_could_send(
    autojump_clock: MockClock, client: Client, scripted: Scripted
) -> None:
    await client.do(ProbeEntity(entity=ORDERS))
    scripted.error = Unavailable("refused")

    answer = await client.ask("HEAD", "/orders/messages")

    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (503, "unavailable")
