"""Rights to attach links: tokens on $cbs, their ends, and PLAIN."""

import math
import tracemalloc
from datetime import UTC, datetime, timedelta

import attrs
import pytest
import trio

from gateway.domain.access import Access, AccessPolicy, Right, TokenClaim, audience_of
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import NotAuthorized
from gateway.domain.message import Message
from gateway.frontends.amqp.tokens import ConnectionTokens
from gateway.frontends.auth import Authorizer
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.servicebus.sas import sign_sas
from tests.frontends.amqp.sdk import ANONYMOUS
from tests.frontends.rest_client import KEY, ORDERS, POLICIES, ROOT, wall_clock

SENDER = next(policy for policy in POLICIES if policy.name == "Send")
LISTENER = next(policy for policy in POLICIES if policy.name == "Listen")
SKEW = 300  # seconds that the gateway forgives


@pytest.fixture
async def stranger(house):
    return await house.connect().open()


async def test_a_token_is_accepted_with_202(stranger, autojump_clock):
    reply = await stranger.put_token()

    assert reply.properties["status-code"].value == 202
    assert reply.properties["status-description"] == "Accepted"


async def test_a_wrong_signature_is_told_with_401(stranger, autojump_clock):
    reply = await stranger.put_token(key="wrong")

    assert reply.properties["status-code"].value == 401


@pytest.mark.parametrize("token", ["", "eyJhbGciOiJub25lIn0.e30.", "SharedAccessSignature sr=1"])
async def test_an_invalid_token_is_told_with_401(stranger, token, autojump_clock):
    reply = await stranger.put_text(token)

    assert reply.properties["status-code"].value == 401


async def test_another_operation_is_told_with_400(stranger, autojump_clock):
    reply = await stranger.ask("$cbs", Message(properties={"operation": "delete-token"}))

    assert reply.properties["status-code"].value == 400


async def test_without_a_token_nothing_is_attached(stranger, autojump_clock):
    error = await stranger.refusal(we_send=True, address="orders")

    assert error.condition == "amqp:unauthorized-access"


async def test_a_token_for_one_queue_is_none_for_another(stranger, autojump_clock):
    await stranger.put_token("sb://localhost/orders")

    error = await stranger.refusal(we_send=True, address="invoices")

    assert await stranger.sender() is not None
    assert error.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize(("policy", "allowed"), [(SENDER, True), (LISTENER, False)])
async def test_each_direction_needs_its_right(stranger, policy, allowed, autojump_clock):
    await stranger.put_token(policy=policy)

    denied = await stranger.refusal(we_send=not allowed, address="orders")
    await stranger.attached(we_send=allowed, address="orders")

    assert denied.condition == "amqp:unauthorized-access"


async def test_a_token_that_expires_takes_its_links_along(house, stranger, autojump_clock):
    await stranger.put_token("sb://localhost/orders", seconds=60)
    sender, receiver = await stranger.sender(), await stranger.receiver(credit=1)

    with trio.fail_after(60 + SKEW + 2):
        ended = [await stranger.until(amqp.LinkDetached) for _ in range(2)]

    assert {event.link for event in ended} == {sender, receiver}
    assert {event.error.condition for event in ended} == {"amqp:unauthorized-access"}


async def test_a_newer_token_keeps_the_links(house, stranger, autojump_clock):
    await stranger.put_token("sb://localhost/orders", seconds=60)
    link = await stranger.sender()
    await trio.sleep(50)

    await stranger.put_token("sb://localhost/orders", seconds=3600)
    await trio.sleep(60 + SKEW)

    assert await stranger.send(link, Message()) == amqp.ACCEPTED


async def test_a_policy_that_is_taken_away_takes_its_links_along(house, stranger, autojump_clock):
    await stranger.put_token(policy=SENDER)
    link = await stranger.sender()
    await trio.sleep(10)

    house.frontend.authorizer.replace([ROOT])
    detached = await stranger.until(amqp.LinkDetached)

    assert (detached.link, detached.error.condition) == (link, "amqp:unauthorized-access")


