"""Options of a namespace in Azure Storage."""

from typing import Final

import attrs
from attrs import validators

from gateway.brokers.entra.options import CredentialOptions, refuse_key
from gateway.domain.backoff import Backoff
from gateway.domain.errors import InvalidRequest
from gateway.domain.option_fields import SECRET
from gateway.net.tls import ClientTlsOptions
from gateway.wire.storage_queue.connection_string import (
    StorageConnection,
    decode_account_key,
    parse_storage_connection,
)

_KEY_EXPECTED: Final = 'key: is missing; write key = { env = "NAME" }'


@attrs.frozen(kw_only=True)
class StorageQueueNamespaceOptions:
    """Options of a namespace in a storage account. Times are seconds."""

    key: str = attrs.field(default="", repr=False, metadata=SECRET)
    connection_string: str = attrs.field(default="", repr=False, metadata=SECRET)
    credential: CredentialOptions | None = None  # instead of a key
    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)
    max_connections: int = attrs.field(
        default=32, validator=[validators.ge(1), validators.le(10_000)]
    )
    # Shorter than the timeout of one attempt, so that a hanging connect is known as "not sent".
    connect_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # Azurite closes connections that are idle for 5 s; a request at that moment has an unknown
    # outcome.
    idle_timeout: float = attrs.field(default=4.0, validator=validators.gt(0.0))
    poll: Backoff = Backoff(first=0.1, cap=5.0)
    keep_ids: bool = True

    def connection(self, rest: str) -> StorageConnection:
        """
        The account to connect to; `rest` is the part of the URL after the scheme.

        Raises:
            InvalidRequest: a part is missing or given twice, or there is a key and a credential;
                the text says which.
        """
        if self.connection_string:
            if rest or self.key:
                raise InvalidRequest(
                    "connection_string: nothing expected in url after 'storage-queue:', and no key"
                )
            found = parse_storage_connection(self.connection_string)
        else:
            found = self._from_url(rest)
        refuse_key(self.credential, has_key=bool(found.key or found.sas))
        if self.credential is None and not found.key and not found.sas:
            raise InvalidRequest(_KEY_EXPECTED)
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
