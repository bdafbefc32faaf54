"""User delegation keys: the clients that get a key, and the rights of signatures by it."""

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import quote, urlencode

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.access import AccessPolicy, Right, TokenRule
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.auth import Authorizer
from gateway.frontends.issuers import IssuerOptions
from gateway.frontends.storage_queue.auth import Accounts
from gateway.wire.http.messages import Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.answers import parse_response
from gateway.wire.storage_queue.delegation import build_key_info, written
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.sas import build_sas
from tests.frontends.bearer import ISSUER, LISTENER, POLICIES, SENDER, World
from tests.frontends.storage_client import (
    ACCOUNT,
    KEY,
    SECOND_KEY,
    VERSION,
    Client,
    code,
    open_client,
)

MESSAGES = "/orders/messages"
BODY = b"<QueueMessage><MessageText>bQ==</MessageText></QueueMessage>"
HOUR = timedelta(hours=1)
KEYS = "/?restype=service&comp=userdelegationkey"


@attrs.frozen
class Place:
    client: Client
    world: World
    authorizer: Authorizer

    def begin(self, *keys: bytes) -> None:
        """Begin again, as a new process with these keys of the account."""
        self.client.frontend.accounts = Accounts(
            [StorageAccount(name=ACCOUNT, keys=keys)],
            wall_clock=self.client.clock,
            authorizer=self.authorizer,
        )

    async def ask(
        self, token: str, life: timedelta = HOUR, start: timedelta | None = None
    ) -> Response:
        now = self.client.clock()
        wish = storage.GetUserDelegationKey(
            start=None if start is None else now + start, expiry=now + life
        )
        return await self.client.ask("POST", KEYS, build_key_info(wish), Authorization=token)

    async def key(self, *roles: str, **more: timedelta) -> storage.UserDelegationKey:
        response = await self.ask(self.world.bearer(*roles), **more)
        assert response.status == 200, response.body
        wish = storage.GetUserDelegationKey(expiry=self.client.clock())
        found = parse_response(wish, response)
        assert isinstance(found, storage.UserDelegationKey)
        return found

    def signed(
        self, key: storage.UserDelegationKey, queue: str = "orders", **changes: str
    ) -> Mapping[str, str]:
        values = {
            "sp": "raup",
            "se": written(self.client.clock() + HOUR),
            "sv": VERSION,
            "skoid": key.object_id,
            "sktid": key.tenant_id,
            "skt": key.start,
            "ske": key.expiry,
            "sks": key.service,
            "skv": key.version,
            **changes,
        }
        secret = base64.b64decode(key.value)
        return {**values, "sig": build_sas(values, account=ACCOUNT, queue=queue, key=secret)}

    async def by(
        self,
        values: Mapping[str, str],
        method: str = "GET",
        target: str = MESSAGES,
        body: bytes = b"",
        **headers: str,
    ) -> Response:
        join = "&" if "?" in target else "?"
        return await self.client.ask(
            method, f"{target}{join}{urlencode(values, quote_via=quote)}", body, **headers
        )


@asynccontextmanager
async def open_place() -> AsyncIterator[Place]:
    async with open_client() as client, trio.open_nursery() as nursery:
        world = World()
        await nursery.start(world.issuers.run)
        await wait_all_tasks_blocked()
        await client.broker.create_queue(EntityPath("other"), QueueProperties())
        place = Place(client, world, world.authorizer())
        place.begin(KEY, SECOND_KEY)
        yield place
        nursery.cancel_scope.cancel()


async def test_a_signature_by_a_key_allows_what_it_and_its_identity_may(
    autojump_clock: MockClock,
) -> None:
    async with open_place() as place:
        sender, listener = await place.key("Send"), await place.key("Listen")

        put = await place.by(place.signed(sender), "POST", body=BODY)
        not_put = await place.by(place.signed(listener), "POST", body=BODY)
        got = await place.by(place.signed(listener))
        not_got = await place.by(place.signed(sender))
        less = await place.by(place.signed(listener, sp="a"))
        elsewhere = await place.by(place.signed(listener), target="/other/messages")
        other = await place.by(place.signed(listener, "other"), target="/other/messages")
        create = await place.by(place.signed(await place.key("Manage")), "PUT", "/orders")

    assert (put.status, got.status) == (201, 200)
    mismatch = "AuthorizationPermissionMismatch"
    assert [code(each) for each in (not_put, not_got, less)] == [mismatch] * 3
    assert code(elsewhere) == "AuthenticationFailed"  # signed for another queue
    assert code(other) == mismatch  # the identity has no right there
    assert code(create) == mismatch


