"""Spans: one for each operation on a namespace, with links to the contexts of its messages."""

import inspect
import random
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.capabilities import SettlesMany
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityNotFound
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Message, Settlement
from gateway.extensions.traces.export import TraceExport
from gateway.extensions.traces.spans import SpanInterceptor, SpanMaker, creation_context
from gateway.interception.broker import InterceptedBroker
from gateway.offering import required
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.brokers.pairs import pair_of, syphon_of
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker
from tests.harness.patience import PATIENCE
from tests.harness.promtool import ROOT
from tests.trace_contexts import TRACE_CONTEXT, TRACEPARENT

ORDERS = EntityPath("orders")
TRACE_ID = int(TRACEPARENT.split("-")[1], 16)
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_metrics_and_spans_follow_one_version_of_the_conventions() -> None:
    found = re.findall(r"V(\d+)_(\d+)_0", inspect.getsource(TraceExport))
    pages = [
        ROOT / "docs" / page
        for page in ("reference/metrics.md", "how-to/operate/trace-messages.md")
    ]

    assert found == [("1", "44")]
    for page in pages:
        named = re.findall(r"(?:version|OpenTelemetry) (1\.\d+)", page.read_text())
        assert set(named) == {"1.44"}, page


@attrs.define(eq=False)
class Recorded:
    """Spans of brokers, in the order of their ends."""

    exporter: InMemorySpanExporter = attrs.field(factory=InMemorySpanExporter)
    provider: TracerProvider = attrs.field(factory=lambda: TracerProvider(shutdown_on_exit=False))

    def __attrs_post_init__(self) -> None:
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def around(self, broker: Broker, address: str = "") -> InterceptedBroker:
        tracer = self.provider.get_tracer("test")
        spans = SpanMaker(tracer=tracer, system="pairgate", address=address)
        return InterceptedBroker(broker, [SpanInterceptor(spans)])

    def take(self) -> list[ReadableSpan]:
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found


@pytest.fixture
def spans() -> Recorded:
    return Recorded()


@pytest.fixture
async def store() -> MemoryBroker:
    broker = MemoryBroker(VirtualClock(), random.Random(0))
    await broker.create_queue(ORDERS, QueueProperties())
    return broker


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


async def test_a_send_is_a_span_with_a_link_to_the_context_of_its_message(
    store: MemoryBroker, spans: Recorded
) -> None:
    message = Message(message_id="m1", body=b"secret", properties=TRACE_CONTEXT)

    await spans.around(store, "broker.example.net:5671").send(ORDERS, [message])

    (span,) = spans.take()
    assert (span.name, span.kind, span.parent) == ("send orders", SpanKind.CLIENT, None)
    assert span.status.status_code is StatusCode.UNSET
    assert linked(span) == [TRACE_ID]
    assert span.links[0].context.trace_state.get("congo") == "t61rcWkgMzE"
    assert attributes(span) == {
        "messaging.system": "pairgate",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": "m1",
        "server.address": "broker.example.net",
        "server.port": 5671,
    }
    async with store.open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
    assert delivery.message.properties == TRACE_CONTEXT


async def test_a_batch_has_its_size_and_a_link_for_each_context(
    store: MemoryBroker, spans: Recorded
) -> None:
    contexts = [TRACE_CONTEXT, {}, {"traceparent": OTHER}, {"traceparent": "nonsense"}]

    await spans.around(store).send(ORDERS, [Message(properties=each) for each in contexts])

    (span,) = spans.take()
    assert linked(span) == [TRACE_ID, int(OTHER.split("-")[1], 16)]
    assert attributes(span)["messaging.batch.message_count"] == len(contexts)
    assert "messaging.message.id" not in attributes(span)
    assert "server.address" not in attributes(span)


async def test_a_failed_send_is_an_error_with_its_kind(
    store: MemoryBroker, spans: Recorded
) -> None:
    with pytest.raises(EntityNotFound):
        await spans.around(store).send(EntityPath("nowhere"), [Message()])

    (span,) = spans.take()
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "EntityNotFound"
    assert span.events == ()


