"""How to reach a namespace in Azure Storage."""

from typing import Final

import attrs
from attrs import validators

from gateway.domain.backoff import Backoff
from gateway.domain.errors import InvalidRequest
from gateway.net.tls import ClientTlsOptions
from gateway.wire.storage_connection import (
    StorageConnection,
    decode_account_key,
    parse_storage_connection,
)

_MAX_SHARDS: Final = 1000
_KEY_EXPECTED: Final = 'key: is missing; write key = { env = "NAME" }'


@attrs.frozen(kw_only=True)
class StorageQueueNamespaceOptions:
    """How to reach an account, or several. Times are seconds."""

    key: str = attrs.field(default="", repr=False)
    connection_string: str = attrs.field(default="", repr=False)
    further_accounts: tuple[str, ...] = attrs.field(default=(), repr=False)  # connection strings
    shards: int = attrs.field(default=1, validator=[validators.ge(1), validators.le(_MAX_SHARDS)])
    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)
    max_connections: int = attrs.field(default=32, validator=validators.ge(1))  # of each account
    # Shorter than what one attempt gets: a connect that hangs is then known as "not sent".
    connect_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # Azurite closes what is idle after 5 s, and a request that meets that has an unknown outcome.
    idle_timeout: float = attrs.field(default=4.0, validator=validators.gt(0.0))
    poll: Backoff = Backoff(first=0.1, cap=5.0)
    keep_ids: bool = True

    def connections(self, rest: str) -> tuple[StorageConnection, ...]:
        """
        What is connected to; `rest` is what follows the scheme of the URL.

        Raises:
            InvalidRequest: the text says what is missing, or there twice.
        """
        if self.connection_string:
            if rest or self.key:
                raise InvalidRequest(
                    "connection_string: nothing expected in url after 'storage-queue:', and no key"
                )
            first = parse_storage_connection(self.connection_string)
        else:
            first = self._from_url(rest)
        found = (first, *map(parse_storage_connection, self.further_accounts))
        if any(not each.key and not each.sas for each in found):
            raise InvalidRequest(_KEY_EXPECTED)
        if len(found) > self.shards:
            raise InvalidRequest(
                f"shards: at least one for each account expected, {len(found)}, got {self.shards}"
            )
        return found

    def _from_url(self, rest: str) -> StorageConnection:
        found = parse_storage_connection(rest)
        is_public = rest.strip(" ;").lower() == "usedevelopmentstorage=true"
        if (found.key and not is_public) or found.sas:
            raise InvalidRequest(
                "URL of a namespace: no secret in a URL; leave AccountKey out and write"
                ' key = { env = "NAME" }'
            )
        return attrs.evolve(found, key=found.key or decode_account_key(self.key, "key"))
