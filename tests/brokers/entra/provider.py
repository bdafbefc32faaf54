"""An identity provider without a network: it answers in virtual time, as its test says."""

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count

import attrs
import trio

from gateway.brokers.entra.tokens import AccessToken, AccessTokens
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import Event
from tests.harness.clocks import VirtualClock

PATIENCE = 4.0


@attrs.define(eq=False)
class Provider:
    """Gives tokens `1`, `2`, ..., unless it fails or hangs."""

    lifetime: float = 3600.0
    until: float = math.inf  # no token is good for longer, by Trio's clock
    renew_after: float | None = None
    takes: float = 0.1  # seconds
    failure: BrokerError | None = None
    clock: VirtualClock = attrs.field(factory=VirtualClock)
    asked: list[float] = attrs.field(factory=list)  # when, by Trio's clock
    under_way: int = 0
    most_under_way: int = 0
    events: list[Event] = attrs.field(factory=list)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1))

    async def request(self) -> AccessToken:
        self.asked.append(trio.current_time())
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        try:
            await trio.sleep(self.takes)
        finally:
            self.under_way -= 1
        if self.failure is not None:
            raise self.failure
        now = self.clock()
        renew = None if self.renew_after is None else now + timedelta(seconds=self.renew_after)
        return AccessToken(
            text=str(next(self._numbers)),
            expires=now + timedelta(seconds=min(self.lifetime, self.until - trio.current_time())),
            renew=renew,
        )

    def report(self, event: Event) -> None:
        self.events.append(event)

    def tokens(self) -> AccessTokens:
        """The tokens of a namespace, not yet open."""
        return AccessTokens(
            request=self.request,
            namespace="azure",
            clock=self.clock,
            rng=random.Random(0),
            observer=self,
            patience=PATIENCE,
        )


@asynccontextmanager
async def opened(provider: Provider) -> AsyncIterator[AccessTokens]:
    async with provider.tokens() as tokens:
        yield tokens
