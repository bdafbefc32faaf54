"""A Service Bus with invalid answers: a call ends with an error, or a valid value."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    InternalError,
    InvalidRequest,
    LockLost,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import Complete, Defer, Delivery, Kind, Message, Typed
from gateway.wire.amqp.encoding import encode
from gateway.wire.amqp.events import AmqpError, LinkAttached, TransferReceived
from gateway.wire.amqp.exchange import NodeRequest, Reply, build_reply, parse_request
from gateway.wire.amqp.servicebus.deliveries import encode_delivery
from gateway.wire.amqp.servicebus.links import FILTER, LOCKED_UNTIL, ticks_of
from tests.brokers.amqp.doorkeeper import Doorkeeper, guarded
from tests.brokers.amqp.scripted import Served, accept, take
from tests.brokers.servicebus.served import real_date
from tests.harness.patience import PATIENCE

ORDERS = EntityPath("orders")
TOKEN = UUID(int=5).bytes_le
ENOUGH = 10.0  # seconds of a call
SILENT = {"nothing", "another id", "garbage"}  # nothing to end a wait
ONE = encode_delivery(
    Delivery(
        message=Message(message_id="1"),
        sequence_number=7,
        lock_token=str(UUID(int=5)),
        locked_until=real_date(),
    )
)
"""A message as a transfer or a reply carries it."""

Answering = Callable[[NodeRequest], Reply | bytes | None]


def says(status: int = 200, body: Any = None, condition: str | None = None) -> Answering:
    def answer(request: NodeRequest) -> Reply:
        return Reply(id=request.id, status=status, body=body, condition=condition, description="x")

    return answer


def handed(payload: Any, count: int = 1) -> Answering:
    return says(200, {"messages": [{"message": payload, "lock-token": UUID(int=5)}] * count})


LONG_LIST = Typed(Kind.ARRAY, (1,) * 5000)
ANSWERS: dict[str, Answering] = {
    "nothing": lambda request: None,
    "another id": lambda request: Reply(id="another", status=200),
    "garbage": lambda request: b"\x00\x53",
    "a message without a status": lambda request: encode("x"),
    "no body": says(),
    "a body of text": says(200, "text"),
    "an empty body": says(200, {}),
    "wrong types": says(
        200,
        {
            "expirations": ["x"],
            "expiration": 5,
            "sequence-numbers": "x",
            "messages": [5],
            "session-state": 5,
            "sessions-ids": [5],
            "skip": "x",
            "rules": [[]],
        },
    ),
    "nothing in lists": says(
        200,
        {
            "expirations": Typed(Kind.ARRAY, ()),
            "sequence-numbers": Typed(Kind.ARRAY, ()),
            "messages": [],
            "sessions-ids": [],
            "skip": Typed(Kind.INT, 0),
        },
    ),
    "too much": says(
        200,
        {
            "expirations": [real_date()] * 5000,
            "sequence-numbers": LONG_LIST,
            "messages": [{"message": ONE, "lock-token": UUID(int=5)}] * 500,
            "sessions-ids": [str(number) for number in range(5000)],
            "skip": Typed(Kind.INT, -1),
        },
    ),
    "a message that can't be read": handed(b"\x00"),
    "a message that wasn't asked for": handed(ONE),
    "accepted": says(202),
    "no content": says(204),
    "status 0": says(0),
    "a negative status": says(-5),
    "a redirect": says(301, condition="amqp:link:redirect"),
    "an unknown condition": says(500, condition="x:y"),
    "a huge condition": says(500, condition="x" * 5000),
}


@asynccontextmanager
async def answering(answer: Answering):  # type: ignore[no-untyped-def]
    """A broker of Service Bus; its management gives that answer to every request."""
    async with guarded() as (doorkeeper, broker):
        doorkeeper.server.on_attach = attach
        doorkeeper.server.on_transfer = lambda served, event: reply(
            doorkeeper, served, event, answer
        )
        yield broker


def attach(served: Served, attached: LinkAttached, session: object = "a") -> None:
    """Take a link; a receiver gets a message, and the session that it asks for or another."""
    source = attached.source
    if attached.we_send and source is not None and source.address == "orders":
        if FILTER in source.filters:
            properties = {LOCKED_UNTIL: ticks_of(real_date())}
            served.engine.accept(attached.link, filters={FILTER: session}, properties=properties)
        else:
            take(served, attached)
        served.engine.send(attached.link, TOKEN, ONE)
    else:
        take(served, attached)


def reply(
    doorkeeper: Doorkeeper, served: Served, event: TransferReceived, answer: Answering
) -> None:
    target = served.links[event.link].target
    address = "" if target is None else target.address or ""
    if not address.endswith("$management"):
        doorkeeper.take(served, event)
        return
    accept(served, event)
    said = answer(parse_request(event.payload))
    if said is None:
        return
    payload = build_reply(said) if isinstance(said, Reply) else said
    links = [
        link
        for link, each in served.links.items()
        if each.we_send and each.source is not None and each.source.address == address
    ]
    served.engine.send(links[-1], b"tag", payload, settled=True)


async def result_of(call: Callable[[], Awaitable[Any]], name: str = "") -> Any:
    """The result of a call, or its error; an error that isn't a broker's is raised."""
    try:
        with trio.fail_after(0.1 if name in SILENT else ENOUGH):
            return await call()
    except (BrokerError, trio.TooSlowError) as error:
        found = error
    assert not isinstance(found, InternalError)
    return found


def is_error(found: Any) -> bool:
    return isinstance(found, BrokerError | trio.TooSlowError)


@pytest.mark.parametrize("name", ANSWERS)
async def test_each_request_to_management_ends_with_an_error_or_a_value_that_fits(
    name: str,
) -> None:
    async with answering(ANSWERS[name]) as broker:
        peeked = await result_of(lambda: broker.peek(ORDERS, from_sequence=9, limit=3), name)
        scheduled = await result_of(
            lambda: broker.schedule(ORDERS, [Message(scheduled=real_date())] * 2), name
        )
        listed = await result_of(lambda: broker.list_sessions(ORDERS, top=10), name)
        cancelled = await result_of(lambda: broker.cancel_scheduled(ORDERS, [1]), name)

    if not is_error(peeked):
        assert len(peeked) <= 3
        assert all(each.sequence_number >= 9 for each in peeked)
    assert is_error(scheduled)
    assert is_error(listed) or len(listed) <= 10
    assert is_error(cancelled) or cancelled is None


@pytest.mark.parametrize("name", ANSWERS)
async def test_each_request_for_a_locked_message_ends_with_an_error_or_a_value_that_fits(
    name: str,
) -> None:
    async with answering(ANSWERS[name]) as broker, broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(PATIENCE):
            [delivery] = await receiver.receive(1)
        renewed = await result_of(lambda: receiver.renew(delivery), name)
        deferred = await result_of(lambda: receiver.receive_deferred([3, 4]), name)
        large = Defer(properties={"a": "x" * 50_000})
        settled = await result_of(lambda: receiver.settle(delivery, large), name)

    assert is_error(renewed) or isinstance(renewed, datetime)
    assert is_error(deferred) or [each.sequence_number for each in deferred] == [3, 4]
    assert is_error(settled) or settled is None
    if name in SILENT:
        assert isinstance(settled, OutcomeUnknown | trio.TooSlowError)


@pytest.mark.parametrize("name", ANSWERS)
async def test_each_request_for_a_session_ends_with_an_error_or_a_value_that_fits(
    name: str,
) -> None:
    async with answering(ANSWERS[name]) as broker, broker.open_session(ORDERS, "a") as session:
        renewed = await result_of(session.renew_session, name)
        state = await result_of(session.get_state, name)
        stored = await result_of(lambda: session.set_state(b"new"), name)

    assert is_error(renewed) or isinstance(renewed, datetime)
    assert is_error(state) or isinstance(state, bytes | None)
    assert is_error(stored) or stored is None


@pytest.mark.parametrize("session", ["b", None, 5, b"a", ["a"]], ids=repr)
async def test_a_session_that_was_not_asked_for_is_never_taken_for_the_one_that_was(
    session: object,
) -> None:
    async with guarded() as (doorkeeper, broker):
        doorkeeper.server.on_attach = lambda served, link: attach(served, link, session)

        async def open_it() -> None:
            async with broker.open_session(ORDERS, "a"):
                pass

        found = await result_of(open_it)

    assert isinstance(found, InvalidRequest | Unavailable)


@pytest.mark.parametrize("what", ["detaches", "ends"])
async def test_a_settlement_without_its_own_answer_is_never_called_done(what: str) -> None:
    def settle(served: Served, event: Any) -> None:
        if what == "detaches":
            served.detach_all(AmqpError(condition="amqp:internal-error", description="x"))
        else:
            served.connection.engine.close()

    async with guarded() as (doorkeeper, broker):
        doorkeeper.server.on_attach = attach
        doorkeeper.server.on_settle = settle
        async with broker.open_receiver(ORDERS) as receiver:
            with trio.fail_after(ENOUGH):
                [delivery] = await receiver.receive(1)
            found = await result_of(lambda: receiver.settle(delivery, Complete()))

    assert isinstance(found, OutcomeUnknown | LockLost | trio.TooSlowError)
