"""
Claims-based security: puts a token on $cbs before a link is attached, and renews it while the link
exists.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Final, Protocol

import attrs
import trio

from gateway.brokers.entra.tokens import AccessTokens
from gateway.changes import Changes
from gateway.domain.errors import BrokerError, NotAuthorized, NoToken, Outcome, Unavailable
from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.exchange import Exchange
from gateway.net.amqp.links import LinkVoid
from gateway.ports import WallClock
from gateway.wire.amqp.conditions import refusal_from_condition
from gateway.wire.amqp.exchange import NodeRequest, Reply
from gateway.wire.amqp.servicebus import cbs
from gateway.wire.servicebus.sas import sign_sas

_RENEWED_AT: Final = 0.8  # share of a token's lifetime
_SPARE: Final = 5.0  # seconds before its expiry in which a token isn't sent with any more
_SPARE_SHARE: Final = 0.1  # the same as a share of the longest lifetime, if that is less
_AGAIN: Final = 5.0  # seconds until a failed renewal is tried again
_PATIENCE: Final = 10.0  # the longest time of one renewal, in seconds: the other tokens wait
_PATIENCE_SHARE: Final = 0.1  # share of a token's lifetime
_SOONEST: Final = 0.5  # seconds between two renewals of a token, however short its lifetime
_TRIES: Final = 2  # links that had ended unnoticed are attached again
_REFUSED: Final = frozenset((401, 403))


@attrs.frozen
class CbsToken:
    """A token for an address, and the seconds for which it is valid."""

    put: cbs.PutToken
    seconds: float


class TokenSource(Protocol):
    """Makes the tokens that are put."""

    async def token_for(self, address: str) -> CbsToken:
        """
        Return a token for that address.

        Raises:
            CredentialRefused, NoToken: there is none.
        """
        ...

    def refused(self, token: str) -> None:
        """Note that the peer has refused that token."""


@attrs.define(eq=False, kw_only=True)
class Signer:
    """Makes shared access signatures with one policy key."""

    host: str
    key_name: str
    key: str = attrs.field(repr=False)
    lifetime: float  # seconds
    clock: WallClock

    async def token_for(self, address: str) -> CbsToken:
        """As `TokenSource.token_for`; never fails, and doesn't wait."""
        expires = int(self.clock().timestamp() + self.lifetime)
        audience = f"sb://{self.host}/{address}"
        put = cbs.PutToken(
            audience=audience,
            token=sign_sas(audience, self.key_name, self.key, expires),
            expires=datetime.fromtimestamp(expires, UTC),
        )
        return CbsToken(put, self.lifetime)

    def refused(self, token: str) -> None:
        """As `TokenSource.refused`: the next token is a new one in any case."""

    def replace_key(self, name: str, key: str) -> None:
        """As `ReplacesKey.replace_key`."""
        self.key_name, self.key = name, key


@attrs.frozen(kw_only=True)
class AccessTokenSource:
    """Puts the access token of a credential. The same token is put for each address."""

    host: str
    tokens: AccessTokens

    async def token_for(self, address: str) -> CbsToken:
        """As `TokenSource.token_for`."""
        token = await self.tokens.get()
        put = cbs.PutToken(
            audience=f"sb://{self.host}/{address}",
            token=token.text,
            type=cbs.JWT,
            expires=token.expires,
        )
        return CbsToken(put, self.tokens.seconds_left())

    def refused(self, token: str) -> None:
        """As `TokenSource.refused`."""
        self.tokens.refused(token)


