"""
Authentication at the Queue service: as the owner of an account, by a shared access signature, or by
a bearer token, whose rights are those of the access policies that are for it.
"""

import hmac
import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.access import Access, ClientIdentity, OnRefused, Refusal, Right, TokenClaim
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotAuthorized
from gateway.domain.storage_queue import EMULATOR_ACCOUNT, StorageAccount
from gateway.frontends.auth import Authorizer, is_bearer
from gateway.frontends.storage_queue.delegation import (
    DelegatedSas,
    Delegation,
    bad_token,
    failed,
    not_permitted,
    unauthenticated,
    why_of,
)
from gateway.net.visits import record_authorized
from gateway.ports import WallClock
from gateway.wire.http.date import parse_http_date
from gateway.wire.http.messages import Request
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.address import Address, locate, parameters_of
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.sas import Sas, parse_sas, parse_time
from gateway.wire.storage_queue.signing import parse_authorization, sign, strings_to_sign

MAX_CLOCK_SKEW: Final = timedelta(minutes=15)
FIRST_WITH_KEYS: Final = "2018-11-09"  # the first version with user delegation keys

_FOR_USER: Final = "sduoid="  # in the address of a request whose SAS names its user
_ACCOUNT: Final = "s"  # signed resource types: the service, a container, an object
_QUEUE: Final = "c"
_MESSAGE: Final = "o"


@attrs.frozen
class Needs:
    """The needed rights: an account SAS must have one of these types and permissions."""

    types: str
    permissions: str
    of_queue: str = ""  # the permission that a queue SAS needs; empty: a queue SAS never suffices


NEEDS: Final[Mapping[type[storage.Operation], Needs]] = {
    storage.ListQueues: Needs(_ACCOUNT, "l"),
    storage.GetServiceProperties: Needs(_ACCOUNT, "r"),
    storage.SetServiceProperties: Needs(_ACCOUNT, "w"),
    storage.GetStats: Needs(_ACCOUNT, "r"),
    storage.CreateQueue: Needs(_QUEUE, "cw"),
    storage.DeleteQueue: Needs(_QUEUE, "d"),
    storage.GetMetadata: Needs(_QUEUE, "r", "r"),
    storage.SetMetadata: Needs(_QUEUE, "w"),
    storage.PutMessage: Needs(_MESSAGE, "a", "a"),
    storage.GetMessages: Needs(_MESSAGE, "p", "p"),
    storage.PeekMessages: Needs(_MESSAGE, "r", "r"),
    storage.UpdateMessage: Needs(_MESSAGE, "u", "u"),
    storage.DeleteMessage: Needs(_MESSAGE, "p", "p"),
    storage.ClearMessages: Needs(_MESSAGE + _QUEUE, "d"),
}


# The right that a token needs. Reading a queue's metadata and length is part of listening, as it is
# for Azure's roles of readers and processors.
_RIGHTS: Final[Mapping[type[storage.Operation], Right]] = {
    storage.PutMessage: Right.SEND,
    storage.GetMessages: Right.LISTEN,
    storage.PeekMessages: Right.LISTEN,
    storage.UpdateMessage: Right.LISTEN,
    storage.DeleteMessage: Right.LISTEN,
    storage.GetMetadata: Right.LISTEN,
}

Credential = Sas | DelegatedSas | TokenClaim | None
"""The credential that a request came with; None: the account's owner signed it."""


@attrs.frozen(kw_only=True)
class Circumstances:
    """Circumstances of a request that a SAS may restrict besides the operation."""

    secure: bool
    peer: str | None  # the client's address; None if unknown
    account: str = ""


def _ignore(name: str, why: Refusal) -> None:
    """Ignore the refusal."""


