"""
The identity in Microsoft Entra ID with which a namespace is accessed. Importing this module doesn't
import azure-identity.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from gateway.domain.errors import InvalidRequest
from gateway.domain.option_fields import SECRET

SERVICE_BUS_SCOPE: Final = "https://servicebus.azure.net/.default"
STORAGE_SCOPE: Final = "https://storage.azure.com/.default"
_TENANT: Final = re.compile(r"[A-Za-z0-9.-]*")
_AUTHORITY: Final = re.compile(r"https://[^/?#\s@]+/?")


class CredentialKind(enum.Enum):
    MANAGED_IDENTITY = "managed-identity"
    WORKLOAD_IDENTITY = "workload-identity"
    CLIENT_SECRET = "client-secret"
    CLIENT_CERTIFICATE = "client-certificate"


_OF_ALL: Final = frozenset({"kind", "client_id", "scope"})
_OF_TENANT: Final = _OF_ALL | {"tenant_id", "authority", "instance_discovery", "ca"}
_OPTIONS: Final[Mapping[CredentialKind, frozenset[str]]] = {
    CredentialKind.MANAGED_IDENTITY: _OF_ALL,
    CredentialKind.WORKLOAD_IDENTITY: _OF_TENANT | {"token_file"},
    CredentialKind.CLIENT_SECRET: _OF_TENANT | {"secret"},
    CredentialKind.CLIENT_CERTIFICATE: _OF_TENANT | {"certificate", "password", "send_chain"},
}
_NEEDED: Final[Mapping[CredentialKind, tuple[str, ...]]] = {
    CredentialKind.MANAGED_IDENTITY: (),
    # On AKS, the environment has the others.
    CredentialKind.WORKLOAD_IDENTITY: (),
    CredentialKind.CLIENT_SECRET: ("tenant_id", "client_id", "secret"),
    CredentialKind.CLIENT_CERTIFICATE: ("tenant_id", "client_id", "certificate"),
}


@attrs.frozen(kw_only=True)
class CredentialOptions:
    """`credential` of a namespace. `problems` says whether the options fit the kind."""

    kind: CredentialKind
    tenant_id: str = attrs.field(default="")  # or a domain of the tenant
    client_id: str = ""  # of a managed identity: of the user-assigned one; empty: system-assigned
    secret: str = attrs.field(default="", repr=False, metadata=SECRET)
    certificate: Path | None = None  # PEM or PKCS #12, with its RSA key
    password: str = attrs.field(default="", repr=False, metadata=SECRET)  # of the certificate's key
    send_chain: bool = False  # for an app that trusts a subject and issuer, not one certificate
    token_file: Path | None = None  # None: AZURE_FEDERATED_TOKEN_FILE
    # Of the identity provider; empty: AZURE_AUTHORITY_HOST, else https://login.microsoftonline.com.
    authority: str = attrs.field(default="")
    # True: a request to the public cloud checks the authority; false for private clouds.
    instance_discovery: bool = True
    ca: Path | None = None  # of the identity provider; None: the usual authorities
    scope: str = ""  # of the tokens; empty: the one of the namespace's kind

    @tenant_id.validator
    def _is_tenant(self, _: object, tenant_id: str) -> None:
        if not _TENANT.fullmatch(tenant_id):
            raise ValueError(f"the id of a tenant, or a domain of it, expected: {tenant_id!r:.60}")

    @authority.validator
    def _is_authority(self, _: object, authority: str) -> None:
        if authority and not _AUTHORITY.fullmatch(authority):
            raise ValueError("https://HOST[:PORT] expected, without a user")

    def problems(self) -> Iterator[str]:
        """
        Return a line for each option that is missing or doesn't fit the kind, with its key first.
        """
        kind = self.kind.value
        for name in _NEEDED[self.kind]:
            if not getattr(self, name):
                yield f'{name}: is missing; kind = "{kind}" needs it'
        for field in attrs.fields(CredentialOptions):
            if field.name not in _OPTIONS[self.kind] and getattr(self, field.name) != field.default:
                yield f'{field.name}: isn\'t for kind = "{kind}"'


def refuse_key(options: CredentialOptions | None, *, has_key: bool) -> None:
    """
    Check that a namespace isn't accessed by a key and a credential.

    Raises:
        InvalidRequest: it has both.
    """
    if options is not None and has_key:
        raise InvalidRequest("credential: leave out the key and its name, or the credential")
