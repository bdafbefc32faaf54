"""Who asks the Queue service: the owner of an account, or whoever has a shared access signature."""

import functools
import hmac
import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import attrs

from gateway.domain.accounts import EMULATOR_ACCOUNT, StorageAccount
from gateway.ports import WallClock
from gateway.wire import storage_queue_operations as storage
from gateway.wire.http import Request
from gateway.wire.http_date import parse_http_date
from gateway.wire.storage_queue_address import Address, parameters_of
from gateway.wire.storage_queue_errors import StorageRefusal
from gateway.wire.storage_sas import Sas, parse_sas, parse_time
from gateway.wire.storage_signing import parse_authorization, sign, strings_to_sign

MAX_CLOCK_SKEW: Final = timedelta(minutes=15)

_ACCOUNT: Final = "s"  # signed resource types: the service, a container, an object
_QUEUE: Final = "c"
_MESSAGE: Final = "o"


@attrs.frozen
class Needs:
    """What a SAS must allow: for an account, one of these types and one of these permissions."""

    types: str
    permissions: str
    of_queue: str = ""  # the permission that a SAS of the queue needs; none: it never suffices


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


@attrs.frozen(kw_only=True)
class Circumstances:
    """What a SAS may ask for beside the operation."""

    secure: bool
    peer: str | None  # the client's address; None: nobody knows


class Accounts:
    """
    The accounts of one endpoint.

    Without any it has the emulators' well-known one if it is on loopback, and none if it isn't.
    """

    def __init__(
        self, accounts: Iterable[StorageAccount], *, wall_clock: WallClock, loopback: bool
    ) -> None:
        self._wall_clock = wall_clock
        self._loopback = loopback
        self._accounts: dict[str, StorageAccount] = {}
        self.replace(accounts)

    def replace(self, accounts: Iterable[StorageAccount]) -> None:
        """From now on, take these accounts and no other."""
        chosen = tuple(accounts) or ((EMULATOR_ACCOUNT,) if self._loopback else ())
        self._accounts = {account.name: account for account in chosen}

    @property
    def names(self) -> Collection[str]:
        return self._accounts

    def authenticate(self, request: Request, address: Address, version: str | None) -> Sas | None:
        """
        Tell whose request it is: the account's owner's (None), or whose who has that SAS.

        Raises:
            StorageRefusal: it is neither's, or its date is too far from ours.
        """
        authorization = request.headers.get("Authorization")
        if authorization is not None:
            self._check_signature(request, address, version, authorization)
            return None
        sas = parse_sas(parameters_of(request.target))
        if sas is None:
            raise failed("Neither an Authorization header nor a shared access signature is there.")
        string = sas.string_to_sign(address.account, address.queue)
        self._check(address.account, [string], sas.digest)
        return sas

    def _check_signature(
        self, request: Request, address: Address, version: str | None, authorization: str
    ) -> None:
        signature = parse_authorization(authorization)
        if signature.account != address.account:
            raise failed("The signature is of another account.")
        strings = strings_to_sign(request, signature.scheme, address.account, version)
        self._check(address.account, strings, signature.digest)
        text = request.headers.get("x-ms-date") or request.headers.get("Date") or ""
        date = _date(text)
        if date is None:
            raise failed("x-ms-date or Date: a date is expected.")
        if abs(date - self._wall_clock()) > MAX_CLOCK_SKEW:
            raise failed(f"The request's date {text[:40]} is more than 15 minutes from ours.")

    def _check(self, account: str, strings: Sequence[str], digest: bytes) -> None:
        """All keys and all strings are compared, each in the same time."""
        fits = [
            hmac.compare_digest(sign(string, key), digest)
            for key in self._accounts[account].keys
            for string in strings
        ]
        if not any(fits):
            raise failed("The signature is not by a key of the account.")

    def authorize(
        self,
        sas: Sas,
        operation: storage.Operation,
        policy: storage.StoredPolicy | None,
        around: Circumstances,
    ) -> None:
        """
        Return if the SAS, with the stored policy that it names, allows the operation now.

        Raises:
            StorageRefusal: with the code that says what doesn't fit.
        """
        terms = _terms(sas, policy)
        _check_times(terms, self._wall_clock())
        _check_circumstances(sas, around)
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


@functools.lru_cache(maxsize=64)  # thousands of requests are of one second
def _date(text: str) -> datetime | None:
    return parse_http_date(text)


def failed(detail: str) -> StorageRefusal:
    return StorageRefusal("AuthenticationFailed", extra={"AuthenticationErrorDetail": detail})


def _terms(sas: Sas, policy: storage.StoredPolicy | None) -> dict[str, str]:
    """Each from the SAS or from its policy, and never from both."""
    own = {name: sas.get(name) for name in ("st", "se", "sp")}
    if sas.of_account or not sas.get("si"):  # an account's signature doesn't cover `si`
        return own
    if policy is None:
        raise failed("The stored policy that the signature names isn't there.")
    stored = {"st": policy.start, "se": policy.expiry, "sp": policy.permission}
    both = [name for name, value in own.items() if value and stored[name]]
    if both:
        raise failed(f"{', '.join(both)}: in the signature and in its stored policy.")
    return {name: value or stored[name] or "" for name, value in own.items()}


def _check_times(terms: Mapping[str, str], now: datetime) -> None:
    start, expiry = parse_time("st", terms["st"]), parse_time("se", terms["se"])
    if expiry is None:
        raise failed("se: is missing.")
    if expiry <= now:
        raise failed(f"The signature expired at {terms['se'][:40]}.")
    if start is not None and start > now:
        raise failed(f"The signature isn't valid before {terms['st'][:40]}.")


def _check_circumstances(sas: Sas, around: Circumstances) -> None:
    if sas.get("spr").lower() == "https" and not around.secure:
        raise StorageRefusal("AuthorizationProtocolMismatch")
    first, dash, last = sas.get("sip").partition("-")
    if not first:
        return
    try:
        peer = int(ipaddress.IPv4Address(around.peer or ""))
        low = int(ipaddress.IPv4Address(first))
        high = int(ipaddress.IPv4Address(last)) if dash else low
    except ValueError:
        peer, low, high = 0, 1, 0
    if not low <= peer <= high:
        extra = {"SourceIP": around.peer or ""}
        raise StorageRefusal("AuthorizationSourceIPMismatch", extra=extra)