class Accounts:
    """
    The storage accounts of one endpoint.

    Without accounts, an endpoint with `accepts_well_known_key` accepts the emulators' account
    alone, and any other endpoint no account.
    """

    def __init__(
        self,
        accounts: Iterable[StorageAccount],
        *,
        wall_clock: WallClock,
        accepts_well_known_key: bool = False,
        on_refused: OnRefused = _ignore,
        authorizer: Authorizer | None = None,
    ) -> None:
        """
        Use these accounts. `on_refused` is called for each client whose credentials are refused.
        `authorizer` checks bearer tokens; None: they aren't accepted.
        """
        self._authorizer = authorizer
        self._on_refused = on_refused
        self._wall_clock = wall_clock
        self._accepts_well_known_key = accepts_well_known_key
        self._accounts: dict[str, StorageAccount] = {}
        self._delegation = Delegation(
            lambda account: self._accounts[account].keys, wall_clock, authorizer
        )
        self.replace(accounts)

    def replace(self, accounts: Iterable[StorageAccount]) -> None:
        """Replace all accounts."""
        chosen = tuple(accounts) or ((EMULATOR_ACCOUNT,) if self._accepts_well_known_key else ())
        self._accounts = {account.name: account for account in chosen}

    @property
    def is_open(self) -> bool:
        """True if the only account is the emulators', whose key is well known."""
        return self._accounts == {EMULATOR_ACCOUNT.name: EMULATOR_ACCOUNT}

    @property
    def names(self) -> Collection[str]:
        return self._accounts

    def locate(self, request: Request, *, secure: bool) -> Address:
        """
        Find the account and the entity of a request.

        Raises:
            StorageRefusal: ResourceNotFound: there is no such account.
        """
        try:
            return locate(request, self._accounts, secure=secure)
        except StorageRefusal as error:
            if error.code == "ResourceNotFound":
                self._on_refused(_claimed_account(request), Refusal.UNKNOWN_NAME)
            raise

    def marks(self, text: bytes) -> Sequence[bytes]:
        """
        The signatures of our own text, one for each key of each account. A receipt of an account
        without a key is no secret: it is of use only to a client with the right to listen.
        """
        accounts = self._accounts.values()
        keys = [key for account in accounts for key in account.keys or (account.name.encode(),)]
        return [hmac.digest(key, text, "sha256") for key in keys]

    @property
    def challenge(self) -> str | None:
        """
        The WWW-Authenticate header of a refusal, as the service writes it: the source of a token,
        and the resource. None: no token is accepted.
        """
        issuers = None if self._authorizer is None else self._authorizer.issuers
        source = None if issuers is None else issuers.token_source
        return source and f"Bearer authorization_uri={source[0]} resource_id={source[1]}"

    def authenticate(self, request: Request, address: Address, version: str | None) -> Credential:
        """
        Authenticate a request: None for the account's owner, else the SAS or the token's claim that
        it came with. A token beside a SAS counts alone, unless the SAS is for the token's user.

        Raises:
            StorageRefusal: the signature or token is invalid or missing, or the request's date is
                too far from ours.
            Busy: the keys of the token's issuer can't be read, or the client has as many
                connections as it may.
        """
        authorization = request.headers.get("Authorization")
        takes_tokens = self._authorizer is not None and self._authorizer.takes_bearer_tokens
        token: TokenClaim | None = None
        if takes_tokens and authorization is not None and is_bearer(authorization):
            token = self._authenticated_by_token(authorization)
            if _FOR_USER not in request.target:
                return token
        elif authorization is None and (claim := self._claim_of_certificate(request)) is not None:
            return claim
        try:
            return self._authenticated(request, address, version, token)
        except StorageRefusal as error:
            self._on_refused(address.account, why_of(error, Refusal.MALFORMED))
            raise

    def _claim_of_certificate(self, request: Request) -> TokenClaim | None:
        """The claim by the client's certificate; a shared access signature comes before it."""
        if self._authorizer is None or parse_sas(parameters_of(request.target)) is not None:
            return None
        claim = self._authorizer.claim_of_certificate()
        if claim is not None:
            record_authorized(claim.key_name)
        return claim

    def _authenticated_by_token(self, authorization: str) -> TokenClaim:
        assert self._authorizer is not None, "it has the issuers"
        try:
            return self._authorizer.claim(authorization)
        except NotAuthorized as error:
            raise bad_token(str(error)) from error

    def _authenticated(
        self, request: Request, address: Address, version: str | None, token: TokenClaim | None
    ) -> Credential:
        """As `authenticate`, for a request with the given token, if it has one."""
        authorization = request.headers.get("Authorization")
        if authorization is not None and token is None:
            self._check_signature(request, address, version, authorization)
            return None
        sas = parse_sas(parameters_of(request.target))
        if sas is None and token is not None:
            return token
        if sas is None:
            text = "The request has neither an Authorization header nor a shared access signature."
            if self.challenge is not None:
                raise unauthenticated(text)
            raise failed(text, Refusal.MISSING)
        if sas.is_delegated:
            found = self._delegation.verify(sas, address.account, address.queue, token)
            if token is None:
                record_authorized(found.claim.key_name)
            return found
        string = sas.string_to_sign(address.account, address.queue)
        self._check(address.account, [string], sas.digest)
        return sas

    def _check_signature(
        self, request: Request, address: Address, version: str | None, authorization: str
    ) -> None:
        signature = parse_authorization(authorization)
        if signature.account != address.account:
            raise failed("The signature is for another account.", Refusal.NOT_ALLOWED)
        strings = strings_to_sign(request, signature.scheme, address.account, version)
        self._check(address.account, strings, signature.digest)
        text = request.headers.get("x-ms-date") or request.headers.get("Date") or ""
        date = parse_http_date(text)
        if date is None:
            raise failed("x-ms-date or Date: a date is expected.")
        if abs(date - self._wall_clock()) > MAX_CLOCK_SKEW:
            detail = f"The request's date {text[:40]} is more than 15 minutes from ours."
            raise failed(detail, Refusal.EXPIRED)

    def _check(self, account: str, strings: Sequence[str], digest: bytes) -> None:
        """Compare all keys with all strings, each in the same time."""
        fits = [
            hmac.compare_digest(sign(string, key), digest)
            for key in self._accounts[account].keys
            for string in strings
        ]
        if not any(fits):
            raise failed("The signature is not by a key of the account.", Refusal.WRONG_KEY)
        record_authorized(account)

    def authorize_token(
        self, claim: TokenClaim, operation: storage.Operation, address: Address
    ) -> None:
        """
        Check that an access policy gives the token's client the right to this operation now.

        Raises:
            StorageRefusal: no policy does.
        """
        assert self._authorizer is not None, "it has verified the token"
        queue = None if address.queue is None else EntityPath.parse(address.queue)
        right = _RIGHTS.get(type(operation), Right.MANAGE)
        path = "" if queue is None else queue.name
        try:
            self._authorizer.require(claim, Access(right=right, entity=queue, path=path))
        except NotAuthorized as error:
            raise not_permitted(error) from error

    def delegate(
        self,
        credential: Credential,
        wish: storage.GetUserDelegationKey,
        address: Address,
        version: str | None,
    ) -> storage.UserDelegationKey:
        """
        A user delegation key for a client with a bearer token.

        Raises:
            StorageRefusal: the client has another credential, or may have no such key.
        """
        if not isinstance(credential, TokenClaim) or not isinstance(
            credential.identity, ClientIdentity
        ):
            raise failed("Only authentication scheme Bearer is supported.", Refusal.NOT_ALLOWED)
        return self._delegation.make(credential, wish, address.account, version or FIRST_WITH_KEYS)

    def authorize_delegated(
        self,
        credential: DelegatedSas,
        operation: storage.Operation,
        address: Address,
        dependencies: Circumstances,
    ) -> None:
        """
        Return if the signature by a user delegation key, and the access policies of the identity
        that got the key, allow the operation now.

        Raises:
            StorageRefusal: the code says which condition isn't met.
        """
        self.authorize(credential.sas, operation, None, dependencies)
        self.authorize_token(credential.claim, operation, address)

    def authorize(
        self,
        sas: Sas,
        operation: storage.Operation,
        policy: storage.StoredPolicy | None,
        dependencies: Circumstances,
    ) -> None:
        """
        Return if the SAS, together with the stored policy that it names, allows the operation now.

        Raises:
            StorageRefusal: the code says which condition isn't met.
        """
        try:
            self._check_terms(sas, operation, policy, dependencies)
        except StorageRefusal as error:
            stored = sas.get("si")
            name = f"{dependencies.account}/{stored}" if stored else dependencies.account
            malformed = error.code == "AuthenticationFailed"
            why = Refusal.MALFORMED if malformed else Refusal.NOT_ALLOWED
            self._on_refused(name, why_of(error, why))
            raise

    def _check_terms(
        self,
        sas: Sas,
        operation: storage.Operation,
        policy: storage.StoredPolicy | None,
        dependencies: Circumstances,
    ) -> None:
        terms = _terms(sas, policy)
        _check_times(terms, self._wall_clock())
        _check_circumstances(sas, dependencies)
        needs = NEEDS.get(type(operation))
        if needs is None:
            raise StorageRefusal("AuthorizationFailure", "Only the account's key allows it.")
        allowed = set(terms["sp"])
        if not sas.of_account:
            if not needs.of_queue or needs.of_queue not in allowed:
                raise StorageRefusal("AuthorizationPermissionMismatch")
            return
        if "q" not in sas.get("ss"):
            raise StorageRefusal("AuthorizationServiceMismatch")
        if not set(sas.get("srt")) & set(needs.types):
            raise StorageRefusal("AuthorizationResourceTypeMismatch")
        if not allowed & set(needs.permissions):
            raise StorageRefusal("AuthorizationPermissionMismatch")


