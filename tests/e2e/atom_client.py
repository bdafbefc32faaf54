"""A client of Service Bus over HTTP that writes what frameworks write, byte by byte."""

import http.client
import time
from collections.abc import Mapping
from functools import partial
from typing import Final
from xml.etree import ElementTree

import attrs
import trio

from gateway.wire.servicebus.sas import sign_sas
from tests.e2e.rest import KEY, KEY_NAME
from tests.harness.patience import PATIENCE

ATOM: Final = "{http://www.w3.org/2005/Atom}"
BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


@attrs.frozen
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def read(self, name: str) -> str:
        """The text of the first element with that name; empty if there is none."""
        found = ElementTree.fromstring(self.body).iter()
        return next((each.text or "" for each in found if each.tag.endswith(f"}}{name}")), "")

    @property
    def is_missing(self) -> bool:
        """True if there is no such entity: a queue or topic that is missing is an empty feed."""
        return self.status == 404 or ElementTree.fromstring(self.body).tag == f"{ATOM}feed"

    def titles(self) -> list[str]:
        """The names of the entries of a feed."""
        entries = ElementTree.fromstring(self.body).iter(f"{ATOM}entry")
        return [entry.findtext(f"{ATOM}title", "") for entry in entries]


@attrs.frozen
class Namespace:
    """The gateway, as a client of Service Bus sees it over HTTP."""

    address: str

    async def ask(self, method: str, path: str, body: str = "", **headers: str) -> Answer:
        ask = partial(self._ask, method, path, body, headers)
        return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", f"/{path}?api-version=2021-05")

    async def put(self, path: str, kind: str, *, update: bool = False, **fields: object) -> Answer:
        """Create an entity, or change it, as the SDKs do."""
        headers = {"If-Match": "*"} if update else {}
        token = self._token()
        if "ForwardTo" in fields:
            headers["ServiceBusSupplementaryAuthorization"] = token
        return await self.ask("PUT", f"/{path}?api-version=2021-05", entry(kind, fields), **headers)

    async def send(self, entity: str, body: str, **headers: str) -> int:
        return (await self.ask("POST", f"/{entity}/messages", body, **headers)).status

    async def take(self, entity: str) -> str | None:
        """Receive and delete; None: there is nothing."""
        answer = await self.ask("DELETE", f"/{entity}/messages/head?timeout=0")
        return answer.body.decode() if answer.status == 200 else None

    def _token(self) -> str:
        return sign_sas(f"http://{self.address}/", KEY_NAME, KEY, int(time.time()) + 600)

    def _ask(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> Answer:
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
        try:
            all_headers = {"Authorization": self._token(), **headers}
            connection.request(method, path, body.encode(), all_headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()


def entry(kind: str, fields: Mapping[str, object]) -> str:
    """The Atom entry of a description, whose elements are in that order."""
    inside = "".join(f"<{name}>{text(value)}</{name}>" for name, value in fields.items())
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{BUS}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{inside}</{kind}>'
        "</content></entry>"
    )


def text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
