"""
Tokens of identity providers: the clients that are accepted, for how long, and the effect of a
provider's outage.
"""

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.access import Access, Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, NotAuthorized
from gateway.domain.events.access import IssuerKeysRead, IssuerUnavailable
from gateway.frontends.auth import Authorizer
from gateway.frontends.issuers import PAUSE, WAIT_SECONDS
from tests.frontends.bearer import ISSUER, LISTENER, POLICIES, SENDER, World
from tests.frontends.rest_client import ORDERS, wall_clock
from tests.harness.openid import OpenIdProvider, SigningKey

TO_SEND = Access(right=Right.SEND, entity=ORDERS, path="orders")
TO_LISTEN = Access(right=Right.LISTEN, entity=ORDERS, path="orders")
ELSEWHERE = Access(right=Right.SEND, entity=EntityPath("invoices"), path="invoices")


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    world = World()
    await nursery.start(world.issuers.run)
    await wait_all_tasks_blocked()
    return world


async def allowed(authorizer: Authorizer, header: str, access: Access = TO_SEND) -> bool:
    await authorizer.prepare(header)
    claim = authorizer.claim(header)
    try:
        authorizer.require(claim, access)
    except NotAuthorized:
        return False
    return True


async def test_roles_become_rights_on_the_entities_of_their_policies(
    world: World, autojump_clock: MockClock
) -> None:
    authorizer = world.authorizer()

    assert await allowed(authorizer, world.bearer("Send"))
    assert not await allowed(authorizer, world.bearer("Listen"))
    assert await allowed(authorizer, world.bearer("Listen", "Send"), TO_LISTEN)
    assert not await allowed(authorizer, world.bearer("Send"), ELSEWHERE)
    assert await allowed(authorizer, world.bearer("Manage"), ELSEWHERE)
    assert not await allowed(authorizer, world.bearer())
    assert set(world.refusals) == {("tests:orders-service", "not-allowed")}


async def test_a_token_is_refused_with_its_reason(world: World, autojump_clock: MockClock) -> None:
    authorizer, now = world.authorizer(), wall_clock().timestamp()
    other = OpenIdProvider(ISSUER.issuer)
    stranger = OpenIdProvider("https://login.example.org")
    reasons = {
        "Bearer ": "malformed",
        "Bearer x": "malformed",
        world.bearer("Send", aud="https://vault.azure.net"): "wrong-audience",
        world.bearer("Send", aud=None): "wrong-audience",
        world.bearer("Send", exp=int(now) - 61): "expired",
        world.bearer("Send", nbf=int(now) + 61): "expired",
        world.bearer("Send", iat=int(now) + 61): "expired",
        world.bearer("Send", exp=None): "malformed",
        world.bearer("Send", exp="soon"): "malformed",
        world.bearer("Send", iss=None): "malformed",
        world.bearer("Send", iss=f"{ISSUER.issuer}/"): "unknown-issuer",
        f"Bearer {stranger.token(now)}": "unknown-issuer",
        f"Bearer {other.token(now)}": "wrong-key",  # the same issuer and kid, but not its key
        f"Bearer {SigningKey.make('guess').sign(world.provider.claims(now))}": "wrong-key",
    }

    for header, reason in reasons.items():
        with pytest.raises(NotAuthorized):
            await allowed(authorizer, header)
        assert world.refusals.pop()[1] == reason
        assert world.refusals == []


async def test_clocks_may_differ_by_as_much_as_is_configured(
    world: World, autojump_clock: MockClock
) -> None:
    authorizer, now = world.authorizer(), int(wall_clock().timestamp())

    assert await allowed(authorizer, world.bearer("Send", exp=now - 59))
    assert await allowed(authorizer, world.bearer("Send", nbf=now + 59, iat=now + 59))


