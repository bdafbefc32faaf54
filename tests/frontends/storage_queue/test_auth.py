"""Authorization of the Queue service: keys, shared access signatures, stored policies."""

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from trio.testing import MockClock

from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.storage_queue.auth import EMULATOR_ACCOUNT, NEEDS, Accounts
from gateway.wire.http.messages import Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.sas import build_sas
from tests.frontends.storage_client import ACCOUNT, KEY, SECOND_KEY, Client, code, open_client
from tests.harness.clocks import START, VirtualClock

PEEK = build_request(storage.PeekMessages(queue="orders"))
SOON = "2026-01-01T00:10:00Z"
OF_ACCOUNT = {"sv": "2026-10-06", "ss": "q", "srt": "sco", "sp": "r", "se": SOON}
OF_QUEUE = {"sv": "2026-10-06", "sp": "r", "se": SOON}


async def by(
    client: Client,
    values: dict[str, str],
    operation: storage.Operation | None = None,
    *,
    queue: str = "orders",
    key: bytes = KEY,
) -> Response:
    """Send the operation with that SAS, and return the answer."""
    request = build_request(operation or storage.PeekMessages(queue="orders"))
    sig = build_sas(values, account=ACCOUNT, queue=queue, key=key)
    joint = "&" if "?" in request.target else "?"
    target = f"{request.target}{joint}{urlencode({**values, 'sig': sig})}"
    fields = {name: value for name, value in request.headers.items if name != "Content-Length"}
    return await client.ask(request.method, target, request.body, **fields)


async def test_both_keys_are_good_and_no_other_one(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        for key, lite, status in (
            (KEY, False, 200),
            (SECOND_KEY, False, 200),
            (SECOND_KEY, True, 200),
            (b"a wrong key", False, 403),
            (b"a wrong key", True, 403),
        ):
            client.key = key
            assert (await client.send(PEEK, lite=lite)).status == status
        assert code(await client.ask("GET", "/orders/messages")) == "AuthenticationFailed"
        bad = await client.ask("GET", "/orders/messages", Authorization="Bearer x")
        assert code(bad) == "InvalidAuthenticationInfo"


@pytest.mark.parametrize(("minutes", "status"), [(14, 200), (16, 403), (-14, 200), (-16, 403)])
async def test_a_request_is_of_now(minutes: int, status: int, autojump_clock: MockClock) -> None:
    async with open_client() as client:
        client.clock = VirtualClock(skew=timedelta(minutes=minutes))
        response = await client.send(PEEK)

        assert response.status == status
        if status == 403:
            assert code(response) == "AuthenticationFailed"
            assert b"<AuthenticationErrorDetail>" in response.body


async def test_the_secondary_only_reads(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        stats = build_request(storage.GetStats())
        assert code(await client.send(stats)) == "InvalidUri"
        client.prefix = f"/{ACCOUNT}-secondary"
        assert (await client.send(stats)).status == 200
        assert (await client.send(PEEK)).status == 200
        get = build_request(storage.GetMessages(queue="orders"))
        assert code(await client.send(get)) == "InsufficientAccountPermissions"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({"st": "2026-01-01T00:00:00Z"}, None),
        ({"st": "2026-01-01T00:00:01Z"}, "AuthenticationFailed"),
        ({"se": "2026-01-01T00:00:00Z"}, "AuthenticationFailed"),
        ({"se": "some day"}, "AuthenticationFailed"),
        ({"se": ""}, "AuthenticationFailed"),
        ({"sp": "wdlacup"}, "AuthorizationPermissionMismatch"),
        ({"ss": "bt"}, "AuthorizationServiceMismatch"),
        ({"srt": "sc"}, "AuthorizationResourceTypeMismatch"),
        ({"spr": "https"}, "AuthorizationProtocolMismatch"),
        ({"spr": "https,http"}, None),
        ({"sip": "127.0.0.1"}, None),
        ({"sip": "127.0.0.0-127.0.0.2"}, None),
        ({"sip": "10.0.0.1"}, "AuthorizationSourceIPMismatch"),
        ({"sip": "nowhere"}, "AuthorizationSourceIPMismatch"),
    ],
)
async def test_a_signature_of_the_account_is_good_for_what_it_says(
    changes: dict[str, str], found: str | None, autojump_clock: MockClock
) -> None:
    async with open_client() as client:
        assert code(await by(client, {**OF_ACCOUNT, **changes})) == found


