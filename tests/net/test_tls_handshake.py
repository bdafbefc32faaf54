"""Certificates that change, and errors that name the certificate that isn't trusted."""

import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from gateway.domain.errors import Untrusted
from gateway.net.amqp.client import AmqpClient
from gateway.net.dialing import dial
from gateway.net.rabbitmq.connection import BrokerLogin, connect
from gateway.net.server_address import ServerAddress
from gateway.net.tls import (
    ClientTlsOptions,
    FileContext,
    TlsFileError,
    TlsOptions,
    client_context,
    server_context,
)
from gateway.net.tls_handshake import UntrustedCertificate, accept_tls, connect_tls
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.rabbitmq.frames import Login
from tests.harness.certificates import DAY, UNREADABLE_NAMES, Authority, Issued, now, replace


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@attrs.define
class Ends:
    """Both ends of a connection, or their errors."""

    client: trio.SSLStream | UntrustedCertificate | None = None
    server: trio.SSLStream | UntrustedCertificate | None = None

    async def says(self, text: bytes) -> bytes:
        """The bytes that the server receives of this text."""
        assert isinstance(self.client, trio.SSLStream)
        assert isinstance(self.server, trio.SSLStream)
        await self.client.send_all(text)
        return bytes(await self.server.receive_some(100))

    @property
    def serial(self) -> str:
        """The serial number of the server's certificate, as the client has seen it."""
        assert isinstance(self.client, trio.SSLStream)
        return self.client.getpeercert()["serialNumber"].lower().lstrip("0")


async def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> Ends:
    ends, (ours, theirs) = Ends(), memory_stream_pair()

    async def accept() -> None:
        try:
            ends.server = await accept_tls(theirs, server, 60.0)
            await ends.server.send_all(b"+")
        except UntrustedCertificate as error:
            ends.server = error
        except trio.BrokenResourceError:
            await theirs.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        try:
            ends.client = await connect_tls(ours, client, host, https_compatible=True)
        except UntrustedCertificate as error:
            ends.client = error
            await ours.aclose()
        else:
            # In TLS 1.3 the client learns only later that its certificate is refused.
            try:
                assert await ends.client.receive_some(1) == b"+"
            except trio.BrokenResourceError:
                await ours.aclose()
    return ends


def serving(issued: Issued, **options: Path) -> FileContext:
    return server_context(TlsOptions(certificate=issued.certificate, key=issued.key, **options))


def trusting(authority: Authority, issued: Issued | None = None, **options: Path) -> FileContext:
    own = {} if issued is None else {"certificate": issued.certificate, "key": issued.key}
    return client_context(ClientTlsOptions(ca=authority.file, **own, **options))


async def test_a_changed_certificate_is_shown_at_the_next_handshake_and_no_connection_ends(
    authority: Authority,
) -> None:
    old = authority.issue("server")
    server, client = serving(old), trusting(authority)
    before = await shake_hands(server, client)

    new = authority.issue("server")
    after = await shake_hands(server, client)

    assert (before.serial, after.serial) == (old.hexadecimal, new.hexadecimal)
    assert await before.says(b"still here") == b"still here"
    assert await after.says(b"hello") == b"hello"


