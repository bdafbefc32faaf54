"""A producer that knows Service Bus REST and nothing of Pairgate but the outcome in its answers."""

import json
import time
from collections.abc import Sequence
from typing import Final

import attrs
import h11
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import OutcomeUnknown, Unavailable
from gateway.domain.message import AcceptedBy, Message
from gateway.wire.servicebus.sas import sign_sas

KEY_NAME: Final = "RootManageSharedAccessKey"
KEY: Final = "SAS_KEY_VALUE"
LIFETIME: Final = 3600  # seconds, of a token


@attrs.define(eq=False)
class PlainRest:
    """Sends one message per request over one kept-alive connection; as `ports.Broker.send`."""

    port: int
    _stream: trio.SocketStream | None = None
    _parser: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))

    async def aclose(self) -> None:
        # Forgotten first: the closing of a send that was cancelled is cancelled as well.
        stream, self._stream = self._stream, None
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        [message] = messages
        try:
            stream = self._stream or await self._connect()
        except OSError as error:
            raise Unavailable(str(error)) from error
        try:
            head, body = await self._ask(stream, entity, message)
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            raise OutcomeUnknown(str(error)) from error
        finally:
            if (self._parser.our_state, self._parser.their_state) != (h11.IDLE, h11.IDLE):
                await self.aclose()
        return _accepted_by(head, body)

    async def _connect(self) -> trio.SocketStream:
        self._stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self._parser = h11.Connection(h11.CLIENT)
        return self._stream

    async def _ask(
        self, stream: trio.SocketStream, entity: EntityPath, message: Message
    ) -> tuple[h11.Response, bytes]:
        send = self._parser.send
        request = h11.Request(
            method="POST",
            target=f"/{entity.name}/messages?timeout=60",
            headers=self._headers(entity, message),
        )
        parts = [request, h11.Data(data=message.body), h11.EndOfMessage()]
        await stream.send_all(b"".join(send(part) or b"" for part in parts))
        head, body = None, b""
        while not isinstance(event := self._parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._parser.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert head is not None
        if self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
        return head, body

    def _headers(self, entity: EntityPath, message: Message) -> list[tuple[str, str]]:
        url = f"http://127.0.0.1:{self.port}/{entity.name}"
        properties = [
            (name, json.dumps(value, separators=(",", ":")))
            for name, value in message.properties.items()
        ]
        assert isinstance(message.body, bytes)
        return [
            ("Host", f"127.0.0.1:{self.port}"),
            ("Authorization", sign_sas(url, KEY_NAME, KEY, int(time.time()) + LIFETIME)),
            ("Content-Type", str(message.content_type)),
            ("Content-Length", str(len(message.body))),
            ("BrokerProperties", json.dumps({"MessageId": message.message_id})),
            *properties,
        ]


def _accepted_by(head: h11.Response, body: bytes) -> AcceptedBy:
    """
    Return the namespace that accepted the message, by the table of docs/explanation/semantics.md.

    Raises:
        Unavailable: the answer is definite: the message was not sent.
        OutcomeUnknown: any other error.
    """
    fields = {name.decode(): value.decode() for name, value in head.headers}
    if head.status_code == 201:
        return AcceptedBy(fields["x-pairgate-accepted-by"])
    said = f"{head.status_code} {body[:200]!r}"
    definite = head.status_code < 500 or head.status_code == 507
    if definite or "retry-after" in fields or fields.get("x-pairgate-outcome") == "not-sent":
        raise Unavailable(said)
    raise OutcomeUnknown(said)
