"""`[claims]` and `[[packing]]`, and what is wrong with them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from gateway.brokers.entra.options import CredentialOptions
from gateway.config.options import Config
from gateway.config.places import absolute, problems_of_credential
from gateway.domain.errors import InvalidRequest
from gateway.domain.option_fields import FLAT
from gateway.extensions.claims.options import ClaimOptions, PackingRule
from gateway.extensions.tables import Table
from gateway.wire.azure_blob import check_container, parse_blob_account

_ACCOUNT_KEY: Final = re.compile(r"(^|;) *(AccountKey|SharedAccessSignature) *=", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class Claims:
    """`[claims]`: without this section every body stays in its message."""

    store: str  # folder:PATH or azure-blob:CONNECTION_STRING, without its key
    container: str = "pairgate-claims"  # of azure-blob
    key: str = attrs.field(default="", repr=False)
    connection_string: str = attrs.field(default="", repr=False)  # instead of both
    credential: CredentialOptions | None = None  # of azure-blob, instead of the key
    options: ClaimOptions = attrs.field(factory=ClaimOptions, metadata=FLAT)


CLAIMS: Final = Table[Claims | None](name="claims", kind=Claims | None, missing=None)
PACKING: Final = Table[tuple[PackingRule, ...]](
    name="packing", kind=tuple[PackingRule, ...], missing=()
)


def completed(config: Config, folder: Path) -> Config:
    """The configuration with the store's path below its folder."""
    claims = config.of(CLAIMS)
    if claims is None:
        return config
    store = absolute(claims.store, folder, own="folder")
    return config.with_table(CLAIMS, attrs.evolve(claims, store=store))


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    claims = config.of(CLAIMS)
    if claims is None:
        return
    scheme, _, rest = claims.store.partition(":")
    if scheme == "folder":
        if not rest:
            yield "claims.store: a path expected after 'folder:'"
        return
    if scheme != "azure-blob":
        yield "claims.store: folder:PATH or azure-blob:CONNECTION_STRING expected"
        return
    if _ACCOUNT_KEY.search(rest):
        yield "claims.store: must not contain a secret; write key = { env = ... }"
        return
    try:
        check_container(claims.container)
    except InvalidRequest as error:
        yield f"claims.{error}"
    yield from _blob_account(claims, claims.connection_string or rest)


def _blob_account(claims: Claims, text: str) -> Iterator[str]:
    credential = claims.credential
    try:
        account = parse_blob_account(text, claims.key, needs_key=credential is None)
    except InvalidRequest as error:
        yield f"claims.store: {error}"
        return
    if credential is not None:
        hosts = [account.host]
        for problem in problems_of_credential(credential, is_plain=not account.secure, hosts=hosts):
            yield f"claims.credential{problem}"


def warnings(config: Config) -> Iterator[str]:
    """Yield a line if only one of diverted messages and large bodies is encrypted."""
    claims, pairing = config.of(CLAIMS), config.pairing
    if claims is None or pairing is None or claims.options.encrypt == pairing.encrypt:
        return
    if pairing.encrypt:
        yield (
            "claims.encrypt: false, although pairing.encrypt is true: the store's owner can read"
            " the large bodies"
        )
    else:
        yield (
            "pairing.encrypt: false, although claims.encrypt is true: the secondary's owner can"
            " read the keys of the large bodies that were diverted"
        )
