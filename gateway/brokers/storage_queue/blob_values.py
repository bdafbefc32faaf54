"""Versioned values as the blobs of a container, by the service's own ETags."""

import attrs

from gateway.brokers.storage_queue.blob_client import BlobClient, InContainer
from gateway.domain.errors import OutcomeUnknown, PreconditionFailed
from gateway.ports import ABSENT, ANY, WallClock
from gateway.wire.azure_blob import (
    BlobAccount,
    build_get,
    build_put,
    build_remove,
    is_missing,
    is_unmet,
    refusal,
)
from gateway.wire.http.messages import Response

_STORE = "value store"


@attrs.define(eq=False)
class AzureBlobValues(InContainer):
    """
    Implements `Versioned` of `bytes` or None, for processes of any number of machines, within its
    `async with` block. Connects on first use.

    Raises:
        OutcomeUnknown: no answer came to a write, which may be done: read the value again.
        BrokerError: the service refused the request, or can't be reached.
    """

    @classmethod
    def of(
        cls, account: BlobAccount, container: str, clock: WallClock, max_value: int
    ) -> "AzureBlobValues":
        """The values of a container, each of at most `max_value` bytes."""
        return cls(BlobClient(account, container, clock, max_value, _STORE))

    async def read(self, key: str) -> tuple[bytes | None, str]:
        """As `Versioned.read`."""
        response = await self._blobs.ask(build_get(self._blobs.container, key))
        if is_missing(response):
            return None, ABSENT
        if response.status >= 300:
            raise refusal(response, _STORE)
        return response.body, response.headers.get("ETag") or ""

    async def write(self, key: str, value: bytes | None, *, if_match: str) -> str:
        """As `Versioned.write`."""
        if value is None:
            return await self._remove(key, if_match)
        request = build_put(
            self._blobs.container,
            key,
            value,
            content_type="application/octet-stream",
            condition=_condition(if_match),
        )
        response = await self._blobs.once(request)
        self._check(response, key)
        return response.headers.get("ETag") or ""

    async def _remove(self, key: str, if_match: str) -> str:
        if if_match == ABSENT:
            found, etag = await self.read(key)
            if found is not None:
                raise PreconditionFailed(f"{key}: no value expected, it has the ETag {etag}")
            return ABSENT
        response = await self._blobs.once(
            build_remove(self._blobs.container, key, _condition(if_match))
        )
        if not (is_missing(response) and if_match == ANY):
            self._check(response, key)
        return ABSENT

    def _check(self, response: Response, key: str) -> None:
        if is_unmet(response):
            raise PreconditionFailed(f"{key}: the value has another ETag now")
        if response.status >= 500:
            raise OutcomeUnknown(f"{key}: {refusal(response, _STORE)}")
        if response.status >= 300:
            raise refusal(response, _STORE)


def _condition(if_match: str) -> tuple[str, str] | None:
    if if_match == ABSENT:
        return "If-None-Match", "*"
    return None if if_match == ANY else ("If-Match", if_match)
