"""
An ordered entity through outages, with real processes: messages arrive in the order of their sends.
"""

import re
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import attrs
import pytest
import trio

from gateway.capabilities import Peeks
from gateway.changes import Changes
from gateway.checker.history import Run
from gateway.checker.operations import Acked, Found, Invoked, Place, Record, Unknown
from gateway.checker.order import order_kept
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete, Delivery
from gateway.offering import required
from gateway.pairing.order.lease import LEASE
from gateway.pairing.provision import provision
from tests.e2e.installation import client
from tests.e2e.processes import PATIENT, GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ORDERS = EntityPath("orders")
SECRET = "a secret of a cluster, for tests only"
REST_URL = re.compile(r"servicebus\+http://(\w+)@([0-9.:]+)")
AMQP_URL = r"servicebus:Endpoint=sb://\2/;SharedAccessKeyName=\1;UseDevelopmentEmulator=true"


async def test_messages_arrive_in_order_through_kills_of_the_primary_and_of_the_gateway(
    gateways: Gateways,
) -> None:
    primary, config = await namespaces(gateways)
    gateway = await gateways.start(config, name="gateway")
    numbers, ways = iter(range(1_000_000)), []

    async def send_some(count: int) -> None:
        for _ in range(count):
            status, way = await send(gateway.address, "orders", b"%d" % next(numbers))
            assert status == 201
            ways.append(way)

    async def send_until(way: str) -> None:
        with trio.fail_after(90.0):
            while not ways or ways[-1] != way:
                await send_some(1)

    await send_until("primary")
    await primary.kill()
    await send_until("backlog")
    await send_some(20)
    await primary.start()
    await send_until("primary")
    await primary.kill()
    await send_until("backlog")
    await send_some(20)
    await gateway.kill()
    await gateway.start()
    await primary.start()
    await send_until("primary")

    received = await all_bodies(primary, next(numbers))
    assert list(dict.fromkeys(received)) == sorted(set(received))
    assert len(set(received)) == len(ways)


async def test_two_gateways_keep_the_order_when_one_that_had_the_lease_is_killed(
    gateways: Gateways,
) -> None:
    primary, config = await namespaces(gateways, order_lease="wait", send_timeout="30s")
    one = await gateways.start(config, name="one")
    other = await gateways.start(config, name="other")
    sent = 0

    async def send_one(gateway: GatewayProcess) -> str:
        nonlocal sent
        status, way = await send(gateway.address, "orders", b"%d" % sent, patience=60.0)
        assert status == 201
        sent += 1
        return way

    assert [await send_one(each) for each in (one, other, one)] == ["primary"] * 3
    await primary.kill()
    assert [await send_one(each) for each in (one, other, other, one)] == ["backlog"] * 4
    await one.kill()
    await primary.start()
    assert await send_one(other) in {"primary", "backlog"}
    await one.start()
    ways = []
    with trio.fail_after(90.0):
        while ways[-2:] != ["primary"] * 2:
            ways += [await send_one(one), await send_one(other)]

    assert list(dict.fromkeys(await all_bodies(primary, sent))) == list(range(sent))


async def test_a_gateway_forwards_its_sends_to_the_orderer(gateways: Gateways) -> None:
    primary, one, other = await forwarding(gateways)
    ways = []
    for number in range(12):
        gateway = other if number % 3 else one
        status, way = await send(gateway.address, "orders", b"%d" % number, patience=60.0)
        assert status == 201
        ways.append(way)
        if number == 5:
            await primary.kill()

    assert ways == ["primary"] * 6 + ["backlog"] * 6
    assert (one.count("order_lease_taken"), other.count("order_lease_taken")) == (1, 0)
    await primary.start()
    assert list(dict.fromkeys(await all_bodies(primary, 12))) == list(range(12))


async def test_an_orderer_that_is_stopped_leaves_no_send_unknown(gateways: Gateways) -> None:
    primary, one, other = await forwarding(gateways)
    history = History()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.produce, "other", other)
        await history.acknowledged("other", 5)
        await one.stop()
        await history.acknowledged("other", history.numbers["other"] + 2)
        history.is_over = True

    taken = await other.seen("order_lease_taken")
    assert taken["seconds"] < LEASE  # it didn't wait for the last one's lease to run out
    copies = await history.find(primary)
    assert {number for body, number in copies.items() if body.startswith("other-")} == {1}


async def test_a_frozen_orderers_sends_are_not_out_of_order_once_it_goes_on(
    gateways: Gateways,
) -> None:
    primary, one, other = await forwarding(gateways)
    history = History()
    async with trio.open_nursery() as nursery:
        for name, gateway in (("one", one), ("also one", one), ("other", other)):
            nursery.start_soon(history.produce, name, gateway)
        for name in ("one", "also one", "other"):
            await history.acknowledged(name, 3)
        one.signal(signal.SIGSTOP)
        try:
            await other.seen("order_lease_taken")
            await history.acknowledged("other", history.numbers["other"] + 5)
        finally:
            one.signal(signal.SIGCONT)
        for name in ("one", "also one", "other"):
            await history.acknowledged(name, history.numbers[name] + 5)
        history.is_over = True

    await history.find(primary)
    assert order_kept(Run.of(history.records)).problems == ()


