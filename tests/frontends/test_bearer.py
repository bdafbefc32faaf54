"""An identity provider's tokens give the same rights at each front end."""

import random

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend
from gateway.frontends.storage_queue.auth import Accounts
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.sas import sign_sas
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.bearer import ISSUER, World
from tests.frontends.rest_client import KEY as SAS_KEY
from tests.frontends.rest_client import ORDERS, ROOT, wall_clock
from tests.frontends.storage_client import ACCOUNT, KEY, code, open_client
from tests.harness.openid import SigningKey

BODY = b"<QueueMessage><MessageText>bQ==</MessageText></QueueMessage>"


@attrs.frozen
class Gateway:
    """A broker behind an authorizer that takes the tokens of that world."""

    world: World
    broker: MemoryBroker
    leases: Leases
    authorizer: Authorizer
    nursery: trio.Nursery

    async def connect(self, credentials: Credentials | None = None) -> Sdk:
        """A connection that is open."""
        return await self.begin(credentials).open()

    def begin(self, credentials: Credentials | None = None) -> Sdk:
        frontend = AmqpFrontend(
            broker=self.broker,
            leases=self.leases,
            authorizer=self.authorizer,
            wall_clock=wall_clock,
        )
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(frontend.serve_connection, theirs)
        sdk = Sdk.on(ours) if credentials is None else Sdk.on(ours, credentials)
        self.nursery.start_soon(sdk.run)
        return sdk


@pytest.fixture
async def gateway(nursery: trio.Nursery) -> Gateway:
    world = World()
    await nursery.start(world.issuers.run)
    await wait_all_tasks_blocked()
    broker = MemoryBroker(wall_clock, random.Random(1))
    await broker.create_queue(ORDERS, QueueProperties())
    leases = Leases(broker, wall_clock)
    await nursery.start(leases.run)
    return Gateway(world, broker, leases, world.authorizer(), nursery)


def request(method: str, target: str, token: str, body: bytes = b"", **fields: str) -> Request:
    fields = {"Host": "localhost", "Authorization": token, **fields}
    headers = Headers.of({name.replace("_", "-"): value for name, value in fields.items()})
    return Request(method=method, target=target, headers=headers, body=body)


def rest_of(gateway: Gateway) -> ServiceBusRestFrontend:
    return ServiceBusRestFrontend(
        broker=gateway.broker,
        leases=gateway.leases,
        authorizer=gateway.authorizer,
        wall_clock=wall_clock,
    )


async def test_rest_and_atom(gateway: Gateway, autojump_clock: MockClock) -> None:
    rest = rest_of(gateway)
    world = gateway.world

    async def ask(method: str, target: str, token: str) -> Response:
        return await rest.handle(request(method, target, token))

    assert (await ask("POST", "/orders/messages", world.bearer("Send"))).status == 201
    assert (await ask("POST", "/orders/messages", world.bearer("Listen"))).status == 401
    locked = await ask("POST", "/orders/messages/head?timeout=1", world.bearer("Listen"))
    assert locked.status == 201
    assert (await ask("GET", "/$Resources/Queues", world.bearer("Manage"))).status == 200
    assert (await ask("GET", "/$Resources/Queues", world.bearer("Send", "Listen"))).status == 401
    refused = await ask("POST", "/orders/messages", f"{world.bearer('Send')}x")
    assert refused.status == 401
    assert [value for name, value in refused.headers.items if name == "WWW-Authenticate"] == [
        'SharedAccessSignature realm="pairgate"',
        f'Bearer authorization_uri="{ISSUER.issuer}/oauth2/authorize",'
        ' resource_id="api://pairgate"',
    ]
    assert rest.check_head(request("POST", "/orders/messages", "Bearer x")) is not None
    assert rest.check_head(request("POST", "/orders/messages", world.bearer())) is None


FORWARDING = b"""<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">
<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">
<ForwardTo>sb://localhost/orders</ForwardTo></QueueDescription></content></entry>"""


# Go's client for management (azservicebus/internal/atom) sends the token alone; for the target of a
# forwarding Node's SDK does, too (serviceBusAtomManagementClient.ts).
@pytest.mark.parametrize("has_scheme", [True, False], ids=["Bearer", "bare"])
async def test_a_token_needs_no_scheme_over_rest(
    gateway: Gateway, has_scheme: bool, autojump_clock: MockClock
) -> None:
    rest = rest_of(gateway)

    def shown(*roles: str) -> str:
        token = gateway.world.token(*roles)
        return f"Bearer {token}" if has_scheme else token

    async def forward(token: str) -> int:
        supplementary = {"ServiceBusSupplementaryAuthorization": token, "If-Match": "*"}
        put = request("PUT", "/from", shown("Manage"), FORWARDING, **supplementary)
        return (await rest.handle(put)).status

    assert (await rest.handle(request("POST", "/orders/messages", shown("Send")))).status == 201
    assert (await rest.handle(request("POST", "/orders/messages", shown("Listen")))).status == 401
    await gateway.broker.create_queue(EntityPath("from"), QueueProperties())
    assert await forward(shown("Send")) == 401
    assert await forward(shown("Manage")) == 200


