"""Single rules of the wire for RabbitMQ's own clients, with pika before a real RabbitMQ."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import trio
from pika.adapters.blocking_connection import BlockingChannel

from gateway.net.certs import write_certificates
from tests.e2e.rabbitmq_site import LOOK, Site, Sites, published, until_depth
from tests.harness.blocking import blocking
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import INSTALLED, RABBITMQ_4, Release, control

pytestmark = [pytest.mark.live, pytest.mark.slow]

LARGE = b"x" * 2 * 1024 * 1024  # more than a store takes by default
DURABLE = pika.BasicProperties(delivery_mode=2)
MADE = ("events", "orders", "their binding")
KEPT = 5  # messages of a consumer
TRACED = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "vendor=1",
}
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0"), ("set_vm_memory_high_watermark", "0.4")),
    "disk": (("set_disk_free_limit", "900000GB"), ("set_disk_free_limit", "1MB")),
}


@asynccontextmanager
async def confirming(here: Site, **how: Any) -> AsyncIterator[BlockingChannel]:
    """A channel with confirms, of a connection of its own."""
    connection = await blocking(partial(here.connect, **how))
    try:
        channel = await blocking(connection.channel)
        await blocking(channel.confirm_delivery)
        yield channel
    finally:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


async def test_a_policy_admits_an_application_that_starts_with_its_gateway_in_an_outage(
    sites: Sites, tmp_path: Path
) -> None:
    end = trio.Event()
    key = json.dumps(str(tmp_path / "password"))
    access = f'[[access]]\nname = "guest"\nkey = {{ file = {key} }}\nrights = ["Send"]'
    async with sites.open(more=access) as here:
        await here.broker.kill()
        await here.gateway.kill()
        await here.gateway.start()
        async with confirming(here) as channel:
            publish = partial(channel.basic_publish, "", "orders", b"new", DURABLE)
            await blocking(publish)
        end.set()
        refused = await published(here, "nobody", end, "wrong")
        await here.broker.start()
        await until_depth(here, 1)
        bodies = [body for _, body in await blocking(here.drained)]

    assert bodies == [b"new"]
    assert "320" in refused["error"]


def written(kept: Path) -> int:
    return len(json.loads(kept.read_text())["known"])


async def test_an_application_that_starts_after_its_gateway_was_killed_declares_what_it_had(
    sites: Sites, tmp_path: Path
) -> None:
    def declare(channel: BlockingChannel) -> None:
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "events", "order.#")

    key = json.dumps(str(tmp_path / "password"))
    access = f'[[access]]\nname = "guest"\nkey = {{ file = {key} }}\nrights = ["Send"]'
    async with sites.open(more=access) as here:
        async with confirming(here) as channel:
            await blocking(declare, channel)
        kept = here.gateway.folder / "var" / "rabbitmq.json"
        with trio.fail_after(PATIENCE):
            while not kept.exists() or written(kept) < len(MADE):  # noqa: ASYNC110 the gateway does
                await trio.sleep(LOOK)
        await here.broker.kill()
        await here.gateway.kill()
        await here.gateway.start()
        async with confirming(here) as channel:
            await blocking(declare, channel)
            publish = partial(channel.basic_publish, "events", "order.new", b"new", DURABLE)
            await blocking(publish)
        await here.broker.start()
        await until_depth(here, 1)
        bodies = [body for _, body in await blocking(here.drained)]

    assert bodies == [b"new"]


async def test_a_mandatory_publish_is_returned_by_the_broker_or_dead_lettered_after_the_outage(
    sites: Sites,
) -> None:
    def publish(body: bytes) -> None:
        channel.basic_publish("", "orders", body, DURABLE, mandatory=True)

    def stray() -> None:
        channel.basic_publish("amq.topic", "nobody", b"stray", DURABLE, mandatory=True)

    async with sites.open() as here, confirming(here) as channel:
        await blocking(publish, b"before")
        with pytest.raises(pika.exceptions.UnroutableError):
            await blocking(stray)
        await here.broker.kill()
        await blocking(publish, b"during")
        await blocking(stray)
        await here.mend()
        bodies = [body for _, body in await blocking(here.drained)]
        dead = await here.gateway.seen("dead_lettered")

    assert bodies == [b"before", b"during"]
    assert "NO_ROUTE" in json.dumps(dead)


async def test_headers_with_a_trace_context_are_the_producers_on_the_wire_and_after_an_outage(
    sites: Sites,
) -> None:
    def publish(body: bytes) -> None:
        properties = pika.BasicProperties(delivery_mode=2, headers=TRACED)
        channel.basic_publish("", "orders", body, properties)

    async with sites.open() as here, confirming(here) as channel:
        await blocking(publish, b"before")
        await here.broker.kill()
        await blocking(publish, b"during")
        await here.mend()
        await until_depth(here, 2)
        found = await blocking(here.drained)

    (first, before), (second, during) = found
    assert (before, during) == (b"before", b"during")
    assert first.headers == TRACED
    assert {name: second.headers.get(name) for name in TRACED} == TRACED  # beside the way's own


async def test_a_message_too_large_for_the_secondary_gets_a_nack_in_an_outage_alone(
    sites: Sites,
) -> None:
    def publish(body: bytes) -> None:
        channel.basic_publish("", "orders", body, DURABLE)

    async with sites.open() as here, confirming(here) as channel:
        await blocking(publish, LARGE)
        await here.broker.kill()
        with pytest.raises(pika.exceptions.NackError):
            await blocking(publish, LARGE)
        await blocking(publish, b"small")
        await here.mend()
        bodies = [body for _, body in await blocking(here.drained)]

    assert bodies == [LARGE, b"small"]


async def test_a_transaction_is_the_brokers_and_no_application_begins_one_in_an_outage(
    sites: Sites,
) -> None:
    def transact() -> None:
        with here.connect() as connection:
            channel = connection.channel()
            channel.tx_select()
            for body, end in ((b"no", channel.tx_rollback), (b"yes", channel.tx_commit)):
                channel.basic_publish("", "orders", body, DURABLE)
                end()

    def begin() -> None:
        connection = here.connect()
        with suppress(pika.exceptions.ConnectionWrongStateError), connection:
            connection.channel().tx_select()

    async with sites.open() as here:
        await blocking(transact)
        bodies = [body for _, body in await blocking(here.drained)]
        await here.broker.kill()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
            await blocking(begin)

    assert bodies == [b"yes"]
    assert refused.value.reply_code == 320


@pytest.mark.parametrize("release", [INSTALLED, RABBITMQ_4], ids=["RabbitMQ 3", "RabbitMQ 4"])
@pytest.mark.parametrize("kind", ALARMS)
async def test_an_alarm_holds_up_neither_publishers_nor_acknowledgements(
    sites: Sites, kind: str, release: Release
) -> None:
    blocked: list[object] = []

    def publish(count: int) -> None:
        connection = here.connect()
        connection.add_on_connection_blocked_callback(lambda *_: blocked.append(1))
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", "orders", b"%d" % number, DURABLE)
        connection.close()

    def consume() -> None:
        connection = here.connect()
        channel = connection.channel()
        deliveries = channel.consume("orders", inactivity_timeout=PATIENCE)
        for number, (method, _, _) in enumerate(deliveries, 1):
            channel.basic_ack(method.delivery_tag)
            if number == KEPT:
                break
        connection.close()

    begin, end = ALARMS[kind]
    async with sites.open(release) as here:
        await blocking(publish, KEPT)
        # A message that a stall has diverted comes home before the alarm: it holds up the syphon.
        await until_depth(here, KEPT)
        await control(here.broker, *begin)
        await blocking(publish, KEPT)
        await blocking(consume)
        left = await blocking(here.depth)
        await control(here.broker, *end)
        bodies: set[bytes] = set()
        with trio.fail_after(PATIENCE):
            while len(bodies) < KEPT:
                bodies |= {body for _, body in await blocking(here.drained)}

    assert not blocked
    # The publish by which the broker tells of its alarm: it may still take it, unconfirmed, so that
    # it comes from the backlog, too.
    assert left <= 1
    assert bodies == {b"%d" % number for number in range(KEPT)}


async def test_a_client_over_tls_publishes_and_consumes_through_an_outage(
    sites: Sites, tmp_path: Path
) -> None:
    folder = tmp_path / "tls"
    write_certificates(folder, now=datetime.now(UTC))
    context = ssl.create_default_context(cafile=folder / "ca.pem")

    options = pika.SSLOptions(context, "localhost")

    def publish(body: bytes) -> None:
        channel.basic_publish("", "orders", body, DURABLE)

    def consume() -> list[bytes]:
        bodies = []
        for method, _, body in channel.consume("orders", inactivity_timeout=PATIENCE):
            channel.basic_ack(method.delivery_tag)
            bodies.append(body)
            if len(bodies) == 2:
                break
        channel.cancel()
        return bodies

    files = f'certificate = "{folder / "server.pem"}", key = "{folder / "server.key"}"'
    tls = f"tls = {{ {files} }}"
    async with (
        sites.open(more=tls) as here,
        confirming(here, ssl_options=options) as channel,
    ):
        await blocking(publish, b"before")
        await here.broker.kill()
        await blocking(publish, b"during")
        await here.mend()
        await until_depth(here, 2)
        bodies = await blocking(consume)

    assert bodies == [b"before", b"during"]