@attrs.define(eq=False)
class CbsTokens:
    """
    The tokens of one connection: one for each address.

    The links to $cbs are attached when they are needed, since a peer may end them while they are
    idle.
    """

    _client: AmqpClient
    _source: TokenSource
    _in_use: Callable[[], set[str]]  # addresses of the attached links
    _lifetime: float = attrs.field(default=0.0, init=False)  # of the longest token, in seconds
    _exchange: Exchange | None = attrs.field(default=None, init=False)
    _names: "count[int]" = attrs.field(factory=lambda: count(1), init=False)
    # The time to renew each token, by address; the oldest first.
    _due: dict[str, float] = attrs.field(factory=dict, init=False)
    _good_until: dict[str, float] = attrs.field(factory=dict, init=False)  # by address
    _locks: dict[str, trio.Lock] = attrs.field(factory=dict, init=False)
    _added: Changes = attrs.field(factory=Changes, init=False)

    async def open(self) -> None:
        """
        Return when tokens can be put.

        Raises:
            BrokerError: the peer has no $cbs node, or the connection ended. Nothing was sent.
        """
        await self._attached()

    async def ensure(self, address: str) -> bool:
        """
        Return when a link may be attached to the address; True if a new token was put for it.

        Raises:
            BrokerError: there is no token that is good for long enough, it was refused, or there
                was no answer. Nothing was sent.
        """
        lock = self._locks.setdefault(address, trio.Lock())
        async with lock:
            try:
                if self._due.get(address, 0.0) > trio.current_time() and self.is_good(address):
                    return False
                await self._put(address)
            finally:
                if not lock.statistics().tasks_waiting:
                    self._locks.pop(address, None)
        return True

    def is_good(self, address: str) -> bool:
        """
        True if the address has a token that doesn't expire soon: the peer ends the links of an
        expired one, and then the outcome of what is in flight is unknown.
        """
        return self._good_until.get(address, 0.0) > trio.current_time()

    def forget(self, address: str) -> None:
        """
        Forget the address's token, which the peer has refused: the next `ensure` puts another.
        """
        self._due.pop(address, None)
        self._good_until.pop(address, None)

    async def run(self) -> None:
        """
        Renew tokens until cancelled. If a renewal fails for good, the next link to the address is
        refused, and so is a send once the former token has expired.
        """
        while True:
            while not self._due:
                await self._added.wait_next()
            address, due = min(self._due.items(), key=lambda item: item[1])
            await trio.sleep_until(due)
            if self._due.get(address) != due:  # the token was refused or replaced meanwhile
                continue
            del self._due[address]
            if address not in self._in_use():
                self._good_until.pop(address, None)
                continue
            error: BrokerError | None = Unavailable("$cbs: no answer in time")
            with trio.move_on_after(min(_PATIENCE, _PATIENCE_SHARE * self._lifetime)):
                error = await self._failure_of(address)
            if error is not None and error.counts_as_outage:
                self._due[address] = trio.current_time() + _AGAIN

    async def _failure_of(self, address: str) -> BrokerError | None:
        try:
            await self._put(address)
        except BrokerError as error:
            return error
        return None

    async def _put(self, address: str) -> None:
        token = await self._source.token_for(address)
        self._lifetime = max(self._lifetime, token.seconds)
        # The source may have the same token again, with less time left.
        good_for = token.seconds - min(_SPARE, _SPARE_SHARE * self._lifetime)
        if good_for <= 0.0:
            raise NoToken(f"the access token expires in {token.seconds:.3g} s; no other came yet")
        request = cbs.request_of(token.put, request_id=None, reply_to="")
        asked = trio.current_time()
        try:
            reply = await self._ask(request)
        except BrokerError as error:
            if error.outcome is Outcome.UNKNOWN:
                raise Unavailable(f"$cbs: {error}") from error
            raise
        if not 200 <= reply.status < 300:
            self._source.refused(token.put.token)
            raise _refusal(reply)
        self._due[address] = asked + max(_SOONEST, _RENEWED_AT * token.seconds)
        self._good_until[address] = asked + good_for
        self._added.notify()

    async def _ask(self, request: NodeRequest) -> Reply:
        for _ in range(_TRIES):
            exchange = await self._attached()
            try:
                return await exchange.ask(request)
            except LinkVoid:
                continue
        raise Unavailable("$cbs: the peer detaches its links at once")

    async def _attached(self) -> Exchange:
        exchange = self._exchange
        if exchange is None or exchange.void:
            exchange = Exchange(self._client, cbs.NODE, f"tokens-{next(self._names)}")
            self._exchange = exchange
        await exchange.wait_attached()
        return exchange


def _refusal(reply: Reply) -> BrokerError:
    text = f"$cbs: {reply.description or reply.status}"
    if reply.condition is None and reply.status in _REFUSED:
        return NotAuthorized(text)
    return refusal_from_condition(reply.condition or "", text)
