"""Parts of the tests of workers that other tests need, too."""

import time

import attrs
import trio

from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.sas import sign_sas
from tests.e2e.plain_rest import KEY, KEY_NAME


@attrs.define(eq=False)
class Connection:
    """A connection to the gateway, which ends with the first error."""

    address: str
    key_name: str = KEY_NAME
    key: str = KEY
    client_port: int = 0
    _client: HttpClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        options = HttpClientOptions(max_connections=1)
        self._client = HttpClient("127.0.0.1", 1, options=options, connect=self._connect)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Response:
        token = sign_sas(f"http://{self.address}/", self.key_name, self.key, int(time.time()) + 600)
        fields = Headers.of({"Host": self.address, "Authorization": token, **(headers or {})})
        return await self._client.request(
            Request(method=method, target=path, headers=fields, body=body)
        )

    async def send(self, text: str) -> tuple[int, str | None]:
        answer = await self.ask("POST", "/orders/messages", text.encode())
        return answer.status, answer.headers.get("X-Pairgate-Accepted-By")

    async def _connect(self) -> trio.abc.Stream:
        if self.client_port:
            raise ConnectionResetError("this connection has ended")
        host, _, port = self.address.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        self.client_port = stream.socket.getsockname()[1]
        return stream

    async def aclose(self) -> None:
        await self._client.aclose()
