"""Rights by client certificate: over real TLS, at each front end."""

import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.domain.access import Access, AccessPolicy, Certified, Refusal, Right
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import NotAuthorized
from gateway.domain.storage_queue import StorageAccount
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import MAX_KEPT, Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.web_guard import Frontend, Guarded, WebGuard
from gateway.net.certificates import client_certificate
from gateway.net.certs import write_certificates
from gateway.net.dialing import dial
from gateway.net.http.client import HttpClient
from gateway.net.http.server import HttpServer
from gateway.net.listeners import ConnectionHandler, Listener
from gateway.net.server_address import ServerAddress
from gateway.net.tls import ClientTlsOptions, TlsOptions, client_context, server_context
from gateway.net.visits import Visits, record_certificate
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.http.messages import Headers, Request, Response
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import ORDERS
from tests.frontends.storage_client import ACCOUNT, open_client
from tests.harness.patience import PATIENCE

EXTERNAL = Credentials(mechanism="EXTERNAL")
TO_SEND = Access(right=Right.SEND, entity=ORDERS, path="orders")


def now() -> datetime:
    return datetime.now(UTC)


def policy(*names: str, right: Right = Right.SEND) -> AccessPolicy:
    return AccessPolicy(
        name="by-certificate", certificates=names, rights=frozenset({right}), entities=("orders",)
    )


@attrs.frozen
class Site:
    """A broker, and how its clients are let in."""

    broker: MemoryBroker
    leases: Leases
    authorizer: Authorizer
    folder: Path
    nursery: trio.Nursery

    def tls(self) -> ClientTlsOptions:
        return ClientTlsOptions(
            ca=self.folder / "ca.pem",
            certificate=self.folder / "client.pem",
            key=self.folder / "client.key",
        )

    async def listen(self, handler: ConnectionHandler) -> int:
        """A port that demands a certificate."""
        options = TlsOptions(
            certificate=self.folder / "server.pem",
            key=self.folder / "server.key",
            client_ca=self.folder / "ca.pem",
        )
        listener = Listener(
            await trio.open_tcp_listeners(0, host="127.0.0.1"),
            on_crash=crashed,
            tls=server_context(options),
        )
        serve = partial(listener.serve, handler, connections=self.nursery)
        await self.nursery.start(serve)
        return listener.port

    def http(self, frontend: Frontend) -> ConnectionHandler:
        certified = self.authorizer.claim_of_certificate
        guarded = Guarded(
            guard=WebGuard(
                is_open=lambda: self.authorizer.is_open,
                has_certificate=lambda: certified() is not None,
            ),
            frontend=frontend,
            handler=frontend.handle,
            prepare=self.authorizer.prepare,
        )
        server = HttpServer(
            handler=guarded.handle,
            check_head=guarded.check_head,
            error_body=frontend.refuse,
            wall_clock=now,
        )
        return server.serve_connection

    async def ask(self, port: int, method: str, target: str, **fields: str) -> Response:
        client = HttpClient("localhost", port, tls=client_context(self.tls()))
        try:
            with trio.fail_after(PATIENCE):
                request = Request(method=method, target=target, headers=Headers.of(fields))
                return await client.request(request)
        finally:
            await client.aclose()


def crashed(peer: str, error: BaseException) -> None:
    raise error


@asynccontextmanager
async def open_site(folder: Path, *policies: AccessPolicy) -> AsyncIterator[Site]:
    write_certificates(folder, now=now())
    broker = MemoryBroker(now, random.Random(1))
    await broker.create_queue(ORDERS, QueueProperties())
    leases = Leases(broker, now)
    async with trio.open_nursery() as nursery:
        await nursery.start(leases.run)
        authorizer = Authorizer(policies, wall_clock=now, accepts_well_known_key=True)
        yield Site(broker, leases, authorizer, folder, nursery)
        nursery.cancel_scope.cancel()


def rest_of(site: Site) -> ServiceBusRestFrontend:
    return ServiceBusRestFrontend(
        broker=site.broker, leases=site.leases, authorizer=site.authorizer, wall_clock=now
    )


async def test_rest_and_admin_take_the_certificate_of_the_connection(tmp_path: Path) -> None:
    async with open_site(tmp_path, policy("CN=pairgate-client")) as site:
        rest = await site.listen(site.http(rest_of(site)))
        admin = await site.listen(
            site.http(AdminFrontend(broker=site.broker, authorizer=site.authorizer, wall_clock=now))
        )

        assert (await site.ask(rest, "POST", "/orders/messages")).status == 201
        assert (await site.ask(rest, "POST", "/orders/messages/head?timeout=1")).status == 401
        assert (await site.ask(rest, "GET", "/$Resources/Queues")).status == 401
        assert (await site.ask(admin, "POST", "/triggers/orders")).status == 202
        assert (await site.ask(admin, "GET", "/scale/orders")).status == 401