async def test_the_keys_for_a_second_token_are_waited_for(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    """The request itself has a signature."""
    rest = rest_of(gateway)
    await trio.sleep(3700)
    claims = gateway.world.provider.claims(wall_clock().timestamp())
    new = SigningKey.make("new")
    gateway.world.provider.keys.append(new)
    token = new.sign(claims | {"roles": ["Queues.Manage"]})
    signature = sign_sas("http://localhost/", ROOT.name, SAS_KEY, 2**33)
    put = request("PUT", "/from", signature, FORWARDING, ServiceBusSupplementaryAuthorization=token)

    assert (await rest.handle(put)).status == 201


async def test_an_audience_that_fits_no_header_is_accepted_and_not_told(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    world = gateway.world
    issuer = attrs.evolve(ISSUER, audiences=("api://bücher\r\nX: 1",))
    world.issuers.replace([attrs.evolve(world.options, issuer=issuer)])
    await wait_all_tasks_blocked()

    assert gateway.authorizer.challenges == ['SharedAccessSignature realm="pairgate"']
    token = world.bearer("Send", aud=issuer.audiences[0])
    assert gateway.authorizer.claim(token).key_name


async def test_the_keys_that_nobody_can_read_are_no_fault_of_the_client(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    rest = rest_of(gateway)
    gateway.world.is_down = True
    await trio.sleep(3700)
    claims = gateway.world.provider.claims(wall_clock().timestamp())
    token = f"Bearer {SigningKey.make('new').sign(claims)}"

    answer = await rest.handle(request("POST", "/orders/messages", token))

    assert (answer.status, answer.headers.get("Retry-After")) == (503, "10")


async def test_the_admin_endpoint_has_readers_and_operators(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    admin = AdminFrontend(
        broker=gateway.broker, authorizer=gateway.authorizer, wall_clock=wall_clock
    )
    world = gateway.world

    async def status(method: str, target: str, token: str) -> int:
        return (await admin.handle(request(method, target, token))).status

    assert await status("GET", "/scale/orders", world.bearer("Listen")) == 200
    assert await status("GET", "/scale/orders", world.bearer("Send")) == 401
    assert await status("GET", "/scale/orders", "Bearer x") == 401
    assert await status("POST", "/triggers/orders", world.bearer("Send")) == 202
    assert await status("POST", "/triggers/orders", world.bearer("Listen")) == 401
    assert await status("GET", "/scale/orders", world.bearer("Manage")) == 200


async def test_amqp_takes_them_on_cbs(gateway: Gateway, autojump_clock: MockClock) -> None:
    sdk, world = await gateway.connect(), gateway.world

    refused = await sdk.put_text("eyJhbGciOiJub25lIn0.e30.", "sb://localhost/orders")
    told = await sdk.put_text(world.token("Send"), "sb://localhost/orders")

    assert refused.properties["status-code"].value == 401
    assert told.properties["status-code"].value == 202
    assert await sdk.sender() is not None
    denied = await sdk.refusal(we_send=False, address="orders")
    assert denied.condition == "amqp:unauthorized-access"


async def test_a_token_on_cbs_is_for_the_entity_that_it_was_put_for(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    sdk = await gateway.connect()

    await sdk.put_text(gateway.world.token("Send"), "sb://localhost/invoices")

    denied = await sdk.refusal(we_send=True, address="orders")
    assert denied.condition == "amqp:unauthorized-access"


async def test_the_end_of_a_token_ends_its_links_and_a_newer_one_keeps_them(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    first, second = await gateway.connect(), await gateway.connect()
    links = []
    for sdk in (first, second):
        soon = int(wall_clock().timestamp()) + 60
        await sdk.put_text(gateway.world.token("Send", exp=soon), "sb://localhost/orders")
        links.append(await sdk.sender())
    await trio.sleep(30)
    await second.put_text(gateway.world.token("Send"), "sb://localhost/orders")

    with trio.fail_after(30 + ISSUER.clock_skew + 2):
        ended = await first.until(amqp.LinkDetached)
    await trio.sleep(30)

    assert ended.link == links[0]
    assert ended.error.condition == "amqp:unauthorized-access"
    assert not [event for event in second.told if isinstance(event, amqp.LinkDetached)]


async def test_a_key_that_is_gone_ends_the_links_of_its_tokens(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    sdk, other = await gateway.connect(), await gateway.connect()
    await sdk.put_text(gateway.world.token("Send"), "sb://localhost/orders")
    link = await sdk.sender()
    await trio.sleep(10)

    gateway.world.provider.rotate()
    told = await other.put_text(gateway.world.token("Send"), "sb://localhost/orders")
    ended = await sdk.until(amqp.LinkDetached)

    assert told.properties["status-code"].value == 202
    assert (ended.link, ended.error.condition) == (link, "amqp:unauthorized-access")


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "PLAIN"])
async def test_amqp_takes_them_in_sasl_for_the_whole_connection(
    mechanism: str, gateway: Gateway, autojump_clock: MockClock
) -> None:
    """XOAUTH2 as Qpid's clients, PLAIN with a token as password as RabbitMQ's."""
    world = gateway.world
    token = world.token("Send", exp=int(wall_clock().timestamp()) + 60)
    sdk = await gateway.connect(Credentials(mechanism=mechanism, password=token))

    link = await sdk.sender()
    denied = await sdk.refusal(we_send=False, address="orders")
    with trio.fail_after(60 + ISSUER.clock_skew + 2):
        ended = await sdk.until(amqp.LinkDetached)

    assert denied.condition == "amqp:unauthorized-access"
    assert (ended.link, ended.error.condition) == (link, "amqp:unauthorized-access")


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "PLAIN"])
async def test_sasl_waits_for_a_new_key_and_refuses_what_is_no_token(
    mechanism: str, gateway: Gateway, autojump_clock: MockClock
) -> None:
    world = gateway.world
    world.provider.rotate()
    good = Credentials(mechanism=mechanism, password=world.token("Send"))
    stranger = SigningKey.make("guess").sign(world.provider.claims(wall_clock().timestamp()))

    sdk = await gateway.connect(good)

    assert world.reads == 2
    assert await sdk.sender() is not None
    for text in (stranger, f"{world.token('Send')}x", "eyJ.eyJ.eyJ", ""):
        refused = gateway.begin(Credentials(mechanism=mechanism, password=text))
        closed = await refused.until(amqp.ConnectionClosed)
        assert closed.error.condition == "amqp:unauthorized-access"


async def test_sasl_tells_a_client_to_try_again_while_the_keys_can_not_be_read(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    gateway.world.is_down = True
    await trio.sleep(3700)
    claims = gateway.world.provider.claims(wall_clock().timestamp())
    token = SigningKey.make("new").sign(claims)

    sdk = gateway.begin(Credentials(mechanism="XOAUTH2", password=token))
    closed = await sdk.until(amqp.ConnectionClosed)

    assert closed.error.condition == "amqp:internal-error"  # code 4: not the client's fault


async def test_the_queue_service(gateway: Gateway, autojump_clock: MockClock) -> None:
    world = gateway.world
    async with open_client() as client:
        client.frontend.accounts = Accounts(
            [StorageAccount(name=ACCOUNT)],
            wall_clock=client.clock,
            authorizer=gateway.authorizer,
        )

        async def ask(method: str, target: str, token: str, body: bytes = b"") -> Response:
            return await client.ask(method, target, body, Authorization=token)

        messages = "/orders/messages"
        assert (await ask("POST", messages, world.bearer("Send"), BODY)).status == 201
        refused = await ask("POST", messages, world.bearer("Listen"), BODY)
        assert (refused.status, code(refused)) == (403, "AuthorizationPermissionMismatch")
        assert (await ask("GET", messages, world.bearer("Listen"))).status == 200
        assert (await ask("GET", messages, world.bearer("Send"))).status == 403
        assert (await ask("DELETE", messages, world.bearer("Listen"))).status == 403  # clears
        assert (await ask("PUT", "/more", world.bearer("Manage"))).status == 201
        assert (await ask("PUT", "/other", world.bearer("Send", "Listen"))).status == 403
        assert (await ask("GET", "/?comp=list", world.bearer("Manage"))).status == 200
        assert (await ask("GET", "/?comp=list", world.bearer("Listen"))).status == 403
        signed = await client.ask("GET", messages, Authorization=f"SharedKey {ACCOUNT}:AAAA")
        assert signed.status == 403


async def test_the_queue_service_tells_where_to_get_a_token(
    gateway: Gateway, autojump_clock: MockClock
) -> None:
    async with open_client() as client:
        client.frontend.accounts = Accounts(
            [StorageAccount(name=ACCOUNT, keys=(KEY,))],
            wall_clock=client.clock,
            authorizer=gateway.authorizer,
        )
        # azure-sdk-for-net#42859 has the answer to a token that has expired, AzureStor#119
        # that to another audience.
        bad = "InvalidAuthenticationInfo"
        for fields, expected in (
            ({}, "NoAuthenticationInformation"),
            ({"Authorization": "Bearer x"}, bad),
            ({"Authorization": "bearer e30.e30.e30"}, bad),
        ):
            answer = await client.ask("GET", "/orders/messages", **fields)

            assert (answer.status, code(answer)) == (401, expected)
            assert b"Please refer to the information in the www-authenticate header" in answer.body
            assert b"<AuthenticationErrorDetail>" in answer.body
            assert answer.headers.get("WWW-Authenticate") == (
                f"Bearer authorization_uri={ISSUER.issuer}/oauth2/authorize"
                " resource_id=api://pairgate"
            )
