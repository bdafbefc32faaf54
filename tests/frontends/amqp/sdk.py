"""A client in the manner of an SDK: our engine in the other role, on a stream in memory."""

from collections.abc import Callable
from typing import Any

import attrs
import trio

from gateway.domain.access import AccessPolicy
from gateway.domain.message import Message, ValueBody
from gateway.net.amqp.connection import AmqpConnection
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials, SaslClient
from gateway.wire.servicebus.sas import sign_sas
from tests.frontends.rest_client import KEY, ROOT, wall_clock

ANONYMOUS = Credentials(mechanism="ANONYMOUS")
HOST = "amqps://localhost:5672/"


@attrs.define(eq=False)
class Sdk:
    """Collects its events; `until` waits for an event that a test needs."""

    connection: AmqpConnection
    told: list[amqp.Event] = attrs.field(factory=list)
    session: amqp.SessionId | None = None
    _more: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _names: int = 0

    @classmethod
    def on(cls, stream: trio.abc.Stream, credentials: Credentials | None = ANONYMOUS) -> "Sdk":
        """None for `credentials`: a connection without SASL."""
        return cls(
            AmqpConnection(
                stream,
                engine=EngineOptions(container_id="sdk"),
                sasl=None if credentials is None else SaslClient(credentials),
            )
        )

    @property
    def engine(self):
        return self.connection.engine

    async def run(self) -> None:
        await self.connection.run(self._handle)

    def _handle(self, event: amqp.Event) -> None:
        self.told.append(event)
        self._more.unpark_all()

    async def until(self, kind: type, which: Callable[[Any], bool] = lambda event: True) -> Any:
        """Return the first event of that kind, and remove it from the collected ones."""
        with trio.fail_after(3600):
            while True:
                for event in self.told:
                    if isinstance(event, kind) and which(event):
                        self.told.remove(event)
                        return event
                await self._more.park()

    async def open(self) -> "Sdk":
        self.engine.open(hostname="localhost")
        self.session = self.engine.begin()
        await self.until(amqp.ConnectionOpened)
        return self

    def attach(self, *, we_send: bool, address: str, **fields: Any) -> amqp.LinkId:
        self._names += 1
        ours, theirs = amqp.Terminus(address=f"sdk-{self._names}"), amqp.Terminus(address=address)
        new = {"source": ours, "target": theirs} if we_send else {"source": theirs, "target": ours}
        link = self.engine.attach(
            self.session,
            amqp.NewLink(**{"name": f"link-{self._names}", "we_send": we_send} | new | fields),
        )
        assert link is not None
        return link

    async def attached(self, **fields: Any) -> amqp.LinkId:
        link = self.attach(**fields)
        answer = await self.until(amqp.LinkAttached, lambda event: event.link == link)
        assert answer.source is not None, "refused"
        return link

    async def refusal(self, **fields: Any) -> amqp.AmqpError:
        link = self.attach(**fields)
        detached = await self.until(amqp.LinkDetached, lambda event: event.link == link)
        assert detached.error is not None
        return detached.error

    async def sender(self, entity: str = "orders", **fields: Any) -> amqp.LinkId:
        link = await self.attached(we_send=True, address=HOST + entity, **fields)
        await self.until(amqp.LinkFlow, lambda event: event.link == link)
        return link

    async def receiver(self, entity: str = "orders", credit: int = 0, **fields: Any) -> amqp.LinkId:
        link = await self.attached(we_send=False, address=HOST + entity, **fields)
        if credit:
            self.engine.grant(link, credit)
        return link

    def transfer(self, link: amqp.LinkId, message: Message, **how: Any) -> amqp.DeliveryId:
        self._names += 1
        delivery = self.engine.send(link, b"%d" % self._names, encode_message(message), **how)
        assert delivery is not None
        return delivery

    async def outcome(self, delivery: amqp.DeliveryId) -> amqp.DeliveryState | None:
        event = await self.until(amqp.DispositionReceived, lambda event: event.delivery == delivery)
        assert event.settled
        return event.state

    async def send(self, link: amqp.LinkId, message: Message) -> amqp.DeliveryState | None:
        return await self.outcome(self.transfer(link, message))

    async def delivery(self, link: amqp.LinkId) -> amqp.TransferReceived:
        return await self.until(amqp.TransferReceived, lambda event: event.link == link)

    async def settle(
        self, transfer: amqp.TransferReceived, state: amqp.DeliveryState
    ) -> amqp.DeliveryState | None:
        """Settle as azure-servicebus 7.15 does: send the outcome, and wait for its confirmation."""
        self.engine.update(transfer.delivery, state)
        return await self.outcome(transfer.delivery)

    async def ask(self, address: str, request: Message) -> Message:
        """Send a request on a pair of links of its own."""
        replies = await self.attached(
            we_send=False, address=address, target=amqp.Terminus(address="here")
        )
        self.engine.grant(replies, 1)
        requests = await self.attached(we_send=True, address=address)
        asked = attrs.evolve(request, message_id="question", reply_to="here")
        await self.send(requests, asked)
        reply = decode_message((await self.delivery(replies)).payload)
        self.engine.detach(replies)
        self.engine.detach(requests)
        assert reply.correlation_id == "question"
        return reply

    async def put_token(
        self,
        resource: str = "sb://localhost/",
        *,
        policy: AccessPolicy = ROOT,
        key: str = KEY,
        seconds: int = 3600,
    ) -> Message:
        expires = int(wall_clock().timestamp()) + seconds
        return await self.put_text(sign_sas(resource, policy.name, key, expires), resource)

    async def put_text(self, token: str, audience: str = "sb://localhost/") -> Message:
        properties = {"operation": "put-token", "type": "jwt", "name": audience}
        return await self.ask("$cbs", Message(properties=properties, body=ValueBody(token)))
