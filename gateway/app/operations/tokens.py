"""`pairgate token`: shared access signatures for clients of the configured endpoints."""

from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote, urlencode

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.config.endpoints import AMQP, ONE_PORT, STORAGE_QUEUE, address_of, requires_tls
from gateway.config.options import Config
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.storage_queue import EMULATOR_ACCOUNT, StorageAccount
from gateway.frontends.auth import EMULATOR_POLICY
from gateway.wire.http.hosts import split_url
from gateway.wire.servicebus.sas import sign_sas
from gateway.wire.storage_queue.sas import build_sas

STORAGE_VERSION: Final = "2021-12-02"  # of the SAS: Azure and Azurite know this version
OF_ACCOUNT: Final = "rwdlacup"  # all permissions of an account SAS that queues know
OF_QUEUE: Final = "raup"  # all permissions of a queue's SAS
_SERVICE_BUS: Final = (ONE_PORT, "service-bus-http", AMQP)


@attrs.frozen(kw_only=True)
class SignedToken:
    """A signed token: its holder needs no key until it expires."""

    token: str = attrs.field(repr=False)
    url: str  # of the entity, or of the endpoint
    signed_by: str  # the policy or the account
    expires: datetime


@attrs.frozen(kw_only=True)
class Grant:
    """The scope of a token."""

    entity: str | None  # None: the whole namespace
    valid: timedelta
    url: str | None = None  # of the endpoint; None: the first fitting one of the configuration
    port_offset: int = 0


def service_bus_token(
    config: Config, now: datetime, grant: Grant, *, policy: str | None, right: Right
) -> SignedToken:
    """
    A token for Service Bus, signed by that access policy, else by the one with the fewest rights
    that has the right and covers the entity. It has all rights of the policy.

    Raises:
        Failure: there is no such policy, or no endpoint for Service Bus.
    """
    entity = _path_of(grant.entity)
    chosen = _policy(config, entity, policy, right)
    base = _base(config, grant, _SERVICE_BUS)
    url = base if entity is None else f"{base}/{quote(entity.name)}"
    expires = _expiry(now, grant.valid)
    signed = sign_sas(
        url if entity else f"{base}/", chosen.name, chosen.keys[0], int(expires.timestamp())
    )
    return SignedToken(token=signed, url=url, signed_by=chosen.name, expires=expires)


def storage_token(
    config: Config, now: datetime, grant: Grant, *, account: str | None, permissions: str | None
) -> SignedToken:
    """
    A SAS for Storage Queue, as the parameters of a URL: of one queue, or of the whole account.

    Raises:
        Failure: there is no such account, no endpoint for Storage Queue, or no such permission.
    """
    queue = None if grant.entity is None else grant.entity
    allowed = OF_ACCOUNT if queue is None else OF_QUEUE
    chosen, wanted = _account(config, account), allowed if permissions is None else permissions
    if not wanted or set(wanted) - set(allowed):
        text = f"--permissions: some of the letters {allowed!r} expected, found {wanted!r}"
        raise Failure(text, ExitCode.WRONG)
    base, expires = _base(config, grant, (STORAGE_QUEUE,)), _expiry(now, grant.valid)
    values = {"sv": STORAGE_VERSION, "se": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}
    # The service demands this order of the letters.
    values["sp"] = "".join(letter for letter in allowed if letter in wanted)
    if queue is None:
        values |= {"ss": "q", "srt": "sco"}
    if base.startswith("https:"):
        values["spr"] = "https"
    values["sig"] = build_sas(values, account=chosen.name, queue=queue, key=chosen.keys[0])
    url = f"{base}/{chosen.name}" if queue is None else f"{base}/{chosen.name}/{quote(queue)}"
    return SignedToken(token=urlencode(values), url=url, signed_by=chosen.name, expires=expires)


def _path_of(entity: str | None) -> EntityPath | None:
    try:
        return None if entity is None else EntityPath.parse(entity)
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error


def _policy(
    config: Config, entity: EntityPath | None, name: str | None, right: Right
) -> AccessPolicy:
    policies = [each for each in config.access or (EMULATOR_POLICY,) if each.keys]
    scope = "all entities" if entity is None else str(entity)
    if name is not None:
        named = [each for each in policies if each.name == name]
        if not named:
            known = ", ".join(sorted(each.name for each in policies))
            raise Failure(
                f"there is no [[access]] with a key named {name!r}; there are {known}",
                ExitCode.WRONG,
            )
        policies = named
    fitting = [each for each in policies if each.grants(right) and each.covers(entity)]
    if not fitting:
        subject = (
            "no [[access]] with a key has" if name is None else f"[[access]] {name!r} doesn't have"
        )
        raise Failure(f"{subject} the right {right.value} for {scope}", ExitCode.WRONG)
    return min(fitting, key=lambda each: (len(each.rights), Right.MANAGE in each.rights))


def _account(config: Config, name: str | None) -> StorageAccount:
    accounts = [each for each in config.accounts or (EMULATOR_ACCOUNT,) if each.keys]
    for account in accounts:
        if name in {None, account.name}:
            return account
    known = ", ".join(account.name for account in accounts)
    which = "with a key" if name is None else f"with a key named {name!r}"
    raise Failure(f"there is no [[accounts]] {which}; there are {known or 'none'}", ExitCode.WRONG)


def _base(config: Config, grant: Grant, protocols: tuple[str, ...]) -> str:
    """The endpoint's URL without its last slash."""
    if grant.url is not None:
        wrong = Failure("--url: http(s)://HOST[:PORT] expected", ExitCode.WRONG)
        try:
            parts = split_url(grant.url)
        except ValueError as error:
            raise wrong from error
        if parts.scheme not in {"http", "https", "sb", "amqp", "amqps"} or not parts.hostname:
            raise wrong
        return grant.url.rstrip("/")
    for endpoint in config.endpoints:
        address = address_of(endpoint, grant.port_offset)
        if endpoint.protocol in protocols and address is not None:
            scheme = "https" if requires_tls(endpoint) else "http"
            return f"{scheme}://{address}"
    names = " or ".join(f"`{each}`" for each in protocols)
    text = f"this configuration has no endpoint {names} with a port; name one with --url"
    raise Failure(text, ExitCode.WRONG)


def _expiry(now: datetime, valid: timedelta) -> datetime:
    """The date of expiry, in whole seconds."""
    return (now + valid).replace(microsecond=0)
