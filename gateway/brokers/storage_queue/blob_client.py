"""Requests to one container of Azure Blob Storage, or of Azurite."""

from types import TracebackType
from typing import Final, Self

import attrs

from gateway.brokers.entra.tokens import AccessTokens
from gateway.domain.errors import InvalidRequest, OutcomeUnknown, Unavailable
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.tls import client_context
from gateway.ports import WallClock
from gateway.wire.azure_blob import (
    BlobAccount,
    authorized,
    build_create,
    check_container,
    code_of,
    refusal,
)
from gateway.wire.http.messages import Request, Response

MAX_CONNECTIONS: Final = 16  # bodies in transit at once, of up to 64 MiB each
_UNAUTHORIZED: Final = 401  # of HTTP
_THERE: Final = "ContainerAlreadyExists"


@attrs.define(eq=False)
class BlobClient:
    """
    Signs requests for a container, within its `async with` block. Connects on first use.

    `store` names the container's use in errors.
    """

    _account: BlobAccount
    container: str
    _clock: WallClock
    _max_body: int  # bytes of an answer
    store: str = "claim store"
    _access: AccessTokens | None = attrs.field(default=None, kw_only=True)  # instead of a key
    _client: HttpClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        check_container(self.container)
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
        response = await self.ask(build_create(self.container))
        if response.status >= 300 and code_of(response) != _THERE:
            raise refusal(response, self.store)

    async def done(self, request: Request) -> Response:
        """
        Return the success of a request that may be repeated.

        Raises:
            BrokerError: as `refusal`; `Unavailable` also if no answer came.
        """
        response = await self.ask(request)
        if response.status >= 300:
            raise refusal(response, self.store)
        return response

    async def ask(self, request: Request) -> Response:
        """
        Return the answer to a request that may be repeated.

        Raises:
            BrokerError: as `once`; `Unavailable` instead of `OutcomeUnknown`.
        """
        try:
            return await self.once(request)
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error

    async def once(self, request: Request) -> Response:
        """
        Return the answer to the request.

        Raises:
            OutcomeUnknown: no answer came.
            BrokerError: the request was not sent.
        """
        try:
            token = "" if self._access is None else (await self._access.get()).text
            response = await self._client.request(
                authorized(request, self._account, self._clock(), token)
            )
        except (OutcomeUnknown, Unavailable, InvalidRequest) as error:
            raise type(error)(f"{self.store}: {error}") from error
        if self._access is not None and response.status == _UNAUTHORIZED:
            self._access.refused(token)
        return response


@attrs.define(eq=False)
class InContainer:
    """The base of a store that is used within its `async with` block, which is its client's."""

    _blobs: BlobClient

    async def __aenter__(self) -> Self:
        await self._blobs.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._blobs.__aexit__(kind, error, traceback)  # noqa: ASYNC102 it only closes

    async def prepare(self) -> None:
        """As `BlobClient.prepare`."""
        await self._blobs.prepare()