async def test_nobody_knows_where_a_client_is_without_an_address(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        client.peer = None
        found = await by(client, {**OF_ACCOUNT, "sip": "0.0.0.0-255.255.255.255"})
        assert code(found) == "AuthorizationSourceIPMismatch"


async def test_a_signature_of_a_queue_is_good_there_and_for_its_messages(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        assert code(await by(client, OF_QUEUE)) is None
        assert code(await by(client, OF_QUEUE, queue="other")) == "AuthenticationFailed"
        assert code(await by(client, OF_QUEUE, key=b"wrong")) == "AuthenticationFailed"
        assert code(await by(client, OF_QUEUE, storage.ListQueues())) == "AuthenticationFailed"
        for operation in (
            storage.ClearMessages(queue="orders"),
            storage.DeleteQueue(queue="orders"),
            storage.SetMetadata(queue="orders"),
        ):
            found = await by(client, {**OF_QUEUE, "sp": "raup"}, operation)
            assert code(found) == "AuthorizationPermissionMismatch"
        for operation in (storage.GetAcl(queue="orders"), storage.SetAcl(queue="orders")):
            for values in ({**OF_QUEUE, "sp": "raup"}, {**OF_ACCOUNT, "sp": "rwdlacup"}):
                assert code(await by(client, values, operation)) == "AuthorizationFailure"


async def test_a_stored_policy_says_what_the_signature_does_not(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        policies = (
            storage.StoredPolicy(id="reads", permission="r", expiry=SOON),
            storage.StoredPolicy(id="only-a-date", expiry=SOON),
        )
        await client.do(storage.SetAcl(queue="orders", policies=policies))
        bare = {"sv": "2026-10-06"}
        for values, found in (
            ({**bare, "si": "reads"}, None),
            ({**bare, "si": "only-a-date", "sp": "r"}, None),
            ({**bare, "si": "only-a-date"}, "AuthorizationPermissionMismatch"),
            ({**bare, "si": "nothing"}, "AuthenticationFailed"),
            ({**bare, "si": "reads", "sp": "raup"}, "AuthenticationFailed"),
        ):
            assert code(await by(client, values)) == found, values
        await client.do(storage.SetAcl(queue="orders"))  # revoked
        assert code(await by(client, {**bare, "si": "reads"})) == "AuthenticationFailed"


async def test_accounts_may_change(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        other = StorageAccount(name=ACCOUNT, keys=(b"a new key for tests",))
        client.frontend.accounts.replace([other])
        assert (await client.send(PEEK)).status == 403
        client.frontend.accounts.replace([])
        assert code(await client.send(PEEK)) == "ResourceNotFound"


def test_the_emulators_account_is_accepted_only_where_the_well_known_key_is() -> None:
    for accepted in (True, False):
        accounts = Accounts([], wall_clock=lambda: START, accepts_well_known_key=accepted)
        assert list(accounts.names) == ([EMULATOR_ACCOUNT.name] if accepted else [])
    own = StorageAccount(name=ACCOUNT, keys=(KEY,))
    accounts = Accounts([own], wall_clock=lambda: START)
    assert list(accounts.names) == [ACCOUNT]


def test_every_operation_needs_something_or_the_key() -> None:
    of_token = storage.GetUserDelegationKey
    free = {storage.GetAcl, storage.SetAcl, storage.Preflight, of_token}

    assert set(NEEDS) | free == set(storage.Operation.__args__)


async def test_a_stored_policy_adds_nothing_to_a_signature_of_the_account(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        policy = storage.StoredPolicy(id="p", expiry=SOON)
        await client.do(storage.SetAcl(queue="orders", policies=(policy,)))
        endless = {name: value for name, value in OF_ACCOUNT.items() if name != "se"}
        response = await by(client, {**endless, "si": "p"})
        assert code(response) == "AuthenticationFailed"
