"""Refusals of credentials at the Queue service, each with its reason for the log."""

from gateway.domain.access import Refusal
from gateway.domain.errors import NotAuthorized
from gateway.wire.storage_queue.errors import StorageRefusal


class _Refused(StorageRefusal):
    def __init__(self, code: str, detail: str, why: Refusal) -> None:
        super().__init__(code, extra={"AuthenticationErrorDetail": detail})
        self.why = why


def failed(detail: str, why: Refusal = Refusal.MALFORMED) -> StorageRefusal:
    return _Refused("AuthenticationFailed", detail, why)


def unauthenticated(detail: str) -> StorageRefusal:
    """The refusal that the client may answer by getting a token."""
    return _Refused("NoAuthenticationInformation", detail, Refusal.MISSING)


def not_permitted(error: NotAuthorized) -> StorageRefusal:
    """The refusal of an identity that no access policy gives the right."""
    extra = {"AuthorizationErrorDetail": str(error)}
    return StorageRefusal("AuthorizationPermissionMismatch", extra=extra)


def why_of(error: StorageRefusal, otherwise: Refusal) -> Refusal:
    """The reason for the log."""
    return error.why if isinstance(error, _Refused) else otherwise