async def test_a_receive_is_a_span_if_messages_come(store: MemoryBroker, spans: Recorded) -> None:
    await store.send(ORDERS, [Message(properties=TRACE_CONTEXT)])
    async with spans.around(store).open_receiver(ORDERS) as receiver:
        await receiver.receive(10)
        with trio.move_on_after(0.01):
            await receiver.receive(10)

    (span,) = spans.take()
    assert (span.name, span.kind) == ("receive orders", SpanKind.CONSUMER)
    assert linked(span) == [TRACE_ID]
    assert attributes(span)["messaging.operation.type"] == "receive"
    assert attributes(span)["messaging.batch.message_count"] == 1


@pytest.mark.parametrize(
    ("settlement", "name"),
    [
        (Complete(), "complete"),
        (Abandon(), "abandon"),
        (DeadLetter(reason="why"), "dead_letter"),
        (Defer(), "defer"),
    ],
)
async def test_a_settlement_is_a_span_of_its_kind(
    settlement: Settlement, name: str, store: MemoryBroker, spans: Recorded
) -> None:
    await store.send(ORDERS, [Message(properties=TRACE_CONTEXT)])
    async with spans.around(store).open_receiver(ORDERS) as receiver:
        (delivery,) = await receiver.receive(1)
        spans.take()
        await receiver.settle(delivery, settlement)

    (span,) = spans.take()
    assert (span.name, span.kind) == (f"{name} orders", SpanKind.CLIENT)
    assert linked(span) == [TRACE_ID]
    assert attributes(span)["messaging.operation.type"] == "settle"


@pytest.mark.parametrize(
    ("second", "name"), [(Complete, "complete"), (Abandon, "settle")], ids=["one kind", "two"]
)
async def test_settlements_in_one_step_are_one_span(
    second: Callable[[], Settlement], name: str, store: MemoryBroker, spans: Recorded
) -> None:
    await store.send(ORDERS, [Message(), Message()])
    async with spans.around(store).open_receiver(ORDERS) as receiver:
        first, other = await receiver.receive(2)
        spans.take()
        settle_many = required(receiver, SettlesMany).settle_many
        assert await settle_many([(first, Complete()), (other, second())]) == [None, None]

    (span,) = spans.take()
    assert span.name == f"{name} orders"


async def test_an_outage_and_the_way_home_are_spans_that_link_to_the_send(
    store: MemoryBroker, spans: Recorded
) -> None:
    clock = VirtualClock()
    secondary = MemoryBroker(clock, random.Random(1))
    primary = FaultyBroker(inner=store)
    seen, source = spans.around(primary), spans.around(secondary)
    async with trio.open_nursery() as nursery:
        await nursery.start(primary.run)
        async with pair_of(seen, source, clock, failover_interval=0.0) as pair:
            primary.crash()
            await pair.broker.send(ORDERS, [Message(message_id="m1", properties=TRACE_CONTEXT)])
            away = [span for span in spans.take() if linked(span) == [TRACE_ID]]
            primary.restart()
            async with trio.open_nursery() as moving:
                moving.start_soon(syphon_of(seen, source, clock).run)
                async with store.open_receiver(ORDERS) as receiver:
                    with trio.fail_after(PATIENCE):
                        await receiver.receive(1)
                        home = list[ReadableSpan]()
                        while not any(span.name.startswith("complete ") for span in home):
                            home += spans.take()
                            await trio.lowlevel.checkpoint()
                moving.cancel_scope.cancel()
        nursery.cancel_scope.cancel()

    assert [attributes(span).get("error.type") for span in away] == ["Unreachable", None]
    assert away[0].name == "send orders"
    assert away[1].name.startswith("send east/x-servicebus-transfer/")
    moved = {span.name.split()[0]: span for span in home if linked(span) == [TRACE_ID]}
    assert set(moved) == {"receive", "send", "complete"}
    assert moved["send"].name == "send orders"
    assert all(span.parent is None for span in (*away, *moved.values()))


@pytest.mark.parametrize(
    "properties",
    [{}, {"traceparent": 7}, {"traceparent": ""}, {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"}],
)
def test_an_invalid_context_has_no_link(properties: dict[str, Any]) -> None:
    assert creation_context(Message(properties=properties)) is None


def test_the_older_name_of_azures_sdks_is_a_context_too() -> None:
    found = creation_context(Message(properties={"Diagnostic-Id": TRACEPARENT}))

    assert found is not None
    assert found.trace_id == TRACE_ID