@pytest.mark.parametrize("broken", ["server.pem", "server.key"])
async def test_a_changed_file_that_can_not_be_used_changes_nothing(
    authority: Authority, broken: str
) -> None:
    old = authority.issue("server")
    server, client = serving(old), trusting(authority)
    whole = (authority.folder / broken).read_text()
    (authority.folder / broken).write_text(whole[: len(whole) // 2])

    during = await shake_hands(server, client)
    assert during.serial == old.hexadecimal
    assert server.problem is not None
    assert broken in str(server.problem)

    new = authority.issue("server")
    assert (await shake_hands(server, client)).serial == new.hexadecimal
    assert server.problem is None


async def test_the_exchange_of_a_symbolic_link_is_a_change(
    authority: Authority, tmp_path: Path
) -> None:
    """Kubernetes exchanges a link to a folder, on the way to the files of a secret."""
    issued = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        issued.append(authority.issue("server", file=f"{name}/tls"))
    link = tmp_path / "data"
    link.symlink_to("first")
    server = serving(Issued(link / "tls.pem", link / "tls.key", 0))
    client = trusting(authority)
    before = await shake_hands(server, client)

    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(link)
    after = await shake_hands(server, client)

    assert [before.serial, after.serial] == [each.hexadecimal for each in issued]


async def test_a_client_trusts_the_authorities_that_its_file_has_now(
    authority: Authority, tmp_path: Path
) -> None:
    server, client = serving(authority.issue("server")), trusting(authority)
    other = Authority(tmp_path / "other")

    replace(authority.file, other.file.read_bytes())
    distrusted = await shake_hands(server, client)
    trusted = await shake_hands(serving(other.issue("server")), client)

    assert isinstance(distrusted.client, UntrustedCertificate)
    assert isinstance(trusted.client, trio.SSLStream)


async def test_a_client_shows_the_certificate_that_its_files_have_now(
    authority: Authority,
) -> None:
    server = serving(authority.issue("server"), client_ca=authority.file)
    first = authority.issue("client")
    client = trusting(authority, first)
    before = await shake_hands(server, client)
    second = authority.issue("client")
    after = await shake_hands(server, client)

    seen = [
        ends.server.getpeercert()["serialNumber"].lower().lstrip("0")
        for ends in (before, after)
        if isinstance(ends.server, trio.SSLStream)
    ]
    assert seen == [first.hexadecimal, second.hexadecimal]


async def test_an_expired_certificate_of_a_server_is_named(authority: Authority) -> None:
    issued = authority.issue("server", begins=now() - 20 * DAY, life=10 * DAY)

    error = (await shake_hands(serving(issued), trusting(authority))).client

    assert isinstance(error, UntrustedCertificate)
    assert error.why == "expired"
    assert f"CN=server, serial {issued.hexadecimal}, valid until 20" in str(error)
    assert "certificate has expired" in str(error)


async def test_a_certificate_for_another_host_is_named_with_its_hosts(
    authority: Authority,
) -> None:
    issued = authority.issue("server", hosts=["a.example.net", "10.0.0.1"])

    error = (await shake_hands(serving(issued), trusting(authority))).client

    assert isinstance(error, UntrustedCertificate)
    assert f"CN=server, serial {issued.hexadecimal}" in str(error)
    assert "not valid for 'localhost'; it is for a.example.net, 10.0.0.1" in str(error)


async def test_a_certificate_of_an_unknown_authority_is_named_with_the_file_of_the_known_ones(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "other")
    issued = other.issue("server")

    error = (await shake_hands(serving(issued), trusting(authority))).client

    assert isinstance(error, UntrustedCertificate)
    assert error.why == "untrusted"
    assert f"CN=server, serial {issued.hexadecimal}" in str(error)
    assert str(authority.file) in str(error)


async def test_a_strange_certificate_whose_names_can_not_be_read_is_refused_as_any_other(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "other")
    odd = other.issue("odd", alternatives=UNREADABLE_NAMES)
    good = authority.issue("good")

    server = (await shake_hands(serving(odd), trusting(authority))).client
    client = (
        await shake_hands(serving(good, client_ca=authority.file), trusting(authority, odd))
    ).server

    for error in (server, client):
        assert isinstance(error, UntrustedCertificate)
        assert f"CN=odd, serial {odd.hexadecimal}" in str(error)


async def test_a_revoked_certificate_of_a_server_is_named_with_the_file_of_the_list(
    authority: Authority,
) -> None:
    good, bad = authority.issue("good"), authority.issue("bad")
    client = trusting(authority, crl=authority.revoke(bad))

    accepted = await shake_hands(serving(good), client)
    error = (await shake_hands(serving(bad), client)).client

    assert isinstance(accepted.client, trio.SSLStream)
    assert isinstance(error, UntrustedCertificate)
    assert error.why == "revoked"
    assert f"CN=bad, serial {bad.hexadecimal}" in str(error)
    assert f"certificate revoked (crl: {authority.revoked})" in str(error)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_that_is_revoked_is_named_and_a_new_list_is_read(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    issued = authority.issue("orders-7")
    server = serving(authority.issue("server"), client_ca=authority.file, crl=authority.revoke())
    client = trusting(authority, issued)
    client.maximum_version = version
    before = await shake_hands(server, client)

    authority.revoke(issued)
    error = (await shake_hands(server, client)).server

    assert isinstance(before.server, trio.SSLStream)
    assert isinstance(error, UntrustedCertificate)
    assert error.why == "revoked"
    assert f"CN=orders-7, serial {issued.hexadecimal}" in str(error)
    assert str(authority.revoked) in str(error)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_is_revoked_does_not_resume_its_session(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    issued = authority.issue("orders-7")
    server = serving(authority.issue("server"), client_ca=authority.file, crl=authority.revoke())
    client = trusting(authority, issued)
    client.maximum_version = version
    first = exchange_greeting(server, client)
    again = exchange_greeting(server, client, first.session)

    authority.revoke(issued)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        exchange_greeting(server, client, first.session)

    assert (first.session_reused, again.session_reused) == (False, True)


def exchange_greeting(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLObject:
    """The client's end, which then has a session to resume."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(up, down, server_side=True)
    ours = client.wrap_bio(down, up, server_hostname="localhost", session=session)
    steps = deque([ours.do_handshake, theirs.do_handshake, partial(theirs.write, b"+"), ours.read])
    while steps:
        try:
            steps[0]()
        except ssl.SSLWantReadError:
            steps.rotate(-1)
        else:
            steps.popleft()
    return ours


async def test_a_client_without_a_certificate_is_told_from_one_with_a_strange_one(
    authority: Authority, tmp_path: Path
) -> None:
    server = serving(authority.issue("server"), client_ca=authority.file)
    other = Authority(tmp_path / "other", "other").issue("stranger")

    none = (await shake_hands(server, trusting(authority))).server
    strange = (await shake_hands(server, trusting(authority, other))).server

    assert isinstance(none, UntrustedCertificate)
    assert (none.why, none.certificate) == ("missing", None)
    assert isinstance(strange, UntrustedCertificate)
    assert strange.why == "untrusted"
    assert strange.certificate is not None
    assert strange.certificate.subject == "CN=stranger"
    assert str(authority.file) in str(strange)


async def test_an_expired_certificate_of_a_client_is_named(authority: Authority) -> None:
    issued = authority.issue("orders-7", begins=now() - 20 * DAY, life=10 * DAY)
    server = serving(authority.issue("server"), client_ca=authority.file)

    error = (await shake_hands(server, trusting(authority, issued))).server

    assert isinstance(error, UntrustedCertificate)
    assert error.why == "expired"
    assert f"CN=orders-7, serial {issued.hexadecimal}, valid until 20" in str(error)


async def test_a_certificate_whose_authority_has_no_list_is_not_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "other")
    client = trusting(authority, crl=other.revoke())

    error = (await shake_hands(serving(authority.issue("server")), client)).client

    assert isinstance(error, UntrustedCertificate)
    assert "unable to get certificate CRL" in str(error)
    assert str(other.revoked) in str(error)


async def test_a_list_that_is_out_of_date_revokes_everything(authority: Authority) -> None:
    client = trusting(authority, crl=authority.revoke(life=DAY / 2))

    error = (await shake_hands(serving(authority.issue("server")), client)).client

    assert isinstance(error, UntrustedCertificate)
    assert f"CRL has expired (crl: {authority.revoked})" in str(error)


def test_a_file_of_revocation_lists_with_a_certificate_is_refused(authority: Authority) -> None:
    """OpenSSL would trust it as an authority."""
    listed = authority.revoke()
    listed.write_bytes(listed.read_bytes() + authority.file.read_bytes())

    with pytest.raises(TlsFileError, match=r"CRL.* expected, found CERTIFICATE") as caught:
        trusting(authority, crl=listed)
    assert caught.value.field == "crl"


def test_a_file_of_revocation_lists_that_can_be_opened_but_not_read_is_named(
    authority: Authority,
) -> None:
    with pytest.raises(TlsFileError, match=r"/proc/self/mem: Input/output error") as caught:
        trusting(authority, crl=Path("/proc/self/mem"))
    assert caught.value.field == "crl"


def test_a_file_without_a_revocation_list_is_refused(authority: Authority) -> None:
    authority.revoked.write_text("nothing")

    with pytest.raises(TlsFileError, match=r"crl\.pem: no revocation lists"):
        trusting(authority, crl=authority.revoked)


@pytest.fixture
async def strict(
    authority: Authority, nursery: trio.Nursery, tcp_server: Callable[..., Awaitable[int]]
) -> ServerAddress:
    """A server that wants certificates of clients, and a client with one that it doesn't trust."""
    context = serving(authority.issue("server"), client_ca=authority.file)

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(UntrustedCertificate):
            await accept_tls(stream, context, 60.0)
        await stream.aclose()

    stranger = Authority(authority.folder / "other", "other").issue("stranger")
    tls = trusting(authority, stranger)
    return ServerAddress(host="localhost", port=await tcp_server(serve), tls=tls)


def names_the_stranger(error: Untrusted, place: ServerAddress) -> bool:
    assert isinstance(place.tls, FileContext)
    assert isinstance(place.tls.made_of, ClientTlsOptions)
    text = "the server refuses the client certificate (CN=stranger, serial "
    return text in str(error) and f"file {place.tls.made_of.certificate})" in str(error)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_refused_client_certificate_is_no_outage_over_amqp(
    strict: ServerAddress, nursery: trio.Nursery, version: ssl.TLSVersion
) -> None:
    assert strict.tls is not None
    strict.tls.maximum_version = version

    async def open_client() -> None:
        client = AmqpClient(
            await dial(strict),
            name="peer",
            hostname="localhost",
            credentials=Credentials(mechanism="ANONYMOUS"),
            options=EngineOptions(),
            tls=strict.tls,
        )
        nursery.start_soon(client.run)
        await client.wait_opened()

    with pytest.raises(Untrusted) as caught:
        await open_client()

    assert names_the_stranger(caught.value, strict)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_refused_client_certificate_is_no_outage_over_amqp_0_9_1(
    strict: ServerAddress, nursery: trio.Nursery, version: ssl.TLSVersion
) -> None:
    assert strict.tls is not None
    strict.tls.maximum_version = version
    login = Login(user="guest", password="guest", vhost="/", heartbeat=5)
    target = BrokerLogin(place=strict, login=login, connect_timeout=30.0)

    with pytest.raises(Untrusted) as caught:
        await connect(target, nursery)

    assert names_the_stranger(caught.value, strict)


async def test_messages_are_watched_during_the_handshake_only(authority: Authority) -> None:
    """Each record would take 4 µs longer."""
    ends = await shake_hands(serving(authority.issue("server")), trusting(authority))

    for end in (ends.client, ends.server):
        assert isinstance(end, trio.SSLStream)
        assert end.context._msg_callback is None
