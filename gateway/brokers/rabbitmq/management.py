"""RabbitMQ's management plugin, which lists queues and shows the effect of policies."""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from gateway.brokers.rabbitmq.names import NAME
from gateway.deadlines import answered_within
from gateway.domain.errors import InvalidRequest, Unavailable
from gateway.net.hosts import Hosts, places_of
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.server_address import ServerAddress
from gateway.net.tls import ClientTlsOptions, client_context
from gateway.wire.http.hosts import parse_server_url
from gateway.wire.http.messages import Request, Response
from gateway.wire.rabbitmq.management import (
    MAX_ANSWER,
    MAX_PAGE,
    ManagedQueue,
    ManagementLogin,
    ask_for_page,
    ask_for_queue,
    page_in,
    queue_in,
)

_PORTS: Final = {"http": 15672, "https": 15671}
_SERVER_ERROR: Final = 500  # and above: this node can't answer
_PATIENCE: Final = 10.0  # seconds; without an answer the caller continues without a list


def open_management(
    url: str,
    login: ManagementLogin,
    tls: ClientTlsOptions,
    connect_timeout: float,
    rng: random.Random,
) -> "PluginManagement | None":
    """
    The client for `http(s)://host:port,...`, or None for an empty URL; nothing is sent yet. The
    hosts are nodes of one cluster.

    Raises:
        InvalidRequest: the URL is invalid, or the namespace has no user.
        TlsFileError: a certificate can't be read.
    """
    if not url:
        return None
    try:
        parts = parse_server_url(url)
    except InvalidRequest as error:
        raise InvalidRequest(f"management: {error}") from error
    port = _PORTS.get(parts.scheme)
    if port is None or parts.path.strip("/") or parts.more or parts.user:
        raise InvalidRequest("management: http(s)://HOST:PORT expected")
    if not login.user:
        raise InvalidRequest(
            "management: a user and a password expected in the URL of the namespace"
        )
    secure = client_context(tls) if parts.scheme == "https" else None
    places = places_of(parts.hosts, port, secure)
    options = HttpClientOptions(connect_timeout=connect_timeout, max_body=MAX_ANSWER)
    nodes = _Nodes(
        hosts=Hosts(places=places, rng=rng),
        clients={
            place: HttpClient(place.host, place.port, tls=place.tls, options=options)
            for place in places
        },
    )
    return PluginManagement(client=nodes, login=login)


class ManagementClient(Protocol):
    """Answers requests, as `HttpClient` does."""

    async def request(self, request: Request) -> Response: ...

    async def aclose(self) -> None: ...


@attrs.frozen(kw_only=True)
class _Nodes:
    """
    The plugin on each node. Requests change nothing, so another node may be asked after a failure.
    """

    hosts: Hosts
    clients: Mapping[ServerAddress, HttpClient]

    async def request(self, request: Request) -> Response:
        return await self.hosts.first(partial(self._ask, request), _PATIENCE)

    async def aclose(self) -> None:
        for client in self.clients.values():
            await client.aclose()

    async def _ask(self, request: Request, place: ServerAddress, seconds: float) -> Response:
        try:
            with trio.fail_after(seconds):
                response = await self.clients[place].request(request)
        except trio.TooSlowError as error:
            raise Unavailable(f"{place}: no answer within {seconds:.1f} s") from error
        if response.status >= _SERVER_ERROR:
            raise Unavailable(f"{place}: HTTP {response.status}")
        return response


@attrs.frozen(kw_only=True)
class PluginManagement:
    """Requests to the plugin of one broker, about one vhost. They change nothing."""

    _client: ManagementClient
    _login: ManagementLogin

    async def queue(self, name: str) -> ManagedQueue:
        """
        The properties of a queue.

        Raises:
            EntityNotFound: the queue doesn't exist.
            NotAuthorized: the user lacks the tag `management`, or access to the vhost.
            BrokerError: there is no answer.
        """
        return queue_in(await self._client.request(ask_for_queue(self._login, name)))

    async def queues(self, prefix: str, skip: int, top: int) -> Sequence[ManagedQueue]:
        """
        A page of the queues whose names are valid for entities, by name; `prefix` in any case of
        letters.

        Raises:
            Unavailable: no answer within ten seconds.
            BrokerError: as `queue`.
        """
        with answered_within(_PATIENCE, "from RabbitMQ's management", error=Unavailable):
            return await self._queues(prefix, skip, top)

    async def _queues(self, prefix: str, skip: int, top: int) -> Sequence[ManagedQueue]:
        found: list[ManagedQueue] = []
        page, past = 1 + skip // MAX_PAGE, skip % MAX_PAGE
        is_last = False
        while not is_last and len(found) < past + top:
            request = ask_for_page(self._login, prefix, NAME.pattern, page)
            more, is_last = page_in(await self._client.request(request))
            found += more
            page += 1
        return found[past : past + top]

    async def aclose(self) -> None:
        await self._client.aclose()