def _claimed_account(request: Request) -> str:
    try:
        return parse_authorization(request.headers.get("Authorization") or "").account
    except StorageRefusal:
        return ""


def _terms(sas: Sas, policy: storage.StoredPolicy | None) -> dict[str, str]:
    """The terms of the SAS; each comes from the SAS or from its stored policy, never from both."""
    own = {name: sas.get(name) for name in ("st", "se", "sp")}
    if sas.of_account or not sas.get("si"):  # an account's signature doesn't cover `si`
        return own
    if policy is None:
        raise failed(
            "The stored policy that the signature names doesn't exist.", Refusal.UNKNOWN_NAME
        )
    stored = {"st": policy.start, "se": policy.expiry, "sp": policy.permission}
    both = [name for name, value in own.items() if value and stored[name]]
    if both:
        raise failed(f"{', '.join(both)}: given both in the signature and in its stored policy.")
    return {name: value or stored[name] or "" for name, value in own.items()}


def _check_times(terms: Mapping[str, str], now: datetime) -> None:
    start, expiry = parse_time("st", terms["st"]), parse_time("se", terms["se"])
    if expiry is None:
        raise failed("se: is missing.")
    if expiry <= now:
        raise failed(f"The signature expired at {terms['se'][:40]}.", Refusal.EXPIRED)
    if start is not None and start > now:
        detail = f"The signature isn't valid before {terms['st'][:40]}."
        raise failed(detail, Refusal.EXPIRED)


def _check_circumstances(sas: Sas, dependencies: Circumstances) -> None:
    if sas.get("spr").lower() == "https" and not dependencies.secure:
        raise StorageRefusal("AuthorizationProtocolMismatch")
    first, dash, last = sas.get("sip").partition("-")
    if not first:
        return
    try:
        peer = int(ipaddress.IPv4Address(dependencies.peer or ""))
        low = int(ipaddress.IPv4Address(first))
        high = int(ipaddress.IPv4Address(last)) if dash else low
    except ValueError:
        peer, low, high = 0, 1, 0
    if not low <= peer <= high:
        extra = {"SourceIP": dependencies.peer or ""}
        raise StorageRefusal("AuthorizationSourceIPMismatch", extra=extra)
