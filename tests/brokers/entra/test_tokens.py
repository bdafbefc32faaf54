"""
Access tokens are requested at the right moments, so that a namespace always has a valid one:
virtual time.
"""

import math
from functools import partial
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from gateway.brokers.entra.tokens import AccessTokens
from gateway.domain.errors import BrokerError, CredentialRefused, NoToken
from gateway.domain.events.access import TokenRegained, TokenRequestFailed
from tests.brokers.entra.provider import PATIENCE, Provider, opened

HOUR = 3600.0
DOWN = NoToken("identity provider login.example: connection refused")
REFUSED = CredentialRefused("identity provider login.example: HTTP status 401: AADSTS7000215")


async def texts_until(end: float, tokens: AccessTokens, every: float = 10.0) -> list[str]:
    """The token that each send until `end` gets. A send never waits for it, and has no error."""
    found = []
    while (now := trio.current_time()) < end:
        with trio.fail_after(0.001):
            found.append((await tokens.get()).text)
        await trio.sleep_until(min(now + every, end))
    return found


async def test_the_first_token_is_requested_before_anybody_asks(autojump_clock: MockClock) -> None:
    provider = Provider()
    async with opened(provider) as tokens:
        await trio.sleep(1)
        assert provider.asked == [0.0]
        assert (await tokens.get()).text == "1"


async def test_a_token_is_renewed_when_half_of_its_life_is_left(autojump_clock: MockClock) -> None:
    provider = Provider()
    async with opened(provider) as tokens:
        await tokens.get()
        assert len(set(await texts_until(10 * HOUR, tokens))) == len(provider.asked)

    pauses = [later - sooner for sooner, later in pairwise(provider.asked)]
    assert all(0.45 * HOUR <= pause <= 0.55 * HOUR + 1 for pause in pauses)
    assert len({round(pause) for pause in pauses}) > 5, "gateways don't ask at the same moment"


async def test_a_token_is_renewed_when_the_provider_wants_it_to_be(
    autojump_clock: MockClock,
) -> None:
    provider = Provider(lifetime=24 * HOUR, renew_after=HOUR)
    async with opened(provider):
        await trio.sleep(1.2 * HOUR)

    assert len(provider.asked) == 2


async def test_an_outage_of_the_provider_is_none_of_the_namespace_while_a_token_is_good(
    autojump_clock: MockClock,
) -> None:
    provider = Provider()
    async with opened(provider) as tokens:
        await tokens.get()
        await texts_until(0.4 * HOUR, tokens)
        provider.failure = DOWN
        assert set(await texts_until(0.95 * HOUR, tokens)) == {"1"}
        provider.failure = None
        assert (await texts_until(1.5 * HOUR, tokens))[-1] == "2"

    failed = [each for each in provider.events if isinstance(each, TokenRequestFailed)]
    assert failed[0].reason == str(DOWN)
    assert all(0 < later.good_for < sooner.good_for for sooner, later in pairwise(failed))
    [regained] = [each for each in provider.events if isinstance(each, TokenRegained)]
    assert 0.3 * HOUR < regained.seconds < 0.55 * HOUR


async def test_an_outage_beyond_expiry_is_an_error_at_once_and_ends_soon_after_the_outage(
    autojump_clock: MockClock,
) -> None:
    provider = Provider()
    async with opened(provider) as tokens:
        await tokens.get()
        provider.failure = DOWN
        await texts_until(HOUR, tokens)
        await trio.sleep_until(HOUR + 1)
        for _ in range(100):
            with trio.fail_after(0.001), pytest.raises(NoToken, match=r"login\.example"):
                await tokens.get()
        await trio.sleep_until(2 * HOUR)
        provider.failure = None
        await trio.sleep(6.5)
        assert (await tokens.get()).text == "2"

    assert provider.most_under_way == 1
    pauses = [later - sooner for sooner, later in pairwise(provider.asked)]
    assert min(pauses) >= 0.8, "sends don't add requests"
    assert len(provider.asked) < 1000