async def test_a_token_that_was_good_expires(world: World, autojump_clock: MockClock) -> None:
    authorizer, header = world.authorizer(), world.bearer("Send")
    claim = authorizer.claim(header)

    assert authorizer.seconds_left(claim) == 3600 + 60
    await trio.sleep(3661)

    with pytest.raises(NotAuthorized, match="expired"):
        authorizer.claim(header)
    with pytest.raises(NotAuthorized, match="expired"):
        authorizer.check(claim, TO_SEND)


async def test_a_key_that_is_new_at_the_provider_is_good_at_once(
    world: World, autojump_clock: MockClock
) -> None:
    authorizer = world.authorizer()
    old = world.bearer("Send")
    assert await allowed(authorizer, old)

    world.provider.rotate(keep=True)

    assert await allowed(authorizer, world.bearer("Send"))
    assert await allowed(authorizer, old)
    assert world.reads == 2
    assert world.events[-1] == IssuerKeysRead(issuer="tests", keys=2, added=1, removed=0)


async def test_a_key_that_is_gone_takes_the_rights_of_its_tokens_along(
    world: World, autojump_clock: MockClock
) -> None:
    authorizer, told = world.authorizer(), list[str]()
    authorizer.subscribe(lambda: told.append("changed"))
    old = world.bearer("Send")
    claim = authorizer.claim(old)
    await trio.sleep(PAUSE)

    world.provider.rotate()
    assert await allowed(authorizer, world.bearer("Send"))

    assert told == ["changed"]
    with pytest.raises(NotAuthorized, match="no longer one of the provider"):
        authorizer.check(claim, TO_SEND)
    with pytest.raises(NotAuthorized):
        authorizer.claim(old)


async def test_many_tokens_with_unknown_keys_cause_one_read(
    world: World, autojump_clock: MockClock
) -> None:
    authorizer = world.authorizer()
    guesses = [SigningKey.make(f"guess-{number}") for number in range(20)]
    await trio.sleep(PAUSE)
    claims = world.provider.claims(wall_clock().timestamp())

    async with trio.open_nursery() as nursery:
        for key in guesses:
            nursery.start_soon(authorizer.prepare, f"Bearer {key.sign(claims)}")
    for key in guesses:
        await authorizer.prepare(f"Bearer {key.sign(claims)}")

    assert world.reads == 2
    assert trio.current_time() < PAUSE + 1


async def test_keys_that_are_known_stay_in_use_while_the_provider_is_down(
    world: World, autojump_clock: MockClock
) -> None:
    authorizer = world.authorizer()
    world.is_down = True
    await trio.sleep(24 * 3600)

    assert await allowed(authorizer, world.bearer("Send"))
    began = trio.current_time()
    unknown = world.provider.claims(wall_clock().timestamp(), roles=["Queues.Send"])
    with pytest.raises(Busy):
        await allowed(authorizer, f"Bearer {SigningKey.make('new').sign(unknown)}")

    assert trio.current_time() - began <= WAIT_SECONDS
    assert world.refusals == []
    assert [event for event in world.events if isinstance(event, IssuerUnavailable)] == [
        IssuerUnavailable(issuer="tests", reason="connection refused", keys=1)
    ]
    world.is_down = False
    await trio.sleep(61)
    assert world.events[-1] == IssuerKeysRead(issuer="tests", keys=1, added=0, removed=0)