@attrs.define(eq=False)
class History:
    """The sends of producers, each of which sends a message until it is acknowledged."""

    records: list[Record] = attrs.field(factory=list)
    numbers: Counter[str] = attrs.field(factory=Counter)  # of acknowledged messages, by producer
    answers: Counter[int] = attrs.field(factory=Counter)  # by status; 0: there was none
    way: str = ""  # what accepted the last one
    is_over: bool = False
    changes: Changes = attrs.field(factory=Changes)

    async def produce(self, name: str, gateway: GatewayProcess) -> None:
        while not self.is_over:
            if await self._send(gateway, f"{name}-{self.numbers[name]}"):
                self.numbers[name] += 1
                self.changes.note()

    async def acknowledged(self, name: str, number: int) -> None:
        with trio.fail_after(120.0):
            while self.numbers[name] < number:
                await self.changes.wait_next()

    async def sent_to(self, way: str) -> None:
        """Return when the last message was accepted so."""
        with trio.fail_after(120.0):
            while self.way != way:
                await self.changes.wait_next()

    async def _send(self, gateway: GatewayProcess, body: str) -> bool:
        at, order = trio.current_time(), "the only key"
        self.records.append(
            Invoked(at=at, message_id=body, entity=ORDERS.key, fingerprint="", order=order)
        )
        status = 0
        with suppress(OSError):
            status, self.way = await send(gateway.address, "orders", body.encode(), patience=60.0)
        self.answers[status] += 1
        kind = Acked if status == 201 else Unknown
        self.records.append(kind(at=trio.current_time(), message_id=body))
        return status == 201

    @property
    def acked(self) -> set[str]:
        """The acknowledged messages."""
        return {each.message_id for each in self.records if isinstance(each, Acked)}

    async def find(self, primary: GatewayProcess) -> Counter[str]:
        """
        Note the messages on the primary once all acknowledged ones are there; return the number of
        copies of each.
        """
        acked, copies = self.acked, Counter[str]()
        async with client(primary) as broker:
            with trio.move_on_after(90.0):
                while acked - copies.keys():
                    found = await all_in(required(broker, Peeks))
                    copies = Counter(bytes(each.message.body).decode() for each in found)
                    await trio.sleep(0.1)
        assert not acked - copies.keys(), "lost"
        for each in found:
            self.records.append(
                Found(
                    at=trio.current_time(),
                    place=Place.PRIMARY,
                    queue=ORDERS.key,
                    message_id=bytes(each.message.body).decode(),
                    copy=str(each.sequence_number),
                )
            )
        return copies


async def all_in(peeks: Peeks) -> Sequence[Delivery]:
    """The messages of the entity: one peek returns a limited number."""
    found: list[Delivery] = []
    since = 0
    while part := await peeks.peek(ORDERS, from_sequence=since, limit=1000):
        found += part
        since = (part[-1].sequence_number or 0) + 1
    return found


async def forwarding(
    gateways: Gateways, top: str = ""
) -> tuple[GatewayProcess, GatewayProcess, GatewayProcess]:
    """
    Start two gateways that forward sends; return the primary, the orderer, and the other one.
    `top` stands at the beginning of their configurations.
    """
    primary, config = await namespaces(gateways, order_lease="forward", send_timeout="30s")
    ports = [free_port(), free_port()]
    peers = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    gateways.environments |= {name: {"CLUSTER_SECRET": SECRET} for name in ("one", "other")}
    one, other = [
        await gateways.start(
            f"""{top}{config}
[cluster]
address = "127.0.0.1:{own}"
peers = [{peers}]
secrets = [{{ env = "CLUSTER_SECRET" }}]
""",
            name=name,
        )
        for name, own in zip(("one", "other"), ports, strict=True)
    ]
    assert await send(one.address, "orders", b"0", patience=60.0) == (201, "primary")
    return primary, one, other


async def namespaces(gateways: Gateways, **pairing: object) -> tuple[GatewayProcess, str]:
    """Start two brokers; return the primary, and the configuration of a gateway before both."""
    config = broker_config().replace('"service-bus-http"', '"service-bus"')
    primary = await gateways.start(config, name="primary")
    secondary = await gateways.start(config, name="secondary")
    async with client(primary) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
    async with client(secondary) as broker:
        await provision(broker, "east", 1, ordered=True, leases="order_lease" in pairing)
    options = {"ordered": ["orders"], "backlog_queues": 1, **PATIENT, **pairing}
    pair = pair_config(primary.address, secondary.address, **options)
    return primary, REST_URL.sub(AMQP_URL, pair)


async def all_bodies(primary: GatewayProcess, count: int) -> list[int]:
    """
    The numbers of all messages on the primary, in the order of arrival, until `wanted` are known.
    """
    found: list[int] = []
    async with client(primary) as broker, broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(90.0):
            while len(set(found)) < count:
                for delivery in await receiver.receive(1):
                    found.append(int(bytes(delivery.message.body)))
                    await receiver.settle(delivery, Complete())
    return found
