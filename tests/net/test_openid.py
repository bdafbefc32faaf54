"""The keys of an identity provider: found, read, and refused."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gateway.net.http.server import HttpServer
from gateway.net.openid import KeyReader, KeySource, ProviderFailed, why_no_url
from gateway.wire.http.messages import Headers, Request, Response
from tests.harness.clocks import VirtualClock
from tests.harness.openid import OpenIdProvider


@attrs.define(eq=False)
class Site:
    """A provider at a port of this machine; `answers` replaces its answer at a path."""

    url: str
    provider: OpenIdProvider
    answers: dict[str, Response] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)

    async def handle(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        self.asked.append(request.target)
        if request.path in self.answers:
            return self.answers[request.path]
        if request.path == "/realm/.well-known/openid-configuration":
            return Response(status=200, body=self.provider.discovery())
        if request.path == "/realm/keys":
            return Response(status=200, body=self.provider.jwks())
        return Response(status=404)

    def reader(self, **source: object) -> KeyReader:
        return KeyReader(self.provider.issuer, KeySource(**source))


@asynccontextmanager
async def open_site() -> AsyncIterator[Site]:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    site = Site(url, OpenIdProvider(f"{url}/realm"))
    server = HttpServer(
        handler=site.handle,
        error_body=lambda status, text: Response(status=status),
        wall_clock=VirtualClock(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve_connection, [listener])
        yield site
        nursery.cancel_scope.cancel()


async def test_the_discovery_document_says_where_the_keys_are() -> None:
    async with open_site() as site:
        provided = await site.reader().read()

        assert len(provided.keys.keys) == 1
        assert provided.authorization_endpoint == f"{site.url}/realm/tenant/oauth2/authorize"
        assert site.asked == ["/realm/.well-known/openid-configuration", "/realm/keys"]


async def test_the_keys_may_be_at_a_url_or_in_a_file(tmp_path: Path) -> None:
    async with open_site() as site:
        site.answers["/k"] = Response(status=200, body=site.provider.jwks())
        (tmp_path / "keys.json").write_bytes(site.provider.jwks())

        by_url = await site.reader(keys_url=f"{site.url}/k?version=1").read()
        by_file = await site.reader(keys_file=tmp_path / "keys.json").read()
        elsewhere = await site.reader(
            discovery=f"{site.url}/realm/.well-known/openid-configuration"
        ).read()

        assert by_url.keys.thumbprints == by_file.keys.thumbprints == elsewhere.keys.thumbprints
        assert site.asked[0] == "/k?version=1"


DISCOVERY = "/realm/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("path", "answer", "why"),
    [
        (DISCOVERY, Response(status=404), "HTTP status 404"),
        (
            DISCOVERY,
            Response(status=302, headers=Headers.of({"Location": "/keys"})),
            "redirects aren't followed",
        ),
        (DISCOVERY, Response(status=200, body=b"<html>"), "discovery document"),
        (DISCOVERY, Response(status=200, body=b"[]"), "an object expected"),
        (
            DISCOVERY,
            Response(status=200, body=b'{"issuer": "https://other", "jwks_uri": "https://k"}'),
            "names the issuer 'https://other', not 'http://127.0.0.1",
        ),
        (DISCOVERY, Response(status=200, body=b" " * 300_000), "no whole answer"),
        ("/realm/keys", Response(status=500), "HTTP status 500"),
        ("/realm/keys", Response(status=200, body=b'{"keys": []}'), "none of them"),
    ],
    ids=str,
)
async def test_an_answer_that_is_no_use_is_told(path: str, answer: Response, why: str) -> None:
    async with open_site() as site:
        site.answers[path] = answer

        with pytest.raises(ProviderFailed, match=why) as caught:
            await site.reader().read()

        assert str(caught.value).startswith(f"{site.url}{path}: ")


async def test_a_discovery_document_can_not_send_the_gateway_to_plain_http_elsewhere() -> None:
    async with open_site() as site:
        document = json.loads(site.provider.discovery())
        for url in ("http://keys.example.net/k", "file:///etc/passwd", "gopher://x", "//x/y", ""):
            document["jwks_uri"] = url
            site.answers[DISCOVERY] = Response(status=200, body=json.dumps(document).encode())

            with pytest.raises(ProviderFailed, match="https"):
                await site.reader().read()


async def test_a_provider_that_is_gone_is_told_with_its_place(tmp_path: Path) -> None:
    async with open_site() as site:
        reader = site.reader()

    with pytest.raises(ProviderFailed, match=rf"^{site.url}{DISCOVERY}: .*refused"):
        await reader.read()
    for file, why in (("missing.json", "No such file"), ("bad.json", "keys")):
        (tmp_path / "bad.json").write_text("{}")
        with pytest.raises(ProviderFailed, match=why):
            await site.reader(keys_file=tmp_path / file).read()
    with pytest.raises(ProviderFailed, match="No such file"):
        await KeyReader("https://localhost:1", KeySource(ca=tmp_path / "none.pem")).read()


@pytest.mark.parametrize(
    ("url", "is_good"),
    [
        ("https://login.example.net/tenant", True),
        ("https://login.example.net:8443", True),
        ("http://localhost:9000/realm", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:80/", True),
        ("http://login.example.net", False),
        ("http://127.0.0.1.example.net", False),
        ("https://user:secret@login.example.net", False),
        ("https://", False),
        ("https://host:port", False),
        ("https://[::1", False),
        ("login.example.net", False),
        ("file:///etc/keys.json", False),
        ("", False),
    ],
)
def test_keys_are_fetched_where_nobody_can_replace_them(url: str, is_good: bool) -> None:
    assert (why_no_url(url) is None) is is_good
