"""Contexts that can't be weakened by accident, and errors that name the file."""

import codecs
import shutil
import ssl
from contextlib import suppress

import pytest

from gateway.net.tls import (
    ClientTlsOptions,
    PinnedTlsOptions,
    TlsFileError,
    TlsOptions,
    client_context,
    server_context,
)
from tests.harness.secret_files import write_secret


@pytest.fixture
def server_options(certificates):
    return TlsOptions(certificate=certificates / "server.pem", key=certificates / "server.key")


def test_nothing_below_tls_1_2_is_spoken(server_options):
    assert server_context(server_options).minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_checks_the_certificate_and_the_name():
    context = client_context()

    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_a_server_with_a_client_authority_demands_a_certificate(certificates):
    options = TlsOptions(
        certificate=certificates / "server.pem",
        key=certificates / "server.key",
        client_ca=certificates / "ca.pem",
    )

    assert server_context(options).verify_mode == ssl.CERT_REQUIRED


def test_session_keys_are_never_written_to_a_file(monkeypatch, tmp_path, server_options):
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))

    assert server_context(server_options).keylog_filename is None
    assert client_context().keylog_filename is None


@pytest.mark.parametrize("missing", ["certificate", "key", "client_ca"])
def test_a_missing_file_is_named(missing, certificates, tmp_path):
    paths = {
        "certificate": certificates / "server.pem",
        "key": certificates / "server.key",
        "client_ca": certificates / "ca.pem",
        missing: tmp_path / "nowhere.pem",
    }

    with pytest.raises(TlsFileError, match=r"nowhere\.pem: No such file"):
        server_context(TlsOptions(**paths))


def test_a_file_without_a_certificate_is_named(certificates, tmp_path):
    (tmp_path / "text.pem").write_text("hello")

    with pytest.raises(TlsFileError, match=r"text\.pem"):
        client_context(ClientTlsOptions(ca=tmp_path / "text.pem"))
    with pytest.raises(TlsFileError, match=r"text\.pem"):
        client_context(ClientTlsOptions(certificate=tmp_path / "text.pem"))


@pytest.mark.parametrize("marked", ["certificate", "key", "client_ca"])
def test_a_byte_order_mark_is_named_where_a_file_begins_with_one(certificates, tmp_path, marked):
    """OpenSSL would only say that nothing is in the file."""
    files = {
        "certificate": certificates / "server.pem",
        "key": certificates / "server.key",
        "client_ca": certificates / "ca.pem",
    }
    with_mark = tmp_path / "marked.pem"
    with_mark.write_bytes(codecs.BOM_UTF8 + files[marked].read_bytes())
    with_mark.chmod(0o600)

    with pytest.raises(TlsFileError, match=r"marked\.pem: begins with a byte order mark") as error:
        server_context(TlsOptions(**{**files, marked: with_mark}))
    assert error.value.field == marked


def test_a_key_of_another_certificate_is_an_error(certificates):
    options = TlsOptions(certificate=certificates / "server.pem", key=certificates / "client.key")

    with pytest.raises(TlsFileError, match=r"client\.key"):
        server_context(options)


def test_an_encrypted_key_is_an_error_and_no_question(certificates, tmp_path):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((certificates / "server.key").read_bytes(), None)
    write_secret(
        tmp_path / "locked.key",
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ),
    )
    options = TlsOptions(certificate=certificates / "server.pem", key=tmp_path / "locked.key")

    with pytest.raises(TlsFileError, match="encrypted"):
        server_context(options)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o440])
def test_a_key_may_be_its_owners_and_its_groups(certificates, tmp_path, mode):
    shutil.copy(certificates / "server.key", tmp_path)
    (tmp_path / "server.key").chmod(mode)

    server_context(TlsOptions(certificate=certificates / "server.pem", key=tmp_path / "server.key"))


def test_a_key_that_every_user_can_read_is_refused_with_its_mode(certificates, tmp_path):
    shutil.copy(certificates / "server.key", tmp_path)
    (tmp_path / "server.key").chmod(0o644)
    both = tmp_path / "client.pem"
    both.write_bytes(
        b"".join((certificates / f"client.{end}").read_bytes() for end in ("pem", "key"))
    )
    pair = {"certificate": certificates / "server.pem", "key": tmp_path / "server.key"}

    with pytest.raises(TlsFileError, match=r"server\.key: every user .*0644") as of_server:
        server_context(TlsOptions(**pair))
    with pytest.raises(TlsFileError, match=r"client\.pem: every user") as of_client:
        client_context(ClientTlsOptions(certificate=both))

    assert (of_server.value.field, of_client.value.field) == ("key", "certificate")


def test_keys_can_be_read_by_their_owner_only(certificates):
    modes = {path.name: path.stat().st_mode & 0o777 for path in certificates.glob("*.key")}

    assert modes == {"server.key": 0o600, "client.key": 0o600}


def test_a_half_written_certificate_breaks_a_start_and_nothing_that_runs(certificates, tmp_path):
    for file in certificates.iterdir():
        shutil.copy(file, tmp_path)
    options = TlsOptions(certificate=tmp_path / "server.pem", key=tmp_path / "server.key")
    before = server_context(options)
    (tmp_path / "server.pem").write_text("half")
    client = client_context(ClientTlsOptions(ca=certificates / "ca.pem"))

    with pytest.raises(TlsFileError, match=r"server\.pem"):
        server_context(options)
    assert _shaken(before, client)


def _shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """True if both ends accept each other's certificates, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        ends = [end for end in ends if not _is_done(end)]
    return not ends


def _is_done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Both sides in memory, over a name that no certificate has."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="10.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ends[0].cipher() is not None


def test_a_pinned_certificate_is_trusted_whatever_its_name_and_no_other_one_of_its_authority(
    certificates, server_options
):
    server = server_context(server_options)
    trusting = client_context(PinnedTlsOptions(pinned=certificates / "server.pem"))
    strange = client_context(PinnedTlsOptions(pinned=certificates / "client.pem"))

    shake_hands(trusting, server)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(strange, server)
