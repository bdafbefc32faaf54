"""Wall clocks of processes that are wrong by years: what was accepted outlives them."""

import base64
import http.client
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.answers import parse_response
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.signing import signed
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config
from tests.harness.patience import PATIENCE
from tests.harness.wall_clock import WallClock

pytestmark = pytest.mark.slow

YEARS: Final = 15 * 365 * 86_400.0  # seconds: before this program was built
ORDERS: Final = EntityPath("orders")
STORAGE: Final = '[[endpoints]]\nprotocol = "storage-queue"\nbind = "127.0.0.1:0"\n'
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = base64.b64decode(
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@pytest.fixture
def clock(gateways: Gateways, tmp_path: Path) -> WallClock:
    """The wall clock of the process `broker`."""
    clock = WallClock(tmp_path / "clock")
    gateways.environments["broker"] = clock.environment
    return clock


@pytest.mark.parametrize("stepped", ["while it runs", "while it is down"])
async def test_a_message_that_a_machine_without_a_battery_accepted_outlives_a_restart(
    gateways: Gateways, clock: WallClock, stepped: str
) -> None:
    await clock.step(-YEARS)
    broker = await gateways.start(broker_config("orders"), name="broker")
    mortal = Message(message_id="a", body=b"x", time_to_live=timedelta(minutes=10))
    async with client(broker) as sender:
        await sender.send(ORDERS, [mortal])
        if stepped == "while it runs":
            await clock.step(0.0)
            await sender.send(ORDERS, [attrs.evolve(mortal, message_id="b")])
    await broker.kill()
    await clock.step(0.0)
    await broker.start()
    async with client(broker) as sender:
        await sender.send(ORDERS, [attrs.evolve(mortal, message_id="c")])
        found = await sender.peek(ORDERS, limit=9)

    names = [each.message.message_id for each in found]
    assert names == (["a", "b", "c"] if stepped == "while it runs" else ["a", "c"])
    for each in found:
        assert each.expires is not None
        left = each.expires - datetime.now(UTC)
        assert timedelta() < left <= timedelta(minutes=10)


async def test_a_hidden_message_is_visible_again_although_the_clock_was_set_back_by_years(
    gateways: Gateways, clock: WallClock
) -> None:
    hidden = 5  # seconds
    config = broker_config("orders").partition("[[endpoints]]")[0] + STORAGE
    broker = await gateways.start(config, name="broker")
    await ask(broker, 0.0, storage.PutMessage(queue="orders", body=b"x"))
    taken = await ask(broker, 0.0, storage.GetMessages(queue="orders", limit=1, visibility=hidden))
    await clock.step(-YEARS)
    await broker.kill()
    await broker.start()
    again = storage.GetMessages(queue="orders", limit=1)
    with trio.fail_after(PATIENCE):
        while not await ask(broker, -YEARS, again):  # noqa: ASYNC110 of another process
            await trio.sleep(0.5)

    assert len(taken) == 1


async def ask(
    process: GatewayProcess, ahead: float, operation: storage.Operation
) -> tuple[storage.QueueMessage, ...]:
    """The messages that it answers with; the client's clock is so many seconds ahead."""
    date = format_http_date(datetime.now(UTC) + timedelta(seconds=ahead))
    request = build_request(operation)
    fields = {"Host": process.address, "x-ms-date": date, "x-ms-version": "2021-12-02"}
    headers = Headers.of([*fields.items(), *request.headers.items])
    request = attrs.evolve(request, headers=headers, target=f"/{ACCOUNT}{request.target}")
    request = signed(request, account=ACCOUNT, key=KEY)

    def exchange() -> Response:
        connection = http.client.HTTPConnection(process.address, timeout=PATIENCE)
        fields = dict(request.headers.items)
        connection.request(request.method, request.target, request.body, fields)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return Response(status=answer.status, headers=Headers.of(answer.getheaders()), body=content)

    found = parse_response(operation, await trio.to_thread.run_sync(exchange))
    assert isinstance(found, storage.Messages)
    return found.items
