"""Spans of a gateway as an OTLP collector gets them, and a gateway whose collector hangs."""

import json

import pytest
import trio
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.processes import Gateways, broker_config
from tests.e2e.rest import KEY, KEY_NAME
from tests.e2e.workers import Connection
from tests.extensions.traces.collector import collecting
from tests.harness.patience import PATIENCE
from tests.trace_contexts import TRACEPARENT

pytestmark = pytest.mark.slow

SENDS = 100  # that each waited for the exporter would take longer than the patience of this test


def value(span: Span, name: str) -> str:
    return next(each.value.string_value for each in span.attributes if each.key == name)


async def test_a_collector_gets_the_spans_one_that_hangs_delays_nothing_and_no_secret_is_told(
    gateways: Gateways,
) -> None:
    async with collecting() as collector:
        traces = f'[traces]\nendpoint = "http://127.0.0.1:{collector.port}/v1/traces"\n'
        service = 'service_name = "orders-gateway"\n'
        gateways.environments["traced"] = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
        gateway = await gateways.start(broker_config("orders") + traces + service, name="traced")
        connection = Connection(gateway.address, KEY_NAME, KEY)
        context = {"traceparent": f'"{TRACEPARENT}"', "Secret": '"shown to nobody"'}

        answer = await connection.ask("POST", "/orders/messages", b"a body", headers=context)
        assert answer.status == 201
        taken = await connection.ask("DELETE", "/orders/messages/head?timeout=10")
        assert taken.headers.get("traceparent") == context["traceparent"]
        with trio.fail_after(PATIENCE):
            await collector.has(2)

        stranger = Connection(gateway.address, KEY_NAME, "a wrong key")
        assert (await stranger.ask("POST", "/orders/messages", b"a body")).status == 401
        await stranger.aclose()

        collector.hangs, collector.asked = True, trio.Event()
        await connection.ask("POST", "/orders/messages", b"a body")
        with trio.fail_after(PATIENCE):
            await collector.asked.wait()
        with trio.fail_after(PATIENCE):
            for _ in range(SENDS):
                assert (await connection.ask("POST", "/orders/messages", b"x")).status == 201
        await gateway.seen("traces_not_exported")
        await connection.aclose()
        assert await gateway.stop() == 0

    send, receive = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)[:2]
    assert (send.name, receive.name) == ("send orders", "receive orders")
    for span in (send, receive):
        assert [link.trace_id.hex() for link in span.links] == [TRACEPARENT.split("-")[1]]
        assert [link.span_id.hex() for link in span.links] == [TRACEPARENT.split("-")[2]]
        assert span.parent_span_id == b""
        assert span.end_time_unix_nano >= span.start_time_unix_nano
        assert value(span, "messaging.system") == "pairgate"
    resource = collector.received[0].resource
    names = {each.key: each.value.string_value for each in resource.attributes}
    assert names["service.name"] == "orders-gateway"
    assert collector.received[0].scope_spans[0].schema_url.endswith("/1.44.0")
    exported = b"".join(each.SerializeToString() for each in collector.received)
    assert b"a body" not in exported
    assert b"shown to nobody" not in exported
    log = json.dumps([gateway.log, gateway.garbage])
    for hidden in ("a body", "shown to nobody", KEY, "a wrong key", "SharedAccessSignature"):
        assert hidden not in log
    assert gateway.count("credentials_refused") == 1
