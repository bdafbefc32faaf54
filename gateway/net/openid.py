"""Reads the keys of an identity provider: over HTTP, or from a file."""

import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from gateway.domain.errors import BrokerError, InvalidRequest, starting_thread
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.tls import ClientTlsOptions, TlsFileError, client_context
from gateway.wire.http.messages import Headers, Request
from gateway.wire.openid.keys import MAX_BYTES, KeySet, discovery_url, parse_discovery, parse_keys

FETCH_SECONDS: Final = 10.0  # for both documents together
_CONNECT_SECONDS: Final = 5.0  # half of the time for both documents
_OK: Final = 200  # of HTTP


class ProviderFailed(Exception):
    """The keys of an identity provider can't be read now; the text has the reason and the place."""


@attrs.frozen(kw_only=True)
class KeySource:
    """
    The place of an identity provider's keys: the discovery document names it (the default), or one
    of the other options.
    """

    discovery: str | None = None  # URL of the discovery document; None: the issuer's usual one
    keys_url: str | None = None  # of the keys (JWKS)
    keys_file: Path | None = None  # with the keys (JWKS)
    ca: Path | None = None  # trusted authorities of the provider's TLS; None: the system's


@attrs.frozen(kw_only=True)
class Provided:
    """The keys of a provider, and the address at which its users sign in."""

    keys: KeySet
    authorization_endpoint: str | None = None


ReadKeys = Callable[[], Awaitable[Provided]]
"""Reads the keys of one provider; raises `ProviderFailed`."""


@attrs.define(eq=False)
class KeyReader:
    """Reads the keys of one issuer."""

    issuer: str
    source: KeySource
    _tls: ssl.SSLContext | None = attrs.field(default=None, init=False)

    async def read(self) -> Provided:
        """
        The provider's keys now.

        Raises:
            ProviderFailed: the provider doesn't answer soon, or its answer is unusable.
        """
        await trio.lowlevel.checkpoint()
        try:
            with trio.fail_after(FETCH_SECONDS):
                return await self._read()
        except trio.TooSlowError as error:
            where = self.source.keys_url or self._discovery
            raise ProviderFailed(f"{where}: no answer within {FETCH_SECONDS:g} s") from error
        except ProviderFailed:
            self._tls = None  # the file of authorities may have changed by the next time
            raise

    @property
    def _discovery(self) -> str:
        return self.source.discovery or discovery_url(self.issuer)

    async def _read(self) -> Provided:
        source = self.source
        if source.keys_file is not None:
            return Provided(keys=await _read_file(source.keys_file))
        if source.keys_url is not None:
            return Provided(keys=await self._fetch_keys(source.keys_url))
        data = await self._fetch(self._discovery)
        try:
            found = parse_discovery(data, self.issuer)
        except InvalidRequest as error:
            raise ProviderFailed(f"{self._discovery}: {error}") from error
        return Provided(
            keys=await self._fetch_keys(found.keys_url),
            authorization_endpoint=found.authorization_endpoint,
        )

    async def _fetch_keys(self, url: str) -> KeySet:
        try:
            return parse_keys(await self._fetch(url))
        except InvalidRequest as error:
            raise ProviderFailed(f"{url}: {error}") from error

    async def _fetch(self, url: str) -> bytes:
        await trio.lowlevel.checkpoint()
        if (why := why_no_url(url)) is not None:
            raise ProviderFailed(f"{url:.200}: {why}")
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        client = HttpClient(
            parts.hostname or "",
            parts.port or (443 if is_secure else 80),
            tls=await self._context() if is_secure else None,
            options=HttpClientOptions(
                max_connections=1, connect_timeout=_CONNECT_SECONDS, max_body=MAX_BYTES
            ),
        )
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = Request(
            method="GET", target=target, headers=Headers.of({"Accept": "application/json"})
        )
        try:
            response = await client.request(request)
        except BrokerError as error:
            raise ProviderFailed(f"{url}: {error}") from error
        finally:
            await client.aclose()
        if response.status != _OK:
            hint = "; redirects aren't followed" if 300 <= response.status < 400 else ""
            raise ProviderFailed(f"{url}: HTTP status {response.status}{hint}")
        return response.body

    async def _context(self) -> ssl.SSLContext:
        await trio.lowlevel.checkpoint()
        if self._tls is None:
            options = ClientTlsOptions(ca=self.source.ca)
            try:
                # In a thread: the system's authorities take a while to read.
                with starting_thread():
                    self._tls = await trio.to_thread.run_sync(client_context, options)
            except (TlsFileError, OSError) as error:
                raise ProviderFailed(str(error)) from error
        return self._tls


def why_no_url(url: str) -> str | None:
    """
    The reason why keys can't be fetched from that URL; None if they can. Over plain HTTP the keys
    could be replaced on the way, except on this machine.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "it isn't a URL"
    if parts.scheme not in {"https", "http"} or not host or parts.username is not None:
        return "https://HOST[:PORT]/PATH expected"
    if parts.scheme == "http" and not _is_this_machine(host):
        return "https expected: over plain HTTP anybody on the way could replace the keys"
    return None


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _read_file(path: Path) -> KeySet:
    try:
        with starting_thread():
            data = await trio.to_thread.run_sync(_first_bytes, path)
        return parse_keys(data)
    except OSError as error:
        raise ProviderFailed(f"{path}: {error.strerror}") from error
    except InvalidRequest as error:
        raise ProviderFailed(f"{path}: {error}") from error


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
