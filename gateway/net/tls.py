"""TLS contexts from files, with the settings that Pairgate requires, and a server's handshake."""

import ssl
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import attrs
import trio

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_GOODBYE_SECONDS: Final = 2.0
_GOODBYE_BYTES: Final = 1024 * 1024
_RECEIVE_SIZE: Final = 64 * 1024


class TlsFileError(ValueError):
    """A certificate or key file is missing or unusable; the text names the file."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field  # of the options: certificate, key, ca, client_ca


@attrs.frozen(kw_only=True)
class TlsOptions:
    """The certificate of an endpoint, and the client certificates that it requires."""

    certificate: Path
    key: Path
    client_ca: Path | None = None  # if given, clients need a certificate by this authority
    # Whether plain text is refused. None: yes, except on a "service-bus" endpoint on loopback.
    required: bool | None = None


@attrs.frozen(kw_only=True)
class ClientTlsOptions:
    """The trusted authorities, and the client's own certificate."""

    ca: Path | None = None  # None: the system's authorities
    certificate: Path | None = None
    key: Path | None = None  # None: the key is in the certificate's file


@attrs.frozen(kw_only=True)
class PinnedTlsOptions(ClientTlsOptions):
    """
    Trusts only the first certificate of the file, whatever its name: for connections to a server
    that uses this file.
    """

    pinned: Path


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """
    A server's context: TLS 1.2 or later; with `client_ca` every client must show a certificate.

    Raises:
        TlsFileError: a file can't be read, or has invalid content.
    """
    # Not ssl.create_default_context, which writes the session keys to $SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, options.certificate, options.key)
    if options.client_ca is not None:
        _load_authorities(context, options.client_ca, "client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: ClientTlsOptions | None = None) -> ssl.SSLContext:
    """
    A client's context: TLS 1.2 or later. The server's certificate is always checked, and its name
    unless the certificate is pinned.

    Raises:
        TlsFileError: a file can't be read, or has invalid content.
    """
    options = options or ClientTlsOptions()
    if isinstance(options, PinnedTlsOptions):
        return _pinned_context(options)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, options.ca, "ca")
    if options.certificate is not None:
        _load_certificate(context, options.certificate, options.key)
    return context


def expiry_of(file: Path, *, authorities: bool) -> datetime | None:
    """
    The date on which the first certificate of a PEM file ends, as the others don't work without it;
    of `authorities` the last one. None: there is no certificate.
    """
    # Imported here: most processes have no certificates.
    from cryptography.x509 import load_pem_x509_certificates

    try:
        ends = [each.not_valid_after_utc for each in load_pem_x509_certificates(file.read_bytes())]
    except (OSError, ValueError):
        return None
    return max(ends) if authorities else min(ends)


def _pinned_context(options: PinnedTlsOptions) -> ssl.SSLContext:
    certificate = options.pinned
    _must_be_readable(certificate, "certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _, begin, rest = certificate.read_text(errors="replace").partition(_BEGIN)
    try:
        context.load_verify_locations(cadata=begin + rest.partition(_END)[0] + _END)
    except (ssl.SSLError, ValueError) as error:
        text = f"{certificate}: no certificate in PEM form: {error}"
        raise TlsFileError(text, "certificate") from error
    if options.certificate is not None:
        _load_certificate(context, options.certificate, options.key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    _must_be_readable(certificate, "certificate")
    _must_be_readable(key, "key")
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        files = f"{certificate}" if key is None else f"{certificate} and {key}"
        text = f"{files}: no certificate with its key in PEM form: {error}"
        raise TlsFileError(text, _field_at_fault(certificate, key)) from error


def _field_at_fault(certificate: Path, key: Path | None) -> str:
    """
    "key" if the certificate's file has certificates, since OpenSSL doesn't tell which file is
    wrong.
    """
    if key is None:
        return "certificate"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError:
        return "certificate"
    return "key"


def _load_authorities(context: ssl.SSLContext, path: Path, field: str) -> None:
    _must_be_readable(path, field)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsFileError(f"{path}: no certificates in PEM form: {error}", field) from error


def _must_be_readable(path: Path | None, field: str) -> None:
    """Check the file first, because OpenSSL's errors don't name it."""
    if path is None:
        return
    try:
        path.open("rb").close()
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}", field) from error


def _no_password() -> str:
    """Without this, OpenSSL would ask for a password at the terminal, and the start would hang."""
    raise ValueError("the key is encrypted; give one without a pass phrase")


@attrs.define(eq=False)
class _Context:
    """A context that lets its user see the bytes that a connection is about to send."""

    _context: ssl.SSLContext
    outgoing: ssl.MemoryBIO = attrs.field(factory=ssl.MemoryBIO, init=False)

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **options: Any
    ) -> ssl.SSLObject:
        self.outgoing = outgoing
        return self._context.wrap_bio(incoming, outgoing, **options)


async def accept_tls(
    stream: trio.abc.Stream, context: ssl.SSLContext, seconds: float
) -> "trio.SSLStream[trio.abc.Stream]":
    """
    Return the connection inside TLS after its handshake, which may last so many seconds.

    A client whose handshake fails, as without the certificate that is required, gets TLS's alert,
    which says why (RFC 8446, 6.2); `trio.SSLStream` keeps it to itself. On an error the caller
    closes `stream`.

    Raises:
        trio.TooSlowError: the handshake took too long.
        trio.BrokenResourceError: it failed, or the connection was lost.
    """
    watched = _Context(context)
    secured = trio.SSLStream(
        stream, cast(ssl.SSLContext, watched), server_side=True, https_compatible=True
    )
    failure: trio.BrokenResourceError | None = None
    with trio.fail_after(seconds):
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            failure = error
    if failure is None:
        return secured
    if alert := watched.outgoing.read():
        await say_goodbye(stream, alert)
    raise failure


async def say_goodbye(stream: trio.abc.Stream, last: bytes) -> None:
    """
    Send these last bytes, and give the client up to two seconds to read them: closing while the
    client still sends would reset the connection before. A connection that breaks is no error.
    """
    with trio.move_on_after(_GOODBYE_SECONDS), suppress(trio.BrokenResourceError):
        await stream.send_all(last)
        if isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
        left = _GOODBYE_BYTES
        while left > 0 and (data := await stream.receive_some(_RECEIVE_SIZE)):
            left -= len(data)
