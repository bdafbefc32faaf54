"""A client receives the bytes that another client sent: straight, and by a detour."""

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.entity import QueueProperties
from gateway.domain.message import Message
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.ports import Broker
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.message import encode_message, encode_sorted
from gateway.wire.amqp.messages.sections import split_sections
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from gateway.wire.servicebus.sas import sign_sas
from tests.brokers.kinds import real_date
from tests.brokers.pairs import pair_of, syphon_of
from tests.frontends.amqp.encodings import widened
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import KEY, ORDERS, POLICIES, ROOT
from tests.harness.faults import FaultyBroker
from tests.harness.patience import PATIENCE
from tests.strategies import drawn_messages
from tests.trace_contexts import TRACE_CONTEXT

pytestmark = pytest.mark.slow

BODY_AND_FOOTER = (0x75, 0x76, 0x77, 0x78)  # the codes of their sections
BARE = (0x73, 0x74, *BODY_AND_FOOTER)


def drawn() -> dict[bytes, Message]:
    """Messages of all shapes, the same in each run, by three encodings of each."""
    found = drawn_messages(80)
    found.append(Message(body=b"traced", properties=TRACE_CONTEXT))
    shapes = [
        lambda payload: payload,
        partial(widened, by_name=False),
        partial(widened, by_name=True),
    ]
    # Other tests judge the fields that say when a message goes, and for how long it lives.
    plain = [
        attrs.evolve(each, scheduled=None, time_to_live=None, absolute_expiry=None)
        for each in found
    ]
    numbered = (
        (shape, attrs.evolve(message, message_id=f"{number}-{kind}"))
        for number, message in enumerate(plain)
        for kind, shape in enumerate(shapes)
    )
    return {shape(encode_message(message)): message for shape, message in numbered}


def bytes_of(payload: bytes, *codes: int) -> bytes:
    sections = split_sections(payload)
    return b"".join(payload[start:end] for code, start, end, _ in sections if code in codes)


def values_of(message: Message) -> bytes:
    """
    All that it says besides the body, written so that other types make other bytes.

    A session is the partition key as well, as Service Bus has it.
    """
    fields = attrs.asdict(message, recurse=False, filter=lambda field, _: field.eq)
    assert fields.pop("time_to_live") is None
    del fields["body"]
    if message.session_id is not None:
        del fields["partition_key"]
    maps = ("properties", "annotations", "footer")
    return encode_sorted({**fields, **{name: dict(fields[name]) for name in maps}})


@asynccontextmanager
async def gateway_on(broker: Broker) -> AsyncIterator[Sdk]:
    async with trio.open_nursery() as nursery:
        leases = Leases(broker, real_date)
        await nursery.start(leases.run)
        frontend = AmqpFrontend(
            broker=broker,
            leases=leases,
            authorizer=Authorizer(POLICIES, wall_clock=real_date),
            wall_clock=real_date,
        )
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(frontend.serve_connection, theirs)
        sdk = Sdk.on(ours)
        nursery.start_soon(sdk.run)
        await sdk.open()
        expires = int(real_date().timestamp()) + 3600
        await sdk.put_text(sign_sas("sb://localhost/", ROOT.name, KEY, expires))
        yield sdk
        nursery.cancel_scope.cancel()


async def send_all(sdk: Sdk, payloads: Iterable[bytes]) -> list[Any]:
    link = await sdk.sender()
    sent = [sdk.engine.send(link, b"%d" % n, payload) for n, payload in enumerate(payloads)]
    return [await sdk.outcome(delivery) for delivery in sent]


async def take_all(sdk: Sdk, wanted: int) -> list[bytes]:
    link = await sdk.receiver(credit=wanted)
    taken = []
    with trio.fail_after(PATIENCE):
        for _ in range(wanted):
            transfer = await sdk.delivery(link)
            taken.append(transfer.payload)
            assert await sdk.settle(transfer, amqp.ACCEPTED) == amqp.ACCEPTED
    return taken


async def test_a_message_that_goes_straight_through_is_the_same_byte_for_byte(
    tmp_path: Path,
) -> None:
    payloads = drawn()
    async with EmbeddedBroker(tmp_path / "a.db", real_date, random.Random(0)) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
        async with gateway_on(broker) as sdk:
            outcomes = await send_all(sdk, payloads)
            taken = await take_all(sdk, len(payloads))

    assert set(outcomes) == {amqp.ACCEPTED}
    for before, after in zip(payloads, taken, strict=True):
        assert bytes_of(after, *BARE) == bytes_of(before, *BARE)
        assert values_of(decode_delivery(after).message) == values_of(payloads[before])


async def test_a_message_that_makes_a_detour_through_the_backlog_comes_home_with_every_type(
    tmp_path: Path,
) -> None:
    payloads = drawn()
    async with AsyncExitStack() as stack:
        sides = [
            await stack.enter_async_context(
                EmbeddedBroker(tmp_path / f"{name}.db", real_date, random.Random(0))
            )
            for name in ("primary", "secondary")
        ]
        await sides[0].create_queue(ORDERS, QueueProperties())
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        primary = FaultyBroker(inner=sides[0])
        await nursery.start(primary.run)
        pair = await stack.enter_async_context(
            pair_of(primary, sides[1], real_date, failover_interval=0.0)
        )
        sdk = await stack.enter_async_context(gateway_on(pair.broker))
        primary.crash()
        outcomes = await send_all(sdk, payloads)
        diverted = sum([each.active for each in await sides[1].list_queues()])
        primary.restart()
        nursery.start_soon(syphon_of(primary, sides[1], real_date).run)
        taken = await take_all(sdk, len(payloads))

    assert set(outcomes) == {amqp.ACCEPTED}
    assert diverted == len(payloads)
    by_id = {decode_delivery(each).message.message_id: each for each in taken}
    for before, message in payloads.items():
        after = by_id[message.message_id]
        assert bytes_of(after, *BODY_AND_FOOTER) == bytes_of(before, *BODY_AND_FOOTER)
        assert values_of(decode_delivery(after).message) == values_of(message)
