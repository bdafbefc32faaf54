"""Properties that a client sets on a message while it settles it."""

from gateway.domain.message import Kind, Message, Typed
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.servicebus.deliveries import decode_delivery, token_of
from tests.frontends.amqp.management import ask
from tests.frontends.rest_client import ORDERS

SENT = Message(message_id="a", properties={"old": Typed(Kind.INT, 1), "kept": "k"}, body=b"b")
CHANGES = {"old": "new", "added": Typed(Kind.USHORT, 2)}
AMENDED = {"old": "new", "kept": "k", "added": Typed(Kind.USHORT, 2)}


async def test_modified_sets_its_annotations_among_the_properties(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [SENT])
    link = await sdk.receiver(credit=2)
    modified = amqp.Modified(delivery_failed=True, annotations=CHANGES)

    confirmed = await sdk.settle(await sdk.delivery(link), modified)
    again = decode_delivery((await sdk.delivery(link)).payload)

    assert confirmed == amqp.Modified(delivery_failed=True)
    assert again.message.properties == AMENDED
    assert again.message.body == b"b"


async def test_a_message_is_deferred_with_new_properties(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [SENT])
    transfer = await sdk.delivery(await sdk.receiver(credit=1))
    number = decode_delivery(transfer.payload).sequence_number
    modified = amqp.Modified(delivery_failed=True, undeliverable_here=True, annotations=CHANGES)

    await sdk.settle(transfer, modified)
    answer = await ask(sdk, ops.ReceiveDeferred(sequence_numbers=(number,)))

    (handed,) = answer.messages
    assert decode_delivery(handed.payload).message.properties == AMENDED


async def test_a_dead_letter_gets_new_properties_besides_its_reason(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [SENT])
    why = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    error = amqp.AmqpError(condition="com.microsoft:dead-letter", info={**why, **CHANGES})

    await sdk.settle(await sdk.delivery(await sdk.receiver(credit=1)), amqp.Rejected(error=error))

    [dead] = await house.broker.peek(ORDERS.dead_letter)
    assert dead.message.properties == {**AMENDED, **why}


async def test_a_message_settled_by_its_token_gets_new_properties(house, sdk, autojump_clock):
    await house.broker.send(ORDERS, [SENT])
    transfer = await sdk.delivery(await sdk.receiver(credit=1))
    update = ops.UpdateDisposition(
        status=ops.Disposition.ABANDONED, tokens=(token_of(transfer.tag),), properties=CHANGES
    )

    await ask(sdk, update)

    [shown] = await house.broker.peek(ORDERS)
    assert shown.message.properties == AMENDED