async def test_so_many_tokens_and_no_more(house, autojump_clock):
    house.change(max_tokens=2)
    stranger = await house.connect().open()

    codes = [
        (await stranger.put_token(f"sb://localhost/{name}")).properties["status-code"].value
        for name in ("a", "b", "a", "c")
    ]

    assert codes == [202, 202, 202, 503]


async def test_tokens_of_several_policies_add_up(stranger, autojump_clock):
    await stranger.put_token("sb://localhost/orders", policy=SENDER)
    await stranger.put_token("amqps://localhost:5671/Orders/", policy=LISTENER)

    assert await stranger.sender() is not None
    assert await stranger.receiver() is not None


async def test_a_token_that_is_no_uri_is_told_with_401(stranger, autojump_clock):
    reply = await stranger.put_token("orders")

    assert reply.properties["status-code"].value == 401


async def test_tokens_that_have_expired_make_room(house, autojump_clock):
    house.change(max_tokens=1)
    stranger = await house.connect().open()
    await stranger.put_token("sb://localhost/a", seconds=10 - SKEW)

    await trio.sleep(11)
    reply = await stranger.put_token("sb://localhost/b")

    assert reply.properties["status-code"].value == 202


def test_the_first_to_expire_is_found_by_its_own_skew():
    now = datetime(2026, 11, 21, tzinfo=UTC)
    tokens = ConnectionTokens(Authorizer([SENDER], wall_clock=lambda: now), 10)

    def claim(name: str, left: int, skew: int) -> TokenClaim:
        expires = int(now.timestamp()) + left
        resource = "amqp://any/"
        skewed = timedelta(seconds=skew)
        return TokenClaim(key_name=name, resource=resource, expires=expires, skew=skewed)

    assert tokens.seconds_left() == math.inf
    tokens.add_claim(claim("signature", 60, SKEW))
    assert tokens.seconds_left() == 60 + SKEW
    tokens.add_claim(claim("certificate", 90, 0))
    assert tokens.seconds_left() == 90
    tokens.add_claim(claim("expired", -1, 0))
    assert tokens.seconds_left() == 0


class Counting(Authorizer):
    """Counts the checks."""

    asked = 0

    def check(self, claim: TokenClaim, access: Access) -> None:
        self.asked += 1
        super().check(claim, access)


async def test_a_right_is_found_without_a_look_at_all_tokens():
    now = datetime(2026, 11, 21, tzinfo=UTC)
    authorizer = Counting([SENDER], wall_clock=lambda: now)
    tokens = ConnectionTokens(authorizer, 1000)
    for number in range(1000):
        uri = f"sb://localhost/orders{number}"
        await tokens.add(sign_sas(uri, SENDER.name, KEY, int(now.timestamp()) + 60), uri)

    for number in range(1000):
        tokens.check(Right.SEND, EntityPath(f"orders{number}"))
    with pytest.raises(NotAuthorized):
        tokens.check(Right.SEND, EntityPath("invoices"))

    assert authorizer.asked == 1000


async def test_a_key_is_as_good_as_a_token(house, autojump_clock):
    plain = Credentials(mechanism="PLAIN", user="Send", password=KEY)
    sdk = await house.connect(plain).open()

    denied = await sdk.refusal(we_send=False, address="orders")

    assert await sdk.send(await sdk.sender(), Message()) == amqp.ACCEPTED
    assert denied.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize(("user", "password"), [("Send", "wrong"), ("nobody", KEY), ("", "")])
async def test_a_wrong_key_is_not_let_in(house, user, password, autojump_clock):
    sdk = house.connect(Credentials(mechanism="PLAIN", user=user, password=password))

    sdk.engine.open()
    closed = await sdk.until(amqp.ConnectionClosed)

    assert closed.error.condition == "amqp:unauthorized-access"


EXTERNAL = Credentials(mechanism="EXTERNAL")
MSSBCBS = Credentials(mechanism="MSSBCBS")


