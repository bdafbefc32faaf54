"""Messages come home from an outage as they were sent: every type, every size up to the limit."""

import re
import signal
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import attrs
import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import reserve
from gateway.domain.errors import MessageTooLarge
from gateway.domain.message import (
    AcceptedBy,
    DataBody,
    Described,
    Kind,
    Message,
    ReceiveMode,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from gateway.domain.topics.property_values import id_text
from gateway.ports import Broker
from gateway.wire.amqp.message import encoded_size
from gateway.wire.servicebus.operations import MAX_LIMIT
from tests.brokers.servicebus.served import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import KEY, KEY_NAME, request, send
from tests.harness.patience import PATIENCE
from tests.strategies import drawn_messages

pytestmark = pytest.mark.slow

ORDERS = EntityPath("orders")
BACKLOG = [backlog.queue_name("east", index) for index in range(2)]
LARGEST = 1024 * 1024  # bytes: what a namespace takes by default
SMALL = 1000  # messages of a batch: with their envelopes more than half a mebibyte
LONGEST_ID = 128  # characters, as Service Bus
NUMBER = "number"  # the property that tells messages apart here

VALUES = [
    None,
    True,
    False,
    -(2**63),
    2**63 - 1,
    1.5,
    "",
    "\u00e4\U0001f600\x00",
    b"",
    bytes(range(256)),
    uuid.UUID(int=7),
    datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
    *(Typed(kind, 7) for kind in (Kind.UBYTE, Kind.USHORT, Kind.UINT, Kind.ULONG)),
    *(Typed(kind, -7) for kind in (Kind.BYTE, Kind.SHORT, Kind.INT)),
    Typed(Kind.FLOAT, 0.5),
    Typed(Kind.CHAR, "\U0001f600"),
    Typed(Kind.DECIMAL32, b"1234"),
    Typed(Kind.DECIMAL64, b"12345678"),
    Typed(Kind.DECIMAL128, b"1234567812345678"),
    Typed(Kind.TIMESTAMP, 2**63 - 1),
    symbol("s"),
    [],
    ["list", 1, [None]],
    {},
    {"map": 1, symbol("s"): {"inner": b"\x00"}},
    Typed(Kind.ARRAY, (1, 2)),
    Typed(Kind.ARRAY, (symbol("a"), symbol("b"))),
    Described(symbol("com.microsoft:timespan"), 2**62),
]
BODIES = [
    b"",
    bytes(range(256)) * 16,
    DataBody((b"one", b"", b"two")),
    SequenceBody(((1, "two"), (), (None,))),
]


@attrs.frozen(kw_only=True)
class Installation:
    """Two brokers and a gateway before them; `pair` and `home` are clients of two of them."""

    primary: GatewayProcess
    gateway: GatewayProcess
    pair: Broker
    home: Broker


@asynccontextmanager
async def installed(gateways: Gateways, namespace: str = "") -> AsyncIterator[Installation]:
    """`namespace`: a line of the gateway's configuration of both namespaces."""
    primary = gateways.prepare(broker_config(ORDERS.name), name="primary")
    secondary = gateways.prepare(broker_config(*map(str, BACKLOG)), name="secondary")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(primary.start)
        nursery.start_soon(secondary.start)
    config = pair_config(primary.address, secondary.address, backlog_queues=len(BACKLOG))
    config = re.sub("^url = .*$", rf"\g<0>\n{namespace}", config, flags=re.MULTILINE)
    gateway = await gateways.start(config, name="gateway")
    async with (
        client(gateway.port, key_name=KEY_NAME, key=KEY) as pair,
        client(primary.port, key_name=KEY_NAME, key=KEY) as home,
    ):
        yield Installation(primary=primary, gateway=gateway, pair=pair, home=home)


async def encrypt_from_now_on(gateway: GatewayProcess) -> None:
    gateway.config_file.write_text(gateway.config.replace("[pairing]", "[pairing]\nencrypt = true"))
    gateway.signal(signal.SIGHUP)
    await gateway.seen("reloaded", needs_restart="")


async def take(broker: Broker, wanted: int) -> list[Message]:
    taken: list[Message] = []
    with trio.fail_after(PATIENCE):
        async with broker.open_receiver(ORDERS, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            while len(taken) < wanted:
                deliveries = await receiver.receive(wanted - len(taken))
                taken += [delivery.message for delivery in deliveries]
    return taken


def numbered(messages: Sequence[Message]) -> list[Message]:
    return [
        attrs.evolve(message, properties={**message.properties, NUMBER: number})
        for number, message in enumerate(messages)
    ]


def by_number(messages: Sequence[Message]) -> dict[object, Message]:
    return {message.properties.get(NUMBER): message for message in messages}


def at_home(message: Message) -> Message:
    """
    Return the message with those fields replaced that a diversion may change.

    A session is the partition key; the remaining time to live is judged by itself; the absolute
    expiry says the same once more, and isn't brought back.
    """
    return attrs.evolve(
        message,
        partition_key=None if message.session_id is not None else message.partition_key,
        time_to_live=None,
        absolute_expiry=None,
    )


def of_size(size: int, **fields: object) -> Message:
    """A message of exactly `size` bytes, encoded."""
    message = Message(message_id="large", body=b"\xff" * (size - 100), **fields)
    missing = size - encoded_size(message)
    exact = attrs.evolve(message, body=b"\xff" * (size - 100 + missing))
    assert encoded_size(exact) == size
    return exact


async def answer_to(broker: Broker, message: Message) -> str:
    """Send the message; return the namespace that accepted it, or the text of its refusal."""
    try:
        accepted_by = await send_accepted_by(broker, ORDERS, [message])
    except MessageTooLarge as error:
        return str(error)
    return accepted_by.value


async def test_every_message_comes_home_from_an_outage_as_it_was_sent(gateways: Gateways) -> None:
    drawn = [
        attrs.evolve(each, scheduled=None, time_to_live=None)
        for each in drawn_messages(60)
        if len(id_text(each.message_id) or "") <= LONGEST_ID
    ]
    by_type = [Message(properties={"v": value}, body=ValueBody(value)) for value in VALUES]
    by_type += [Message(body=body) for body in BODIES]
    dated = [
        Message(time_to_live=timedelta(hours=1)),
        Message(session_id="s", scheduled=datetime(2026, 1, 1, tzinfo=UTC)),
    ]
    # Each once as it is, and once encrypted.
    sent = numbered([*drawn, *by_type, *dated] * 2)
    half = len(sent) // 2
    async with installed(gateways) as installation:
        await installation.primary.kill()
        accepted_by = [
            await send_accepted_by(installation.pair, ORDERS, [message]) for message in sent[:half]
        ]
        await encrypt_from_now_on(installation.gateway)
        accepted_by += [
            await send_accepted_by(installation.pair, ORDERS, [message]) for message in sent[half:]
        ]
        plain = await send(installation.gateway.address, ORDERS.name, bytes(range(256)))
        await installation.primary.start()
        taken = by_number(await take(installation.pair, len(sent) + 1))

    assert set(accepted_by) == {AcceptedBy.BACKLOG}
    assert plain == (201, "backlog")
    assert taken[None].body == bytes(range(256))
    for number, message in enumerate(sent):
        made = taken[number].message_id if message.message_id is None else message.message_id
        assert made is not None
        assert at_home(taken[number]) == attrs.evolve(at_home(message), message_id=made)
    for number in (half - 2, len(sent) - 2):
        left = taken[number].time_to_live
        assert left is not None
        assert timedelta(minutes=55) < left <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("limit", "namespace"),
    # the primary's, or the gateway's of both: backlog queues take the envelope on top
    [(LARGEST, ""), (64 * 1024, 'max_message_size = "64KiB"')],
)
async def test_an_outage_takes_the_sizes_that_health_takes(
    gateways: Gateways, limit: int, namespace: str
) -> None:
    sizes = [of_size(limit + more, properties={NUMBER: more}) for more in (-1, 0, 1)]
    async with installed(gateways, namespace) as installation:
        healthy = [await answer_to(installation.pair, message) for message in sizes]
        await installation.primary.kill()
        diverted = [await answer_to(installation.pair, message) for message in sizes]
        await encrypt_from_now_on(installation.gateway)
        encrypted = [await answer_to(installation.pair, message) for message in sizes]
        status, _, text = await request(
            installation.gateway.address, "POST", "/orders/messages", b"x" * limit
        )
        await installation.primary.start()
        taken = await take(installation.pair, 6)

    refusal = f"message of {limit + 1} bytes; the pair accepts {limit}"
    assert healthy[:2] == ["primary", "primary"]
    assert f"message of {limit + 1} bytes" in healthy[2]
    assert diverted == encrypted == ["backlog", "backlog", refusal]
    assert status == 413
    assert str(limit).encode() in text
    expected = [sizes[0]] * 3 + [sizes[1]] * 3
    assert sorted(taken, key=lambda message: message.properties[NUMBER]) == expected


async def test_a_broker_takes_a_message_of_its_limit_and_no_more(gateways: Gateways) -> None:
    broker = await gateways.start(broker_config(ORDERS.name))
    async with client(broker.port, key_name=KEY_NAME, key=KEY) as home:
        answers = [await answer_to(home, of_size(LARGEST + more)) for more in (-1, 0, 1)]
        status, _, text = await request(broker.address, "POST", "/orders/messages", b"x" * LARGEST)
        taken = await take(home, 2)

    assert answers[:2] == ["primary", "primary"]
    assert f"{LARGEST + 1}" in answers[2]
    assert f"{LARGEST}" in answers[2]
    assert status == 413
    assert str(LARGEST).encode() in text
    assert taken == [of_size(LARGEST - 1), of_size(LARGEST)]


async def test_a_broker_takes_a_batch_of_as_many_messages_as_may_be(gateways: Gateways) -> None:
    batch = [Message(message_id=str(number)) for number in range(MAX_LIMIT)]
    broker = await gateways.start(broker_config(ORDERS.name))
    async with client(broker.port, key_name=KEY_NAME, key=KEY) as home:
        await home.send(ORDERS, batch)
        info = await home.inspect(ORDERS)
        first = await take(home, 1)

    assert info.active == MAX_LIMIT
    assert first == batch[:1]


async def test_full_batches_come_home_from_an_outage(gateways: Gateways) -> None:
    largest = LARGEST - reserve(ORDERS, Message())
    small = numbered([Message(message_id=str(n), body=b"") for n in range(SMALL)])
    large = [of_size(largest, properties={NUMBER: SMALL + n}) for n in range(4)]
    async with installed(gateways) as installation:
        await installation.primary.kill()
        accepted_by = [
            await send_accepted_by(installation.pair, ORDERS, batch) for batch in (small, large)
        ]
        await installation.primary.start()
        taken = await take(installation.pair, SMALL + 4)

    assert accepted_by == [AcceptedBy.BACKLOG] * 2
    assert len(taken) == len(by_number(taken))
    assert by_number(taken) == by_number([*small, *large])
