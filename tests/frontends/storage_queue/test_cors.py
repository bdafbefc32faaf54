"""CORS: the rules of an account, and browsers' preflights, which anybody may send."""

import sys

import pytest
from trio.testing import MockClock

from gateway.domain.errors import InvalidRequest
from gateway.wire.http.messages import Response
from gateway.wire.storage_queue import operations as storage
from tests.frontends.storage_client import Client, code, open_client

ORIGIN = "https://a.example"


async def allow(client: Client, *headers: str) -> None:
    """Set five rules that allow these headers."""
    rule = storage.CorsRule(origins=ORIGIN, methods="GET", headers=",".join(headers))
    wish = storage.ServiceProperties(cors=(rule,) * 5)
    await client.do(storage.SetServiceProperties(properties=wish))


async def ask(client: Client, *headers: str) -> Response:
    """Send a preflight that names these headers."""
    return await client.ask(
        "OPTIONS",
        "/orders/messages",
        Origin=ORIGIN,
        Access_Control_Request_Method="GET",
        Access_Control_Request_Headers=",".join(headers),
    )


@pytest.mark.parametrize(
    ("allowed", "name", "is_allowed"),
    [
        ("Accept", "aCCEPT", True),
        ("accept", "accept-language", False),
        ("x-ms-meta-*", "X-ms-meta-a", True),
        ("x-ms-meta-*", "x-ms-meta", False),
        ("*", "anything", True),
        ("a*b", "a-b", False),
    ],
)
async def test_a_star_ends_the_beginning_of_a_name(
    allowed: str, name: str, is_allowed: bool, autojump_clock: MockClock
) -> None:
    async with open_client() as client:
        await allow(client, "date", allowed)
        answer = await ask(client, "date", name)

    assert code(answer) == (None if is_allowed else "CorsPreflightFailure")


async def test_a_preflight_takes_as_many_steps_as_it_names_headers(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    async with open_client() as client:
        await allow(client, *(f"name-{number}-*" for number in range(32)))
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            await ask(client, *["name-31-a"] * 1000, "other")
        finally:
            sys.setprofile(before)

    assert calls < 20_000  # each rule looks at each header; with each pattern it would be 160,000


@pytest.mark.parametrize(("length", "fits"), [(300, True), (400, False)])
async def test_the_rules_of_an_account_have_2_kib(
    length: int, fits: bool, autojump_clock: MockClock
) -> None:
    async with open_client() as client:
        if fits:
            await allow(client, "a" * length)
        else:
            with pytest.raises(InvalidRequest, match="2048 bytes"):
                await allow(client, "a" * length)