# @azure/core-amqp, ConnectionContextBase.js: the user of SASL is the name of the key. A connection
# string with a signature has none, and rhea then begins with AMQP itself.
@pytest.mark.parametrize("credentials", [ANONYMOUS, MSSBCBS, EXTERNAL, None], ids=repr)
async def test_a_client_without_a_key_puts_a_token_before_all_else(
    house, credentials, autojump_clock
):
    sdk = await house.connect(credentials).open()

    before = [
        await sdk.refusal(we_send=True, address="orders"),
        await sdk.refusal(we_send=False, address="orders"),
        await sdk.refusal(we_send=True, address="orders/$management"),
        await sdk.refusal(we_send=False, address="$management"),
    ]
    await sdk.put_token("sb://localhost/orders")
    sent = await sdk.send(await sdk.sender(), Message())

    assert {error.condition for error in before} == {"amqp:unauthorized-access"}
    assert sent == amqp.ACCEPTED


ANYBODY = AccessPolicy(
    name="anybody", anonymous=True, rights=frozenset({Right.SEND}), entities=("orders",)
)


@pytest.mark.parametrize("credentials", [ANONYMOUS, EXTERNAL, None], ids=repr)
async def test_clients_without_credentials_have_the_rights_of_anonymous_policies(
    house, credentials, autojump_clock
):
    await house.broker.create_queue(EntityPath("invoices"), QueueProperties())
    house.frontend.authorizer.replace([*POLICIES, ANYBODY])
    sdk = await house.connect(credentials).open()

    sender = await sdk.sender()
    sent = await sdk.send(sender, Message())
    elsewhere = await sdk.refusal(we_send=True, address="invoices")
    receiver = await sdk.refusal(we_send=False, address="orders")
    await sdk.put_token("sb://localhost/invoices")
    with_a_token = await sdk.send(await sdk.sender("invoices"), Message())
    house.frontend.authorizer.replace(POLICIES)
    ended = await sdk.until(amqp.LinkDetached, lambda event: event.link == sender)

    assert (sent, with_a_token) == (amqp.ACCEPTED, amqp.ACCEPTED)
    refused = {error.condition for error in (elsewhere, receiver, ended.error)}
    assert refused == {"amqp:unauthorized-access"}


async def test_another_mechanism_is_not_anonymous(house, autojump_clock):
    house.frontend.authorizer.replace([ANYBODY])
    sdk = await house.connect(MSSBCBS).open()

    assert (await sdk.refusal(we_send=True, address="orders")).condition == (
        "amqp:unauthorized-access"
    )


async def test_a_policy_for_one_queue_does_not_open_another(house, autojump_clock):
    narrow = AccessPolicy(
        name="narrow", keys=(KEY,), rights=frozenset({Right.SEND}), entities=("invoices",)
    )
    house.frontend.authorizer.replace([narrow])
    sdk = await house.connect().open()
    await sdk.put_token(policy=attrs.evolve(narrow))

    error = await sdk.refusal(we_send=True, address=ORDERS.name)

    assert error.condition == "amqp:unauthorized-access"


async def test_a_token_for_management_alone_opens_management_alone(stranger, autojump_clock):
    await stranger.put_token("sb://localhost/orders/$management")  # as Node's SDK asks for it

    assert await stranger.receiver("orders/$management") is not None
    error = await stranger.refusal(we_send=True, address="orders")
    assert error.condition == "amqp:unauthorized-access"


def test_tokens_take_no_more_memory_than_their_resources():
    tokens = ConnectionTokens(Authorizer([SENDER], wall_clock=wall_clock), 1000)
    resources = [f"sb://localhost/{number}/" + "aa/" * 2000 for number in range(600)]
    tracemalloc.start()
    try:
        for resource in resources:
            tokens.add_claim(TokenClaim(key_name="Send", resource=resource, expires=2**40))
        audience_of.cache_clear()  # which all connections share
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken < 2 * sum(map(len, resources))
