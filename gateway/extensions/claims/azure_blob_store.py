"""Stores message bodies in a container of Azure Blob Storage, or of Azurite."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs

from gateway.brokers.storage_queue.blob_client import InContainer
from gateway.domain.errors import Unavailable
from gateway.extensions.claims.claim import PREFIXES, ClaimCorrupt, ClaimMissing, Entry
from gateway.wire.azure_blob import (
    PAGE,
    build_get,
    build_list,
    build_put,
    build_remove,
    code_of,
    is_missing,
    parse_page,
    refusal,
)
from gateway.wire.http.date import parse_http_date

MOST_PAGES: Final = 10_000  # per list of names; a server that needs more is broken


@attrs.define(eq=False)
class AzureBlobStore(InContainer):
    """
    Implements `ClaimStore`, within its `async with` block.

    Every request may be repeated, so one with an unknown outcome counts as not done: `Unavailable`.
    Connects on first use.
    """

    _page: int = attrs.field(default=PAGE, kw_only=True)  # names of one answer

    async def put(self, name: str, data: bytes) -> None:
        await self._blobs.done(build_put(self._blobs.container, name, data))

    async def get(self, name: str, limit: int) -> bytes:
        response = await self._blobs.ask(build_get(self._blobs.container, name))
        if is_missing(response):
            raise ClaimMissing(f"{self._blobs.store}: 404 {code_of(response)}")
        if response.status >= 300:
            raise refusal(response, self._blobs.store)
        if len(response.body) > limit:
            raise ClaimCorrupt(f"{name} has more than {limit} bytes")
        return response.body

    async def remove(self, name: str) -> None:
        response = await self._blobs.ask(build_remove(self._blobs.container, name))
        if response.status >= 300 and not is_missing(response):
            raise refusal(response, self._blobs.store)

    async def list(self, prefix: str) -> Sequence[Entry]:
        found = list[Entry]()
        marker = ""
        for _ in range(MOST_PAGES):
            request = build_list(self._blobs.container, prefix, marker, self._page)
            page = parse_page(await self._blobs.done(request))
            found += (Entry(blob.name, blob.written) for blob in page.blobs)
            marker = page.marker
            if not marker:
                return found
        raise Unavailable(f"claim store: more than {MOST_PAGES} pages of names with {prefix}")

    async def date(self) -> datetime:
        """As `ClaimStore.date`: the service's, which isn't in doubt."""
        response = await self._blobs.done(build_list(self._blobs.container, PREFIXES[0], "", 1))
        date = parse_http_date(response.headers.get("Date") or "")
        if date is None:
            raise Unavailable(f"{self._blobs.store}: an answer without a date")
        return date