async def test_a_token_counts_more_than_the_certificate(tmp_path: Path) -> None:
    async with open_site(tmp_path, policy("CN=pairgate-client")) as site:
        rest = await site.listen(site.http(rest_of(site)))

        answer = await site.ask(rest, "POST", "/orders/messages", Authorization="Bearer x")

        assert answer.status == 401


async def test_a_page_of_another_site_can_not_use_the_certificate_of_a_browser(
    tmp_path: Path,
) -> None:
    async with open_site(tmp_path, policy("DNS:pairgate-client")) as site:
        rest = await site.listen(site.http(rest_of(site)))

        foreign = await site.ask(rest, "POST", "/orders/messages", Origin="https://evil.example")
        own = await site.ask(rest, "POST", "/orders/messages", Origin=f"https://localhost:{rest}")

        assert foreign.status == 403
        assert own.status == 201


@pytest.mark.parametrize(
    ("site_of_page", "part", "refused"),
    [
        ("cross-site", "image", True),
        ("same-site", "iframe", True),
        ("cross-site", "document", True),
        ("same-origin", "image", False),
        ("none", "document", False),
    ],
)
async def test_an_image_in_a_page_of_another_site_can_not_use_the_certificate_of_a_browser(
    site_of_page: str, part: str, refused: bool, tmp_path: Path
) -> None:
    async with open_site(tmp_path, policy("DNS:pairgate-client")) as site:
        rest = await site.listen(site.http(rest_of(site)))
        fields = {"Sec-Fetch-Site": site_of_page, "Sec-Fetch-Dest": part}

        answer = await site.ask(rest, "GET", "/orders/messages", **fields)

        assert (answer.status == 403) is refused


@pytest.mark.parametrize(("name", "may"), [("DNS:pairgate-client", True), ("CN=other", False)])
async def test_amqp_takes_it_with_external(name: str, may: bool, tmp_path: Path) -> None:
    async with open_site(tmp_path, policy(name)) as site:
        frontend = AmqpFrontend(
            broker=site.broker, leases=site.leases, authorizer=site.authorizer, wall_clock=now
        )
        port = await site.listen(frontend.serve_connection)
        place = ServerAddress(host="localhost", port=port, tls=client_context(site.tls()))

        async def open_sdk(credentials: Credentials) -> Sdk:
            sdk = Sdk.on(await dial(place), credentials)
            site.nursery.start_soon(sdk.run)
            return await sdk.open()

        with trio.fail_after(PATIENCE):
            external = await open_sdk(EXTERNAL)
            if may:
                assert await external.sender() is not None
            else:
                await external.refusal(we_send=True, address="orders")
            await external.refusal(we_send=False, address="orders")
            anonymous = await open_sdk(Credentials(mechanism="ANONYMOUS"))
            denied = await anonymous.refusal(we_send=True, address="orders")

        assert denied.condition == "amqp:unauthorized-access"


async def test_the_queue_service_takes_it(tmp_path: Path) -> None:
    body = b"<QueueMessage><MessageText>bQ==</MessageText></QueueMessage>"
    write_certificates(tmp_path, now=now())
    authorizer = Authorizer([policy("CN=pairgate-client")], wall_clock=now)
    async with open_client() as client:
        client.frontend.accounts = Accounts(
            [StorageAccount(name=ACCOUNT, keys=(b"k" * 16,))],
            wall_clock=client.clock,
            authorizer=authorizer,
        )
        stranger = await client.ask("POST", "/orders/messages", body)
        with shown(der_of(tmp_path / "client.pem")):
            sent = await client.ask("POST", "/orders/messages", body)
            got = await client.ask("GET", "/orders/messages")

    assert (stranger.status, sent.status, got.status) == (403, 201, 403)


def der_of(file: Path) -> bytes:
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    return certificate.public_bytes(serialization.Encoding.DER)


class shown:  # noqa: N801 reads as a word
    """A connection whose client has shown that certificate."""

    def __init__(self, der: bytes) -> None:
        self.visit = Visits(60.0).begin("this machine", "127.0.0.1:1")
        self.der = der

    def __enter__(self) -> None:
        self.visit.__enter__()
        record_certificate(self.der)

    def __exit__(self, *error: object) -> None:
        self.visit.__exit__(None, None, None)