async def test_a_key_is_for_who_has_a_token_and_a_policy(autojump_clock: MockClock) -> None:
    async with open_place() as place:
        stranger = await place.ask(place.world.bearer())
        forged = await place.ask(f"{place.world.bearer('Send')}x")
        wish = storage.GetUserDelegationKey(expiry=place.client.clock() + HOUR)
        owner = await place.client.send(build_request(wish))
        by_key = await place.by(
            place.signed(await place.key("Manage")), "POST", KEYS, build_key_info(wish)
        )

    assert code(stranger) == "AuthorizationPermissionMismatch"
    assert (forged.status, code(forged)) == (401, "InvalidAuthenticationInfo")
    assert code(owner) == "AuthenticationFailed"
    assert b"Only authentication scheme Bearer is supported" in owner.body
    assert code(by_key) == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("start", "life", "is_given"),
    [
        (None, timedelta(days=7), True),
        (None, timedelta(days=7, seconds=1), False),
        (None, timedelta(0), False),
        (None, -HOUR, False),
        (-HOUR, HOUR, True),
        (-HOUR, timedelta(days=7), False),
        (HOUR, 2 * HOUR, True),
        (HOUR, HOUR, False),
        (HOUR, timedelta(days=7, hours=1), False),
    ],
)
async def test_a_key_lives_for_seven_days_at_most(
    start: timedelta | None, life: timedelta, is_given: bool, autojump_clock: MockClock
) -> None:
    async with open_place() as place:
        found = await place.ask(place.world.bearer("Send"), life, start)

    assert code(found) == (None if is_given else "InvalidXmlNodeValue")


@pytest.mark.parametrize(
    ("seconds", "good"), [(0, False), (59, False), (60, True), (3599, True), (3600, False)]
)
async def test_a_signature_is_good_as_long_as_its_key(
    seconds: float, good: bool, autojump_clock: MockClock
) -> None:
    async with open_place() as place:
        key = await place.key("Listen", start=timedelta(minutes=1))
        values = place.signed(key, se=written(place.client.clock() + 5 * HOUR))
        await trio.sleep(seconds)
        found = await place.by(values)

    assert code(found) == (None if good else "AuthenticationFailed")


@pytest.mark.parametrize(
    "changes",
    [
        {"skoid": "another"},
        {"sktid": "0000000000000000:tests"},
        {"ske": "2027-01-01T00:00:00Z"},
        {"sks": "bqtf"},
        {"skv": "2018-11-09"},
        {"sp": "raupx"},
        {"se": "2027-01-01T00:00:00Z"},
        {"sduoid": "somebody"},
        {"skdutid": "somewhere"},
    ],
)
async def test_no_term_can_be_changed_after_the_signature(
    changes: dict[str, str], autojump_clock: MockClock
) -> None:
    async with open_place() as place:
        values = place.signed(await place.key("Listen"))
        found = await place.by({**values, **changes})

    assert code(found) == "AuthenticationFailed"


@pytest.mark.parametrize("name", ["si", "ss", "srt", "skdutid"])
async def test_a_signature_by_a_key_has_no_other_terms(
    name: str, autojump_clock: MockClock
) -> None:
    async with open_place() as place:
        found = await place.by(place.signed(await place.key("Listen"), **{name: "q"}))

    assert code(found) == "AuthenticationFailed"
    assert f"{name}: isn't supported".encode() in found.body


USER = "5e1f"


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"oid": USER}, 200),
        ({"oid": USER, "sub": "somebody"}, 200),
        ({"sub": USER}, 200),
        ({"oid": "another", "sub": USER}, 403),
        ({"oid": "another"}, 403),
        ({"oid": [USER]}, 403),
        ({"oid": "", "sub": USER}, 403),
        ({"oid": USER.upper()}, 403),
        ({}, 403),
    ],
)
async def test_a_signature_for_a_user_needs_the_token_of_this_user(
    claims: dict[str, object], status: int, autojump_clock: MockClock
) -> None:
    """The user needs no access policy: the rights are those of the key's owner."""
    async with open_place() as place:
        values = place.signed(await place.key("Listen"), sduoid=USER)
        found = await place.by(values, Authorization=place.world.bearer(**claims))
        alone = await place.by(values)
        put = await place.by(
            values, "POST", body=BODY, Authorization=place.world.bearer("Send", **claims)
        )

    assert found.status == status
    if status == 403:
        assert b"the bearer token is of another user" in found.body
    assert code(alone) == "AuthenticationFailed"
    assert b"needs the bearer token of this user" in alone.body
    assert put.status == 403  # a token's own rights don't add to those of a signature


