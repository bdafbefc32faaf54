"""
Frameworks above the SDKs over AMQP, from their first link on: what each sends, in its order. Their
requests over HTTP are in `tests/e2e/test_frameworks.py`. The sources are named with their lines:

    MassTransit   c1e5caa9, src/Transports/MassTransit.Azure.ServiceBus.Core,
                  AzureServiceBusTransport
    NServiceBus   NServiceBus.Transport.AzureServiceBus 8baf943e, src/Transport
    Functions     azure-sdk-for-net 002767df, Microsoft.Azure.WebJobs.Extensions.ServiceBus,
                  src/Listeners/ServiceBusListener.cs
    Dapr          components-contrib c23900d2, common/component/azure/servicebus

The links of .NET's SDK are as in azure-sdk-for-net, AmqpConnectionScope.cs, those of Go's as in
azure-sdk-for-go, azservicebus, session_receiver.go.
"""

from datetime import timedelta
from typing import Any

import pytest
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Described, Kind, Message, MessageState, Typed, ValueBody
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.events import ACCEPTED, AmqpError, Modified, Rejected
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.message import decode_message
from gateway.wire.amqp.servicebus.deliveries import token_of
from tests.frontends.amqp.conftest import House
from tests.frontends.amqp.management import ask
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.amqp.sessions import FILTER
from tests.frontends.amqp.transactions import Controller, controller_of
from tests.frontends.rest_client import wall_clock

DEAD_LETTER = "com.microsoft:dead-letter"
TIMEOUT = {"com.microsoft:timeout": Typed(Kind.UINT, 60_000)}
PREFETCH = 20


async def receives(sdk: Sdk, entity: str, credit: int = PREFETCH) -> amqp.LinkId:
    """A link of .NET's processor: its token first, then the path as a URI has it."""
    await sdk.put_token(f"sb://localhost/{entity}")
    second = amqp.ReceiverSettles.SECOND
    link = await sdk.attached(we_send=False, address=f"/{entity}", receiver_settles=second)
    sdk.engine.grant(link, credit)
    return link


async def sends(sdk: Sdk, entity: str) -> amqp.LinkId:
    await sdk.put_token(f"sb://localhost/{entity}")
    link = await sdk.attached(we_send=True, address=f"/{entity}", properties=TIMEOUT)
    await sdk.until(amqp.LinkFlow, lambda event: event.link == link)
    return link


def body_of(transfer: amqp.TransferReceived) -> Any:
    body = decode_message(transfer.payload).body
    return body.value if isinstance(body, ValueBody) else body


async def held(house: House, entity: EntityPath) -> list[Any]:
    found = await house.broker.peek(entity, limit=100)
    return [each.message.body.value for each in found if isinstance(each.message.body, ValueBody)]


async def masstransit(house: House) -> None:
    """The topology of an endpoint: ServiceBusConnectionContext.cs:60-175, over HTTP."""
    topic = EntityPath("Shop.Contracts~OrderSubmitted")
    for queue in ("order-submitted", "order-submitted_error"):
        await house.broker.create_queue(EntityPath(queue), QueueProperties())
    await house.broker.create_topic(topic, TopicProperties())
    forwarding = SubscriptionProperties(forward_to="order-submitted")
    await house.broker.create_subscription(topic, "order-submitted", forwarding)