def certificate(
    subject: x509.Name, *names: x509.GeneralName, days: float = 1.0, ends: datetime | None = None
) -> bytes:
    """A self-signed certificate, as TLS has verified the client's already."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now() - timedelta(days=2))
        .not_valid_after(ends or now() + timedelta(days=days))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def named(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in pairs])


async def test_a_certificate_has_its_subject_and_its_alternative_names() -> None:
    der = certificate(
        named((NameOID.ORGANIZATION_NAME, "Contoso"), (NameOID.COMMON_NAME, "orders")),
        x509.DNSName("Orders.example.net"),
        x509.UniformResourceIdentifier("spiffe://cluster/ns/shop/sa/orders"),
        x509.RFC822Name("orders@example.net"),
    )

    found = client_certificate(der)
    assert found is not None
    assert found.names == {
        "CN=orders,O=Contoso",
        "CN=orders",
        "DNS:orders.example.net",
        "URI:spiffe://cluster/ns/shop/sa/orders",
        "EMAIL:orders@example.net",
    }


async def test_a_common_name_can_not_pass_for_a_whole_subject() -> None:
    authorizer = Authorizer(
        [policy("CN=orders,O=Contoso", "DNS:orders.example.net")], wall_clock=now
    )
    for der, may in (
        (
            certificate(
                named((NameOID.ORGANIZATION_NAME, "Contoso"), (NameOID.COMMON_NAME, "orders"))
            ),
            True,
        ),
        (certificate(named((NameOID.COMMON_NAME, "orders,O=Contoso"))), False),
        (certificate(named((NameOID.COMMON_NAME, "DNS:orders.example.net"))), False),
        (certificate(named((NameOID.COMMON_NAME, "orders"))), False),
        (certificate(named(), x509.DNSName("orders.example.net")), True),
        (certificate(named(), x509.DNSName("x.orders.example.net")), False),
        (certificate(named()), False),
    ):
        with shown(der):
            assert (authorizer.claim_of_certificate() is not None) is may


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (bytes.fromhex("a003020102"), bytes.fromhex("a003020107")),
        (b"\x0c\x06orders", b"\x0c\x06\xff\xff\xff\xff\xff\xff"),
        (b"\x0c\x06orders", b"\x03\x06\x00rders"),
    ],
    ids=["of an unknown version", "whose subject is no UTF-8", "whose subject is no text"],
)
async def test_a_certificate_that_can_not_be_read_has_no_rights(old: bytes, new: bytes) -> None:
    der = certificate(named((NameOID.COMMON_NAME, "orders"))).replace(old, new)
    authorizer = Authorizer([policy("CN=orders")], wall_clock=now)

    with shown(der):
        assert authorizer.claim_of_certificate() is None


async def test_certificates_that_come_and_go_need_no_more_and_more_memory() -> None:
    authorizer = Authorizer([policy("CN=orders")], wall_clock=now)
    der = certificate(named((NameOID.COMMON_NAME, "orders")))

    for number in range(2 * MAX_KEPT):
        with shown(der.replace(b"orders", b"%06d" % number)):
            authorizer.claim_of_certificate()

    remembered = sum(isinstance(each, Certified) for each in gc.get_objects())
    assert remembered < 1.5 * MAX_KEPT


async def test_the_rights_end_with_the_certificate_and_with_their_policy() -> None:
    date = now()
    refused: list[str] = []
    authorizer = Authorizer(
        [policy("CN=orders")],
        wall_clock=lambda: date,
        on_refused=lambda name, why: refused.append(why.value),
    )
    with shown(certificate(named((NameOID.COMMON_NAME, "orders")), days=1)):
        claim = authorizer.claim(None)
        authorizer.check(claim, TO_SEND)
        assert 86390 < authorizer.seconds_left(claim) <= 86400
        date += timedelta(days=1, seconds=1)

        with pytest.raises(NotAuthorized, match="expired"):
            authorizer.check(claim, TO_SEND)
        with pytest.raises(NotAuthorized, match="no token"):
            authorizer.claim(None)
        date -= timedelta(days=1)
        authorizer.replace([policy("CN=other")])
        with pytest.raises(NotAuthorized, match="no access policy is for this certificate"):
            authorizer.check(claim, TO_SEND)

    assert refused == [Refusal.MISSING.value]