async def test_a_credential_that_is_refused_leaves_the_token_that_is_good(
    autojump_clock: MockClock,
) -> None:
    provider = Provider()
    async with opened(provider) as tokens:
        await tokens.get()
        provider.failure = REFUSED
        assert set(await texts_until(HOUR, tokens)) == {"1"}
        await trio.sleep_until(HOUR + 1)
        with pytest.raises(CredentialRefused, match="AADSTS7000215"):
            await tokens.get()
        asked = len(provider.asked)
        await trio.sleep(HOUR)
        assert len(provider.asked) - asked < 80, "a wrong secret isn't tried all the time"
        provider.failure = None
        await trio.sleep(75)
        assert (await tokens.get()).text == "2"


async def test_a_provider_that_hangs_keeps_nobody_longer_than_the_patience(
    autojump_clock: MockClock,
) -> None:
    provider = Provider(takes=math.inf)
    async with opened(provider) as tokens, trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(partial(_wait_in_vain, tokens))

    assert trio.current_time() == PATIENCE
    assert provider.asked == [0.0]


async def _wait_in_vain(tokens: AccessTokens) -> None:
    with pytest.raises(NoToken, match=r"no access token .* within 4 s"):
        await tokens.get()


async def test_one_request_answers_all_that_wait_also_when_some_are_cancelled(
    autojump_clock: MockClock,
) -> None:
    provider, found = Provider(takes=3.0), list[str]()

    async def ask(tokens: AccessTokens, seconds: float) -> None:
        with trio.move_on_after(seconds):
            found.append((await tokens.get()).text)

    async with opened(provider) as tokens, trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, tokens, 1.0 if number % 2 else math.inf)

    assert found == ["1"] * 50
    assert provider.asked == [0.0]


async def test_a_token_that_the_namespace_refuses_is_replaced_once(
    autojump_clock: MockClock,
) -> None:
    provider = Provider()
    async with opened(provider) as tokens:
        first = await tokens.get()
        await trio.sleep(30)
        tokens.refused(first.text)  # too young: the next one would be refused as well
        await trio.sleep(40)
        assert len(provider.asked) == 1
        for _ in range(5):
            tokens.refused(first.text)
        await trio.sleep(1)
        tokens.refused(first.text)
        await trio.sleep(10)
        assert len(provider.asked) == 2
        assert (await tokens.get()).text == "2"


async def test_a_token_that_has_expired_already_is_the_clocks_fault(
    autojump_clock: MockClock,
) -> None:
    provider = Provider(lifetime=-10.0)
    async with opened(provider) as tokens:
        with pytest.raises(NoToken, match="check the clock"):
            await tokens.get()


async def test_a_provider_that_gives_the_same_token_until_it_expires_is_asked_seldom(
    autojump_clock: MockClock,
) -> None:
    # As an endpoint for managed identities does, which keeps tokens.
    provider = Provider(lifetime=24 * HOUR, until=24 * HOUR)
    async with opened(provider) as tokens:
        await tokens.get()
        await trio.sleep_until(24 * HOUR)
        assert tokens.seconds_left() == 0.0

    assert len(provider.asked) < 60


@pytest.mark.parametrize(("wanted", "pause"), [(60.0, 60.0), (86400.0, 120.0)])
async def test_a_pause_that_the_provider_asks_for_is_kept(
    autojump_clock: MockClock, wanted: float, pause: float
) -> None:
    provider = Provider(failure=NoToken("HTTP status 429", retry_after=wanted))
    async with opened(provider):
        await trio.sleep(pause + 5)

    assert provider.asked == pytest.approx([0.0, pause + 0.1])


async def test_an_error_of_the_block_is_not_wrapped(autojump_clock: MockClock) -> None:
    with pytest.raises(KeyError):
        async with opened(Provider()):
            raise KeyError("x")


@pytest.mark.parametrize("error", [DOWN, REFUSED])
async def test_each_caller_gets_an_exception_of_its_own(
    autojump_clock: MockClock, error: BrokerError
) -> None:
    async with opened(Provider(failure=error)) as tokens:
        caught = []
        for _ in range(2):
            with pytest.raises(type(error)) as info:
                await tokens.get()
            caught.append(info.value)

    assert caught[0] is not caught[1]
    assert str(caught[0]) == str(error)