async def test_a_user_of_another_provider_is_another_user(autojump_clock: MockClock) -> None:
    async with open_place() as place:
        other = attrs.evolve(ISSUER, name="others")
        values = place.signed(await place.key("Listen"), sduoid=USER)
        token = place.world.bearer(oid=USER)
        assert (await place.by(values, Authorization=token)).status == 200

        place.world.issuers.replace([IssuerOptions(issuer=other)])
        await wait_all_tasks_blocked()
        found = await place.by(values, Authorization=place.world.bearer(oid=USER, jti="new"))

    assert b"the bearer token is of another user" in found.body


async def test_a_signature_for_a_user_needs_a_good_token_and_a_version_that_knows_users(
    autojump_clock: MockClock,
) -> None:
    async with open_place() as place:
        key = await place.key("Listen")
        values, old = (
            place.signed(key, sduoid=USER),
            place.signed(key, sduoid=USER, sv="2025-05-05"),
        )
        token = place.world.bearer(oid=USER)
        forged = await place.by(values, Authorization=f"{token}x")
        changed = await place.by({**values, "sduoid": "another"}, Authorization=token)
        without = {name: value for name, value in values.items() if name != "sduoid"}
        unbound = await place.by(without, Authorization=token)
        early = await place.by(old, Authorization=token)

    assert (forged.status, code(forged)) == (401, "InvalidAuthenticationInfo")
    assert code(changed) == "AuthenticationFailed"
    assert code(unbound) == "AuthorizationPermissionMismatch"  # of the token alone
    assert code(early) == "AuthenticationFailed"
    assert b"sv must be 2025-07-05 or later" in early.body


async def test_a_token_counts_alone_where_there_is_no_signature(autojump_clock: MockClock) -> None:
    async with open_place() as place:
        token = place.world.bearer("Listen", oid=USER)
        found = await place.by({"sduoid": USER}, Authorization=token)

    assert found.status == 200


async def test_a_key_outlives_a_restart_and_one_change_of_the_accounts_key(
    autojump_clock: MockClock,
) -> None:
    async with open_place() as place:
        values = place.signed(await place.key("Listen"))
        found = []
        for keys in ((KEY, SECOND_KEY), (b"a new key of the account", KEY), (SECOND_KEY,), ()):
            place.begin(*keys)
            found.append((await place.by(values)).status)

    assert found == [200, 200, 403, 403]


async def test_without_a_key_of_the_account_keys_end_with_the_process(
    autojump_clock: MockClock,
) -> None:
    async with open_place() as place:
        place.begin()
        values = place.signed(await place.key("Listen"))
        before = await place.by(values)
        place.begin()
        after = await place.by(values)

    assert (before.status, after.status) == (200, 403)


async def test_a_policy_that_is_changed_changes_what_signatures_allow_at_once(
    autojump_clock: MockClock,
) -> None:
    rule = TokenRule(issuer="tests", claims={"roles": ("Queues.Other",)})
    elsewhere = TokenRule(issuer="others", claims={"roles": ("Queues.Listen",)})
    changed: list[list[AccessPolicy]] = [
        POLICIES,
        [SENDER],
        [attrs.evolve(LISTENER, rights=frozenset({Right.SEND}))],
        [attrs.evolve(LISTENER, entities=("other",))],
        [attrs.evolve(LISTENER, token=rule)],
        [attrs.evolve(LISTENER, token=elsewhere)],
        [attrs.evolve(LISTENER, name="renamed")],
        [attrs.evolve(LISTENER, rights=frozenset({Right.MANAGE}))],
    ]
    async with open_place() as place:
        values = place.signed(await place.key("Listen"))
        found = []
        for policies in changed:
            place.authorizer.replace(policies)
            found.append((await place.by(values)).status)

    assert found == [200, *[403] * 6, 200]


async def test_where_no_token_is_accepted_nobody_has_a_key(autojump_clock: MockClock) -> None:
    async with open_place() as place:
        values = place.signed(await place.key("Listen"))
        place.world.issuers.replace([])
        found = await place.by(values)

    assert code(found) == "AuthenticationFailed"


@pytest.mark.parametrize("subject", ["", "ein Däne & <co>", "line\nfeed", "half \ud800"])
async def test_a_subject_is_signed_as_it_is_or_gets_no_key(
    subject: str, autojump_clock: MockClock
) -> None:
    async with open_place() as place:
        response = await place.ask(place.world.bearer("Listen", sub=subject))
        if response.status == 200:
            key = parse_response(
                storage.GetUserDelegationKey(expiry=place.client.clock()), response
            )
            assert isinstance(key, storage.UserDelegationKey)
            assert (await place.by(place.signed(key))).status == 200

    assert response.status == (403 if "\ud800" in subject else 200)
