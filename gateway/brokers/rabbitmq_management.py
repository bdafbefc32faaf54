"""What only RabbitMQ's management plugin tells: which queues there are, and what policies say."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from gateway.brokers.rabbitmq_names import NAME
from gateway.domain.errors import InvalidRequest, Unavailable
from gateway.net.http_client import HttpClient, HttpClientOptions
from gateway.net.tls import ClientTlsOptions, client_context
from gateway.wire.rabbitmq_management import (
    MAX_PAGE,
    ManagedQueue,
    ManagementLogin,
    ask_for_page,
    ask_for_queue,
    page_in,
    queue_in,
)

_PORTS: Final = {"http": 15672, "https": 15671}
_PATIENCE: Final = 10.0  # seconds: who can't list goes on without


def open_management(
    url: str, login: ManagementLogin, tls: ClientTlsOptions, connect_timeout: float
) -> "Management | None":
    """
    The client for `http(s)://host:port`, or none for none; nothing is asked yet.

    Raises:
        InvalidRequest: that is no such URL, or there is nobody to be there.
        TlsFileError: a certificate can't be read.
    """
    if not url:
        return None
    parts = urlsplit(url)
    try:
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise InvalidRequest(f"management: {error}") from error
    more = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if port is None or not parts.hostname or more:
        raise InvalidRequest("management: http(s)://HOST:PORT expected")
    if not login.user:
        raise InvalidRequest("management: needs a user and a password in the namespace")
    client = HttpClient(
        parts.hostname,
        port,
        tls=client_context(tls) if parts.scheme == "https" else None,
        options=HttpClientOptions(connect_timeout=connect_timeout),
    )
    return Management(client=client, login=login)


@attrs.frozen(kw_only=True)
class Management:
    """Questions to the plugin of one broker, about one vhost. It changes nothing."""

    _client: HttpClient
    _login: ManagementLogin

    async def queue(self, name: str) -> ManagedQueue:
        """
        What is known of that queue.

        Raises:
            EntityNotFound: there is none.
            NotAuthorized: the user lacks the tag `management`, or the vhost.
            BrokerError: there is no answer.
        """
        return queue_in(await self._client.request(ask_for_queue(self._login, name)))

    async def queues(self, prefix: str, skip: int, top: int) -> Sequence[ManagedQueue]:
        """
        Those that may be entities, by name; `prefix` in any case of letters.

        Raises:
            Unavailable: no answer within ten seconds.
            BrokerError: as `queue`.
        """
        with trio.move_on_after(_PATIENCE):
            return await self._queues(prefix, skip, top)
        raise Unavailable(f"RabbitMQ's management: no answer within {_PATIENCE:.0f} s")

    async def _queues(self, prefix: str, skip: int, top: int) -> Sequence[ManagedQueue]:
        found: list[ManagedQueue] = []
        page, past = 1 + skip // MAX_PAGE, skip % MAX_PAGE
        is_last = False
        while not is_last and len(found) < past + top:
            request = ask_for_page(self._login, prefix, NAME.pattern, page)
            more, is_last = page_in(await self._client.request(request))
            found += more
            page += 1
        return found[past : past + top]  # noqa: ASYNC910 the first page has waited

    async def aclose(self) -> None:
        await self._client.aclose()