async def test_masstransit_consumes_publishes_schedules_and_moves_a_fault(house: House) -> None:
    """
    QueueClientContext.cs:45-68 starts a processor with PrefetchCount and without AutoComplete
    (ServiceBusConnectionContext.cs:298-308); CreateMessageSender (55-58) sends.
    """
    await masstransit(house)
    sdk = await house.connect().open()
    endpoint = await receives(sdk, "order-submitted")
    publisher = await sends(sdk, "Shop.Contracts~OrderSubmitted")
    await sdk.send(publisher, Message(message_id="1", body=ValueBody("submitted")))
    consumed = await sdk.delivery(endpoint)

    # MaxAutoLockRenewalDuration (304) renews by a request, while the consumer works.
    renewed = await ask(sdk, ops.RenewLocks(tokens=(token_of(consumed.tag),)), "order-submitted")
    # MessageSendEndpointContext.cs:33 and 38: a scheduled send, and its cancellation.
    due = Message(message_id="2", scheduled=wall_clock() + timedelta(hours=1))
    told = await ask(sdk, ops.Schedule(messages=(due,)), "order-submitted")
    await ask(sdk, ops.CancelScheduled(sequence_numbers=told.sequence_numbers), "order-submitted")
    done = await sdk.settle(consumed, ACCEPTED)
    # A fault goes to QUEUE_error as a new message, and the old one is completed.
    errors = await sends(sdk, "order-submitted_error")
    await sdk.send(publisher, Message(message_id="3", body=ValueBody("broken")))
    broken = await sdk.delivery(endpoint)
    await sdk.send(errors, Message(message_id="3", body=ValueBody(body_of(broken))))
    await sdk.settle(broken, ACCEPTED)

    assert (body_of(consumed), done, len(renewed.until)) == ("submitted", ACCEPTED, 1)
    assert await held(house, EntityPath("order-submitted")) == []
    assert await held(house, EntityPath("order-submitted_error")) == ["broken"]


async def test_masstransit_dead_letters_with_properties(house: House) -> None:
    """ServiceBusMessageLockContext.cs:45 and 55: DeadLetterMessageAsync with a dictionary."""
    await masstransit(house)
    sdk = await house.connect().open()
    endpoint = await receives(sdk, "order-submitted")
    await house.broker.send(EntityPath("order-submitted"), [Message(body=ValueBody("x"))])
    taken = await sdk.delivery(endpoint)

    why = {"MT-Reason": "dead-letter", "DeadLetterReason": "no consumer"}
    error = AmqpError(condition=DEAD_LETTER, info=why)
    await sdk.settle(taken, Rejected(error=error))

    [dead] = await house.broker.peek(EntityPath("order-submitted").dead_letter, limit=9)
    assert dead.message.properties["MT-Reason"] == "dead-letter"
    assert dead.message.properties["DeadLetterReason"] == "no consumer"


async def test_masstransit_keeps_a_saga_in_the_state_of_a_session(
    autojump_clock: MockClock, house: House
) -> None:
    """
    ServiceBusConnectionContext.cs:284-296 starts a session processor, which accepts any session;
    ServiceBusMessageSessionContext.cs:23 and 28 read and write its state.
    """
    saga = EntityPath("order-state")
    await house.broker.create_queue(saga, QueueProperties(requires_session=True))
    await house.broker.send(saga, [Message(session_id="42", body=ValueBody("submitted"))])
    sdk = await house.connect().open()
    await sdk.put_token("sb://localhost/order-state")
    source = amqp.Terminus(address="/order-state", filters={FILTER: None})
    link = sdk.attach(
        we_send=False,
        address="",
        source=source,
        properties=TIMEOUT,
        receiver_settles=amqp.ReceiverSettles.SECOND,
    )
    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)
    sdk.engine.grant(link, 1)
    taken = await sdk.delivery(link)

    before = await ask(sdk, ops.GetSessionState(session_id="42"), "order-state")
    await ask(sdk, ops.SetSessionState(session_id="42", state=b"{}"), "order-state")
    await ask(sdk, ops.RenewSession(session_id="42"), "order-state")
    await sdk.settle(taken, ACCEPTED)
    after = await ask(sdk, ops.GetSessionState(session_id="42"), "order-state")

    assert answer.source is not None
    assert answer.source.filters[FILTER] == "42"
    assert (before.state, after.state) == (None, b"{}")


async def nservicebus(house: House) -> tuple[Controller, amqp.LinkId]:
    """
    AzureServiceBusTransport.cs:79-86: with SendsAtomicWithReceive, all links of a client are in one
    session; MessagePump.cs:62-95 starts a processor.
    """
    for queue in ("Shop.Shipping", "Shop.Billing", "error"):
        await house.broker.create_queue(EntityPath(queue), QueueProperties(max_delivery_count=100))
    sdk = await house.connect().open()
    pump = await receives(sdk, "Shop.Shipping")
    await house.broker.send(EntityPath("Shop.Shipping"), [Message(body=ValueBody("accepted"))])
    return await controller_of(sdk), pump


