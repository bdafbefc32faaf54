"""An identity provider in memory, and the authorizer that accepts its tokens."""

from collections.abc import Sequence

import attrs
import trio

from gateway.domain.access import AccessPolicy, Issuer, Right, TokenRule
from gateway.domain.events.gateway import Event
from gateway.frontends.auth import Authorizer
from gateway.frontends.issuers import IssuerOptions, Issuers
from gateway.net.openid import Provided, ProviderFailed
from gateway.wire.openid.jwt import ALGORITHMS
from gateway.wire.openid.keys import parse_keys
from tests.frontends.rest_client import ROOT, wall_clock
from tests.harness.openid import AUDIENCE, OpenIdProvider

ISSUER = Issuer(
    name="tests",
    issuer="https://login.example.net/tenant",
    audiences=("api://pairgate", AUDIENCE),
    algorithms=ALGORITHMS,
    clock_skew=60.0,
)
SENDER, LISTENER, MANAGER = (
    AccessPolicy(
        name=f"tokens-{right.value}",
        token=TokenRule(issuer="tests", claims={"roles": (f"Queues.{right.value}",)}),
        rights=frozenset({right}),
        entities=entities,
    )
    for right, entities in (
        (Right.SEND, ("orders",)),
        (Right.LISTEN, ("orders",)),
        (Right.MANAGE, ("*",)),
    )
)
POLICIES = [ROOT, SENDER, LISTENER, MANAGER]


@attrs.define(eq=False)
class World:
    """A provider that can be down or hang, and a gateway's view of it."""

    provider: OpenIdProvider = attrs.field(factory=lambda: OpenIdProvider(ISSUER.issuer))
    is_down: bool = False
    hangs: bool = False
    reads: int = 0
    events: list[Event] = attrs.field(factory=list)
    refusals: list[tuple[str, str]] = attrs.field(factory=list)
    issuers: Issuers = attrs.field(init=False)
    options: IssuerOptions = attrs.field(factory=lambda: IssuerOptions(issuer=ISSUER))

    def __attrs_post_init__(self) -> None:
        self.issuers = Issuers(
            observer=self, wall_clock=wall_clock, make_reader=lambda options: self.read
        )
        self.issuers.replace([self.options])

    def report(self, event: Event) -> None:
        self.events.append(event)

    async def read(self) -> Provided:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        if self.hangs:
            await trio.sleep(10)
            raise ProviderFailed("no answer within 10 s")
        if self.is_down:
            raise ProviderFailed("connection refused")
        endpoint = f"{ISSUER.issuer}/oauth2/authorize"
        return Provided(keys=parse_keys(self.provider.jwks()), authorization_endpoint=endpoint)

    def authorizer(self, policies: Sequence[AccessPolicy] = POLICIES) -> Authorizer:
        return Authorizer(
            policies,
            wall_clock=wall_clock,
            accepts_well_known_key=True,
            issuers=self.issuers,
            on_refused=lambda name, why: self.refusals.append((name, why.value)),
        )

    def token(self, *roles: str, **claims: object) -> str:
        now = wall_clock().timestamp()
        return self.provider.token(now, **{"roles": [f"Queues.{role}" for role in roles]} | claims)

    def bearer(self, *roles: str, **claims: object) -> str:
        return f"Bearer {self.token(*roles, **claims)}"