async def test_a_provider_that_is_down_at_the_start_is_a_temporary_failure(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = World(is_down=True)
    await nursery.start(world.issuers.run)
    authorizer = world.authorizer()

    with pytest.raises(Busy, match="keys of the issuer 'tests'"):
        await allowed(authorizer, world.bearer("Send"))
    assert trio.current_time() <= WAIT_SECONDS
    world.is_down = False
    await trio.sleep(10)

    assert await allowed(authorizer, world.bearer("Send"))


async def test_a_provider_that_hangs_delays_a_request_by_some_seconds_at_most(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = World(hangs=True)
    await nursery.start(world.issuers.run)
    authorizer = world.authorizer()

    with trio.fail_after(WAIT_SECONDS + 0.1), pytest.raises(Busy):
        await allowed(authorizer, world.bearer("Send"))


async def test_the_first_request_waits_for_the_first_read(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = World()
    nursery.start_soon(world.issuers.run)

    assert await allowed(world.authorizer(), world.bearer("Send"))


async def test_policies_and_audiences_that_change_count_for_tokens_in_use(
    world: World, autojump_clock: MockClock
) -> None:
    authorizer = world.authorizer()
    claim = authorizer.claim(world.bearer("Send"))
    authorizer.check(claim, TO_SEND)

    authorizer.replace([LISTENER])
    with pytest.raises(NotAuthorized, match="no access policy"):
        authorizer.check(claim, TO_SEND)
    authorizer.replace(POLICIES)
    authorizer.check(claim, TO_SEND)
    other = attrs.evolve(ISSUER, audiences=("api://pairgate",))
    world.issuers.replace([attrs.evolve(world.options, issuer=other)])
    authorizer.replace(POLICIES)

    with pytest.raises(NotAuthorized, match="audience"):
        authorizer.check(claim, TO_SEND)
    world.issuers.replace([])
    authorizer.replace(POLICIES)
    with pytest.raises(NotAuthorized, match="isn't configured any more"):
        authorizer.check(claim, TO_SEND)


async def test_a_provider_whose_options_stay_keeps_its_keys_at_a_reload(
    world: World, autojump_clock: MockClock
) -> None:
    world.issuers.replace([world.options])
    await wait_all_tasks_blocked()

    assert world.reads == 1
    assert await allowed(world.authorizer(), world.bearer("Send"))


async def test_without_issuers_a_bearer_token_is_no_token(
    world: World, autojump_clock: MockClock
) -> None:
    world.issuers.replace([])
    authorizer = world.authorizer()

    with pytest.raises(NotAuthorized, match="scheme 'SharedAccessSignature' expected"):
        await allowed(authorizer, world.bearer("Send"))


async def test_a_token_of_one_policy_says_nothing_of_another_issuers(
    world: World, autojump_clock: MockClock
) -> None:
    rule = attrs.evolve(SENDER.token, issuer="other")
    authorizer = world.authorizer([attrs.evolve(SENDER, token=rule)])

    assert not await allowed(authorizer, world.bearer("Send"))


CLAIMS = {
    "roles": ["Queues.Send", "Other"],
    "scp": "Queues.Read Queues.Send",
    "azp": "4f1c",
    "realm_access": {"roles": ["sender"]},
    "resource_access": {"my.client": {"roles": ["sender"]}},
    "https://example.net/role": "sender",
    "number": 5,
}


RULES = [
    ({"roles": ("Queues.Send",)}, True),
    ({"roles": ("None", "Other")}, True),
    ({"roles": ("Queues",)}, False),
    ({"roles": ("Queues.Send",), "azp": ("4f1c",)}, True),
    ({"roles": ("Queues.Send",), "azp": ("5555",)}, False),
    ({"scp": ("Queues.Send",)}, True),
    ({"scp": ("Queues",)}, False),
    ({"azp": ("4f1",)}, False),
    ({"realm_access.roles": ("sender",)}, True),
    ({"realm_access.names": ("sender",)}, False),
    ({"resource_access.my.client.roles": ("sender",)}, True),
    ({"https://example.net/role": ("sender",)}, True),
    ({"number": ("5",)}, False),
    ({"missing": ("",)}, False),
]


@pytest.mark.parametrize(("wanted", "fits"), RULES)
async def test_a_policy_is_for_tokens_with_all_of_its_claims(
    wanted: dict[str, tuple[str, ...]], fits: bool, world: World, autojump_clock: MockClock
) -> None:
    rule = attrs.evolve(SENDER.token, claims=wanted)
    authorizer = world.authorizer([attrs.evolve(SENDER, token=rule)])

    assert await allowed(authorizer, world.bearer(**CLAIMS)) is fits
