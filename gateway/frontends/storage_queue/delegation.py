"""
User delegation keys of a Queue service endpoint: the clients that get a key, and the signatures by
keys.

A key is derived from the account's own keys, so that gateways with the same accounts accept each
other's, after a restart too. An account without keys has a secret that ends with the process.

A refusal of a credential has its reason, for the log.
"""

import hmac
import secrets
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.access import ClientIdentity, Refusal, TokenClaim
from gateway.domain.errors import NotAuthorized
from gateway.frontends.auth import Authorizer
from gateway.frontends.issuers import EVERYTHING
from gateway.ports import WallClock
from gateway.wire.storage_queue.delegation import (
    SERVICE,
    identity_of,
    key_of,
    tenant_of,
    value_of,
    written,
)
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.operations import GetUserDelegationKey, UserDelegationKey
from gateway.wire.storage_queue.sas import Sas, parse_time
from gateway.wire.storage_queue.signing import sign


class _AccountRefusal(StorageRefusal):
    def __init__(self, code: str, detail: str, why: Refusal, says: str = "") -> None:
        super().__init__(code, says=says, extra={"AuthenticationErrorDetail": detail})
        self.why = why


def failed(detail: str, why: Refusal = Refusal.MALFORMED) -> StorageRefusal:
    return _AccountRefusal("AuthenticationFailed", detail, why)


def unauthenticated(detail: str) -> StorageRefusal:
    """The refusal that the client may answer by getting a token."""
    return _AccountRefusal("NoAuthenticationInformation", detail, Refusal.MISSING)


def bad_token(detail: str) -> StorageRefusal:
    """As `unauthenticated`, for a client with a token that isn't accepted."""
    code, says = "NoAuthenticationInformation", "InvalidAuthenticationInfo"
    return _AccountRefusal(code, detail, Refusal.MALFORMED, says)


def not_permitted(error: NotAuthorized) -> StorageRefusal:
    """The refusal of an identity that no access policy gives the right."""
    extra = {"AuthorizationErrorDetail": str(error)}
    return StorageRefusal("AuthorizationPermissionMismatch", extra=extra)


def why_of(error: StorageRefusal, otherwise: Refusal) -> Refusal:
    """The reason for the log."""
    return error.why if isinstance(error, _AccountRefusal) else otherwise


LONGEST: Final = timedelta(days=7)
FIRST_WITH_USERS: Final = "2025-07-05"  # the first version whose signatures may name their user
_OBJECT_ID: Final = "oid"  # the claim by which Entra ID identifies a user


@attrs.frozen(kw_only=True)
class DelegatedSas:
    """A signature by a user delegation key: the client has the rights that both allow."""

    sas: Sas
    claim: TokenClaim


@attrs.frozen(eq=False)
class Delegation:
    """Makes the keys, and checks signatures by them."""

    keys_of: Callable[[str], Sequence[bytes]]  # of an account, the first one signs
    wall_clock: WallClock
    authorizer: Authorizer | None  # None: no token is accepted
    _own: bytes = attrs.field(factory=lambda: secrets.token_bytes(32), init=False, repr=False)

    def make(
        self, claim: TokenClaim, wish: GetUserDelegationKey, account: str, version: str
    ) -> UserDelegationKey:
        """
        A key for the client with that claim.

        Raises:
            StorageRefusal: the client has no token or no access policy, or the key's life is longer
                than seven days, or over.
        """
        now = self.wall_clock()
        start = wish.start or now
        if not max(start, now) < wish.expiry <= min(start, now) + LONGEST:
            text = "Expiry: a date within seven days from Start, and from now, is expected."
            raise StorageRefusal("InvalidXmlNodeValue", text, extra={"XmlNodeName": "Expiry"})
        assert self.authorizer is not None, "it has verified the token"
        try:
            identity = self.authorizer.delegated(claim)
        except NotAuthorized as error:
            raise not_permitted(error) from error
        if not identity.name.isprintable():  # a line feed would end the line of the signed text
            raise StorageRefusal("AuthorizationFailure", "The token's subject can't be signed.")
        key = UserDelegationKey(
            object_id=identity.subject,
            tenant_id=tenant_of(identity),
            start=written(start),
            expiry=written(wish.expiry),
            service=SERVICE,
            version=version,
        )
        value = value_of(self._secrets(account)[0], account, key)
        return attrs.evolve(key, value=b64encode(value).decode())

    def verify(
        self, sas: Sas, account: str, queue: str | None, token: TokenClaim | None = None
    ) -> DelegatedSas:
        """
        Check that a key of ours has signed, that the key is valid now, and that `token` is of the
        user whom the signature names, if it names one (`sduoid`). The other terms of the signature,
        and the rights of the identity, aren't checked.

        Raises:
            StorageRefusal: AuthenticationFailed.
        """
        key = key_of(sas)
        if self.authorizer is None or not self.authorizer.takes_bearer_tokens:
            raise failed("No token is accepted here, so nobody has a key.", Refusal.UNKNOWN_ISSUER)
        for name in ("ss", "srt", "si"):
            if sas.get(name):
                raise failed(f"{name}: isn't supported with a user delegation key.")
        if sas.get("skdutid"):
            raise failed("skdutid: isn't supported: no key is for users of another tenant.")
        string = sas.string_to_sign(account, queue)
        fits = [
            hmac.compare_digest(sign(string, value_of(secret, account, key)), sas.digest)
            for secret in self._secrets(account)
        ]
        if not any(fits):
            raise failed("The signature is not by a key that this account gave.", Refusal.WRONG_KEY)
        start, expiry = _dates(key)
        if not start <= self.wall_clock() < expiry:
            text = f"The key is valid from {key.start} to {key.expiry}."
            raise failed(text, Refusal.EXPIRED)
        identity = identity_of(key)
        if sas.get("sduoid"):
            _check_user(sas, token, identity.issuer)
        claim = TokenClaim(
            key_name=identity.name,
            resource=EVERYTHING,
            expires=int(expiry.timestamp()),
            identity=identity,
            skew=timedelta(0),
        )
        return DelegatedSas(sas=sas, claim=claim)

    def _secrets(self, account: str) -> Sequence[bytes]:
        return self.keys_of(account) or (self._own,)


def _check_user(sas: Sas, token: TokenClaim | None, issuer: str) -> None:
    """
    Check that the token is of the user whom the signature names: a user of the same provider as the
    key's owner, identified by the claim `oid`, or by its subject if the token has no such claim.

    Raises:
        StorageRefusal: AuthenticationFailed.
    """
    if sas.get("sv") < FIRST_WITH_USERS:
        raise failed(f"sduoid: sv must be {FIRST_WITH_USERS} or later.")
    if token is None:
        raise failed("sduoid: needs the bearer token of this user, too.", Refusal.MISSING)
    user = token.identity
    assert isinstance(user, ClientIdentity), "only a token's claim is given"
    known = user.claims.get(_OBJECT_ID, user.subject)
    if user.issuer != issuer or known != sas.get("sduoid"):
        raise failed("sduoid: the bearer token is of another user.", Refusal.NOT_ALLOWED)


def _dates(key: UserDelegationKey) -> tuple[datetime, datetime]:
    start, expiry = parse_time("skt", key.start), parse_time("ske", key.expiry)
    assert start is not None, "we have written it, as the signature shows"
    assert expiry is not None, "as the start"
    return start, expiry