async def test_nservicebus_sends_and_completes_in_one_transaction(house: House) -> None:
    """
    MessagePump.cs:263-276: a transaction that is made late, by its first use
    (AzureServiceBusTransportTransaction.cs:57); MessageDispatcher.cs:234 and 352 send in it,
    SafeCompleteMessage completes, Commit.
    """
    controller, pump = await nservicebus(house)
    taken = await controller.sdk.delivery(pump)
    txn = await controller.declare()  # before the link that sends exists, as with net-01
    billing = await sends(controller.sdk, "Shop.Billing")

    await controller.send(billing, txn, "bill it")
    await controller.settle(taken, txn)
    before = await held(house, EntityPath("Shop.Billing"))
    outcome = await controller.discharge(txn)

    assert (before, outcome) == ([], ACCEPTED)
    assert await held(house, EntityPath("Shop.Billing")) == ["bill it"]
    assert await held(house, EntityPath("Shop.Shipping")) == []


async def test_nservicebus_retries_and_then_moves_a_message_to_the_error_queue(
    house: House,
) -> None:
    """
    MessagePump.cs:278-320: the transaction is disposed of, so rolled back; RetryRequired abandons
    (291), and at the end the message is sent to the error queue and completed, in a new one.
    """
    controller, pump = await nservicebus(house)
    sdk = controller.sdk
    first = await sdk.delivery(pump)
    undone = await controller.declare()
    await controller.send(await sends(sdk, "Shop.Billing"), undone, "never")
    await controller.discharge(undone, fail=True)
    await sdk.settle(first, Modified(delivery_failed=True))
    again = await sdk.delivery(pump)
    txn = await controller.declare()
    await controller.send(await sends(sdk, "error"), txn, "accepted")
    await controller.settle(again, txn)

    outcome = await controller.discharge(txn)

    assert outcome == ACCEPTED
    assert await held(house, EntityPath("Shop.Billing")) == []
    assert await held(house, EntityPath("error")) == ["accepted"]
    assert await held(house, EntityPath("Shop.Shipping")) == []


async def test_functions_receive_a_batch_and_look_how_much_waits(
    house: House, autojump_clock: MockClock
) -> None:
    """
    RunBatchReceiveLoopAsync: ReceiveMessagesAsync gives the credit of MaxMessageBatchSize, takes
    what is there, drains; the function's messages are completed one by one. The scale monitor peeks
    from 0 (ServiceBusMetricsProvider.cs, GetMetricsAsync).
    """
    jobs = EntityPath("jobs")
    await house.broker.create_queue(jobs, QueueProperties())
    await house.broker.send(jobs, [Message(body=ValueBody(each)) for each in ("a", "b")])
    sdk = await house.connect().open()
    monitored = await sdk.put_token("sb://localhost/jobs/$management")
    peeked = await ask(sdk, ops.Peek(from_sequence=0, limit=1), "jobs")
    link = await receives(sdk, "jobs", credit=1000)

    batch = [await sdk.delivery(link) for _ in range(2)]
    sdk.engine.drain(link)
    drained = await sdk.until(amqp.LinkDrained)
    outcomes = [await sdk.settle(each, ACCEPTED) for each in batch]

    assert monitored.properties["status-code"] == Typed(Kind.INT, 202)
    assert len(peeked.messages) == 1
    assert [body_of(each) for each in batch] == ["a", "b"]
    assert (drained.link, outcomes) == (link, [ACCEPTED, ACCEPTED])
    assert await held(house, jobs) == []


