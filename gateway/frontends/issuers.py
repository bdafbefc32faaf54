"""
The identity providers whose tokens a process accepts, and their keys.

Keys are read in the background: at the start, regularly, and when a token names a key that isn't
known. While a provider is down, the keys that it had last stay in use. A request waits for a read
only if its token's key isn't known, and only for a short time.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

import attrs
import trio
from attrs import validators

from gateway.changes import Changes
from gateway.domain.access import ClientIdentity, Issuer, Refusal, Refused, TokenClaim
from gateway.domain.errors import Busy, NotAuthorized
from gateway.domain.events.access import IssuerKeysRead, IssuerUnavailable
from gateway.net.openid import KeyReader, KeySource, Provided, ProviderFailed, ReadKeys
from gateway.ports import Observer, WallClock
from gateway.wire.openid.jwt import (
    Jwt,
    audiences_of,
    check_terms,
    expiry_of,
    issuer_of,
    parse_jwt,
    subject_of,
)
from gateway.wire.openid.keys import KeySet, fits_a_header

WAIT_SECONDS: Final = 3.0  # of a request, for the keys of its token
PAUSE: Final = 10.0  # seconds between two reads that tokens with unknown keys cause
_FIRST_RETRY: Final = 1.0  # seconds after a failure, doubled with each further one
_LAST_RETRY: Final = 60.0  # seconds: tokens of a provider that is back are accepted within a minute
# The resource of a token that names none: the whole endpoint.
EVERYTHING: Final = "amqp://any/"


@attrs.frozen(kw_only=True)
class IssuerOptions:
    """An entry of `[[issuers]]`. Times are in seconds."""

    issuer: Issuer
    source: KeySource = attrs.field(factory=KeySource)
    # Between two reads of the keys.
    refresh: float = attrs.field(default=3600.0, validator=validators.ge(60.0))


def make_reader(options: IssuerOptions) -> ReadKeys:
    """Reads the keys as configured."""
    return KeyReader(options.issuer.issuer, options.source).read


@attrs.define(eq=False, kw_only=True)
class Provider:
    """An identity provider: its keys as they were read last, and the task that reads them."""

    options: IssuerOptions
    read: ReadKeys
    observer: Observer
    on_changed: Callable[[], None]  # tokens that were valid may be invalid afterwards
    keys: KeySet | None = attrs.field(default=None, init=False)
    authorization_endpoint: str | None = attrs.field(default=None, init=False)
    failure: str | None = attrs.field(default=None, init=False)  # of the last read
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _asked: float = attrs.field(default=-math.inf, init=False)  # when a token caused a read
    _is_reading: bool = attrs.field(default=False, init=False)
    _wanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _reads: Changes = attrs.field(factory=Changes, init=False)

    @property
    def issuer(self) -> Issuer:
        return self.options.issuer

    def knows(self, token: Jwt) -> bool:
        """True if one of its keys may have signed the token."""
        return self.keys is not None and self.keys.knows(token)

    async def ask(self, wait: float) -> None:
        """
        Wait for the keys to be read again, for `wait` seconds at most. Does nothing if they were
        requested just before.
        """
        if not self._is_reading:
            now = trio.current_time()
            if now < self._asked + PAUSE:
                return
            self._asked = now
            self._wanted.set()
        with trio.move_on_after(wait):
            await self._reads.wait_next()

    async def run(self) -> None:
        """Read the keys, again and again, until `scope` is cancelled."""
        failures = 0
        with self.scope:
            while True:
                self._wanted = trio.Event()
                self._is_reading = True
                try:
                    self._adopt(await self.read())
                    failures = 0
                except ProviderFailed as error:
                    self._record_failure(str(error))
                    failures += 1
                finally:
                    self._is_reading = False
                self._reads.notify()
                retry = min(_FIRST_RETRY * 2.0 ** min(failures - 1, 10), _LAST_RETRY)
                with trio.move_on_after(retry if failures else self.options.refresh):
                    await self._wanted.wait()

    def _adopt(self, provided: Provided) -> None:
        before = frozenset[str]() if self.keys is None else self.keys.thumbprints
        is_news = self.keys is None or self.failure is not None
        self.keys, self.failure = provided.keys, None
        self.authorization_endpoint = provided.authorization_endpoint
        now = provided.keys.thumbprints
        if is_news or now != before:
            self.observer.report(
                IssuerKeysRead(
                    issuer=self.issuer.name,
                    keys=len(now),
                    added=len(now - before),
                    removed=len(before - now),
                )
            )
        if now != before:
            self.on_changed()

    def _record_failure(self, reason: str) -> None:
        if self.failure is None:  # the first of an outage
            kept = 0 if self.keys is None else len(self.keys.keys)
            self.observer.report(
                IssuerUnavailable(issuer=self.issuer.name, reason=reason, keys=kept)
            )
        self.failure = reason


@attrs.define(eq=False, kw_only=True)
class Issuers:
    """
    The identity providers of one process. `run` must be running.

    A token is checked in two steps: `prepare` may wait for its key, `identify` never waits.
    """

    observer: Observer
    wall_clock: WallClock
    make_reader: Callable[[IssuerOptions], ReadKeys] = make_reader
    wait: float = WAIT_SECONDS
    _providers: dict[str, Provider] = attrs.field(factory=dict, init=False)  # by `iss`
    _told: set[Callable[[], None]] = attrs.field(factory=set, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)

    def replace(self, issuers: Iterable[IssuerOptions]) -> None:
        """Replace all providers; one whose options haven't changed keeps its keys."""
        known = {each.options.issuer.issuer: each for each in self._providers.values()}
        fresh = dict[str, Provider]()
        for options in issuers:
            provider = known.get(options.issuer.issuer)
            if provider is None or provider.options != options:
                provider = self._make(options, provider)
            fresh[options.issuer.issuer] = provider
        for provider in self._providers.values():
            if provider not in fresh.values():
                provider.scope.cancel()
        self._providers = fresh
        self._changes.notify()

    def _make(self, options: IssuerOptions, before: Provider | None) -> Provider:
        provider = Provider(
            options=options,
            read=self.make_reader(options),
            observer=self.observer,
            on_changed=self._notify,
        )
        if before is not None and before.options.source == options.source:
            provider.keys = before.keys
            provider.authorization_endpoint = before.authorization_endpoint
        return provider

    @property
    def providers(self) -> Sequence[Provider]:
        return tuple(self._providers.values())

    @property
    def token_source(self) -> tuple[str, str] | None:
        """
        The URL where a client gets a token, and the token's audience, as text for a header, of the
        first provider whose names fit into one. None: no token is accepted.
        """
        for provider in self.providers:
            where = provider.authorization_endpoint or provider.issuer.issuer
            audience = provider.issuer.audiences[0]
            if fits_a_header(where) and fits_a_header(audience):
                return where, audience
        return None

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever keys were removed: tokens may not be valid any more."""
        self._told.add(changed)

    def _notify(self) -> None:
        for changed in self._told:
            changed()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the keys of all providers until cancelled. Doesn't wait for them to begin."""
        task_status.started()
        started = set[Provider]()
        async with trio.open_nursery() as nursery:
            while True:
                seen = self._changes.version
                for provider in self.providers:
                    if provider not in started:
                        started.add(provider)
                        nursery.start_soon(provider.run)
                started &= set(self.providers)
                await self._changes.wait(seen)

    async def prepare(self, token: str) -> None:
        """
        If the token's key isn't known, wait for the provider's keys to be read, for `wait` seconds
        at most.
        """
        try:
            parsed = parse_jwt(token)
            provider = self._providers.get(issuer_of(parsed))
        except NotAuthorized:
            return
        if provider is not None and not provider.knows(parsed):
            await provider.ask(self.wait)

    def identify(self, token: str) -> TokenClaim:
        """
        Verify a token, and return its claim for the whole endpoint. Its expiry isn't checked.

        Raises:
            NotAuthorized: it is malformed, of an unknown issuer, for another service, not valid
                yet, or not signed by a key of its issuer.
            Busy: the issuer's keys can't be read, so that the token can't be judged.
        """
        parsed = parse_jwt(token)
        provider = self._providers.get(issuer_of(parsed))
        if provider is None:
            raise Refused("token: its issuer (iss) isn't configured", Refusal.UNKNOWN_ISSUER)
        issuer = provider.issuer
        check_terms(parsed, issuer, self.wall_clock())
        expires = expiry_of(parsed)
        if not provider.knows(parsed) and (provider.keys is None or provider.failure is not None):
            raise Busy(f"the keys of the issuer {issuer.name!r} can't be read", retry_after=PAUSE)
        assert provider.keys is not None
        try:
            key = provider.keys.verify(parsed)
        except Refused as error:
            raise Refused(str(error), error.why, issuer.name) from error
        identity = ClientIdentity(
            issuer=issuer.name,
            subject=subject_of(parsed, issuer),
            claims=parsed.claims,
            key=key,
        )
        return TokenClaim(
            key_name=identity.name,
            resource=EVERYTHING,
            expires=expires,
            identity=identity,
            skew=timedelta(seconds=issuer.clock_skew),
        )

    def check(self, identity: ClientIdentity) -> None:
        """
        Check that an earlier verified token would be accepted again under the present keys and
        options. Its dates aren't checked.

        Raises:
            NotAuthorized: it wouldn't be accepted.
        """
        named = (each for each in self._providers.values() if each.issuer.name == identity.issuer)
        provider = next(named, None)
        if provider is None:
            text = "token: its issuer isn't configured any more"
            raise Refused(text, Refusal.UNKNOWN_ISSUER, identity.name)
        if not audiences_of(identity.claims) & set(provider.issuer.audiences):
            text = "token: its audience isn't one of the issuer's any more"
            raise Refused(text, Refusal.WRONG_AUDIENCE, identity.name)
        if provider.keys is not None and identity.key not in provider.keys.thumbprints:
            text = "token: the key that signed it is no longer one of the provider"
            raise Refused(text, Refusal.WRONG_KEY, identity.name)
