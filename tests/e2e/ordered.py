"""Parts of the tests of ordered that other tests need, too."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.changes import Changes
from gateway.checker.operations import Acked, CopyPlace, Found, Invoked, Record, Unknown
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Delivery
from gateway.extensions.order.options import OrderLeaseMode
from gateway.offering import required
from gateway.pairing.options import PairOptions
from gateway.pairing.provision import further_queues, provision
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.options import made
from tests.harness.patience import PATIENCE

ORDERS = EntityPath("orders")
SECRET = "a secret of a cluster, for tests only"
PAUSE = 0.01  # seconds between a producer's sends: a gateway that starts needs the processor
REST_URL = re.compile(r"servicebus\+http://(\w+)@([0-9.:]+)")
AMQP_URL = r"servicebus:Endpoint=sb://\2/;SharedAccessKeyName=\1;UseDevelopmentEmulator=true"


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
                self.changes.notify()
            await trio.sleep(PAUSE)

    async def acknowledged(self, name: str, number: int) -> None:
        with trio.fail_after(PATIENCE):
            while self.numbers[name] < number:
                await self.changes.wait_next()

    async def sent_to(self, way: str) -> None:
        """Return when the last message was accepted so."""
        with trio.fail_after(PATIENCE):
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
                    place=CopyPlace.PRIMARY,
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
        mode = OrderLeaseMode(pairing.get("order_lease", "off"))
        needed = made(PairOptions, label="east", ordered=("orders",), order_lease=mode)
        await provision(broker, "east", 1, further=further_queues(needed))
    options = {"ordered": ["orders"], "backlog_queues": 1, **pairing}
    pair = pair_config(primary.address, secondary.address, **options)
    return primary, REST_URL.sub(AMQP_URL, pair)
