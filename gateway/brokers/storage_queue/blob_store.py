"""Stores message bodies in a container of Azure Blob Storage, or of Azurite."""

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import attrs

from gateway.brokers.entra.tokens import AccessTokens
from gateway.domain.claim import ClaimCorrupt, ClaimMissing, Entry
from gateway.domain.errors import InvalidRequest, OutcomeUnknown, Unavailable
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.tls import client_context
from gateway.ports import WallClock
from gateway.wire.azure_blob import (
    PAGE,
    BlobAccount,
    authorized,
    build_create,
    build_get,
    build_list,
    build_put,
    build_remove,
    check_container,
    code_of,
    parse_page,
    refusal,
)
from gateway.wire.http.messages import Request, Response

MAX_CONNECTIONS: Final = 16
MOST_PAGES: Final = 10_000  # per list of names; a server that needs more is broken
_UNAUTHORIZED: Final = 401
_THERE: Final = "ContainerAlreadyExists"


@attrs.define(eq=False)
class AzureBlobStore:
    """
    Implements `claims.store.ClaimStore`, within its `async with` block.

    Every request may be repeated, so one with an unknown outcome counts as not done: `Unavailable`.
    Connects on first use.
    """

    _account: BlobAccount
    _container: str
    _clock: WallClock
    _max_body: int
    _page: int = attrs.field(default=PAGE, kw_only=True)  # names of one answer
    _access: AccessTokens | None = attrs.field(default=None, kw_only=True)  # instead of a key
    _client: HttpClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        check_container(self._container)
        self._client = HttpClient(
            self._account.host,
            self._account.port,
            tls=client_context() if self._account.secure else None,
            options=HttpClientOptions(
                max_connections=MAX_CONNECTIONS, max_body=max(self._max_body, 4 * 1024 * 1024)
            ),
        )

    async def __aenter__(self) -> Self:
        if self._access is not None:
            await self._access.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._client.aclose()
        finally:
            if self._access is not None:
                await self._access.__aexit__(  # noqa: ASYNC102 it ends its task
                    kind, error, traceback
                )

    async def prepare(self) -> None:
        """
        Create the container, unless it exists.

        Raises:
            BrokerError: the container can't be created.
        """
        response = await self._ask(build_create(self._container))
        if response.status >= 300 and code_of(response) != _THERE:
            raise refusal(response)

    async def put(self, name: str, data: bytes) -> None:
        await self._done(build_put(self._container, name, data))

    async def get(self, name: str, limit: int) -> bytes:
        response = await self._done(build_get(self._container, name))
        if len(response.body) > limit:
            raise ClaimCorrupt(f"{name} has more than {limit} bytes")
        return response.body

    async def remove(self, name: str) -> None:
        try:
            await self._done(build_remove(self._container, name))
        except ClaimMissing:
            return  # noqa: ASYNC910 the service has answered

    async def list(self, prefix: str) -> Sequence[Entry]:
        found: tuple[Entry, ...] = ()
        marker = ""
        for _ in range(MOST_PAGES):
            request = build_list(self._container, prefix, marker, self._page)
            page = parse_page(await self._done(request))
            found = (*found, *page.entries)
            marker = page.marker
            if not marker:
                return found
        raise Unavailable(f"claim store: more than {MOST_PAGES} pages of names with {prefix}")

    async def _done(self, request: Request) -> Response:
        response = await self._ask(request)
        if response.status >= 300:
            raise refusal(response)
        return response

    async def _ask(self, request: Request) -> Response:
        try:
            return await self._once(request)
        except OutcomeUnknown as error:
            raise Unavailable(f"claim store: {error}") from error

    async def _once(self, request: Request) -> Response:
        """The answer to a request that mustn't be repeated blindly; raises `OutcomeUnknown` too."""
        try:
            token = "" if self._access is None else (await self._access.get()).text
            response = await self._client.request(
                authorized(request, self._account, self._clock(), token)
            )
        except (Unavailable, InvalidRequest) as error:
            raise type(error)(f"claim store: {error}") from error
        if self._access is not None and response.status == _UNAUTHORIZED:
            self._access.refused(token)
        return response