async def test_functions_wait_for_a_session_in_vain(
    house: House, autojump_clock: MockClock
) -> None:
    """RunBatchReceiveLoopAsync: AcceptNextSessionAsync, which ends with ServiceTimeout, again."""
    jobs = EntityPath("jobs")
    await house.broker.create_queue(jobs, QueueProperties(requires_session=True))
    sdk = await house.connect().open()
    await sdk.put_token("sb://localhost/jobs")
    source = amqp.Terminus(address="/jobs", filters={FILTER: None})

    for _ in range(2):
        error = await sdk.refusal(we_send=False, address="", source=source, properties=TIMEOUT)

        assert error.condition == "com.microsoft:timeout"


async def dapr(house: House, *, sessions: bool) -> tuple[Sdk, EntityPath]:
    topic = EntityPath("neworder")
    await house.broker.create_topic(topic, TopicProperties())
    wanted = SubscriptionProperties(requires_session=sessions)
    await house.broker.create_subscription(topic, "checkout", wanted)
    sdk = await house.connect().open()
    path = EntityPath.parse("neworder/Subscriptions/checkout")
    await sdk.put_token("amqps://localhost/neworder/Subscriptions/checkout")
    await house.broker.send(topic, [Message(session_id="s", body=ValueBody("order"))])
    return sdk, path


async def test_dapr_receives_one_by_one_and_renews(house: House) -> None:
    """
    subscription.go:227 ReceiveMessages of one: a credit, no drain once it is there. 379 renews
    while the handler works; then CompleteMessage or AbandonMessage (receiver.go:25-26).
    """
    sdk, path = await dapr(house, sessions=False)
    link = await sdk.attached(
        we_send=False, address=str(path), receiver_settles=amqp.ReceiverSettles.SECOND
    )
    sdk.engine.grant(link, 1)
    first = await sdk.delivery(link)
    renewed = await ask(sdk, ops.RenewLocks(tokens=(token_of(first.tag),)), str(path))

    abandoned = await sdk.settle(first, Modified())
    sdk.engine.grant(link, 1)
    again = await sdk.delivery(link)
    completed = await sdk.settle(again, ACCEPTED)

    assert len(renewed.until) == 1
    assert (type(abandoned), completed) == (Modified, ACCEPTED)
    assert await held(house, path) == []


async def test_dapr_takes_the_next_session_with_a_described_filter(
    house: House, autojump_clock: MockClock
) -> None:
    """
    subscription.go:137-150 accepts a session; session_receiver.go, newLink: the filter is described
    by the code 0x137000000c, and the answer's must be a string. 403 renews the session's lock, 283
    handles its messages one after another, and receiver.Close (177) releases it.
    """
    sdk, path = await dapr(house, sessions=True)
    described = Described(Typed(Kind.ULONG, 0x137000000C), None)
    source = amqp.Terminus(address=str(path), filters={FILTER: described})
    link = sdk.attach(we_send=False, address="", source=source, properties=TIMEOUT)
    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)
    sdk.engine.grant(link, 1)
    taken = await sdk.delivery(link)
    await ask(sdk, ops.RenewSession(session_id="s"), str(path))
    await sdk.settle(taken, ACCEPTED)
    sdk.engine.detach(link, awaited=True)
    await sdk.until(amqp.LinkDetached, lambda event: event.link == link)

    assert answer.source is not None
    told = answer.source.filters[FILTER]
    assert isinstance(told, Described)
    assert told.value == "s"
    assert isinstance(answer.properties["com.microsoft:locked-until-utc"], int)
    assert await held(house, path) == []


@pytest.mark.parametrize("entity", ["Shop.Contracts~OrderSubmitted", "shop/" + "name/" * 40 + "x"])
async def test_frameworks_names_are_sent_to(house: House, entity: str) -> None:
    """ServiceBusMessageNameFormatter.cs: "~" or "/" between namespace and type, at any length."""
    await house.broker.create_queue(EntityPath(entity), QueueProperties())
    sdk = await house.connect().open()

    outcome = await sdk.send(await sends(sdk, entity), Message(body=ValueBody("x")))

    [there] = await house.broker.peek(EntityPath(entity))
    assert (outcome, there.state) == (ACCEPTED, MessageState.ACTIVE)
