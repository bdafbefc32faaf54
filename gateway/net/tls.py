"""TLS contexts from files, with the settings that Pairgate requires."""

import codecs
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import attrs

from gateway.net.certificates import foreign_block
from gateway.net.secret_files import check_secret_file

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_CERTIFICATE: Final = 11  # the type of the handshake's message (RFC 8446, 4)


class TlsFileError(ValueError):
    """A certificate or key file is missing or unusable; the text names the file."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field  # of the options: certificate, key, ca, client_ca, crl


@attrs.frozen(kw_only=True)
class TlsOptions:
    """The certificate of an endpoint, and the client certificates that it requires."""

    certificate: Path
    key: Path
    client_ca: Path | None = None  # if given, clients need a certificate by this authority
    crl: Path | None = None  # revocation lists; client certificates are looked up in them
    # True: plain text is refused. None: refused, except on a "service-bus" endpoint on loopback.
    required: bool | None = None


@attrs.frozen(kw_only=True)
class ClientTlsOptions:
    """The trusted authorities, and the client's own certificate."""

    ca: Path | None = None  # None: the system's authorities
    crl: Path | None = None  # revocation lists; the server's certificate is looked up in them
    certificate: Path | None = None
    key: Path | None = None  # None: the key is in the certificate's file


@attrs.frozen(kw_only=True)
class PinnedTlsOptions(ClientTlsOptions):
    """
    Trusts only the first certificate of the file, whatever its name: for connections to a server
    that uses this file.
    """

    pinned: Path


AnyTlsOptions = TlsOptions | ClientTlsOptions


def files_of(options: AnyTlsOptions) -> dict[str, Path]:
    """The files that the options name, by the names of their settings."""
    fields = attrs.fields(type(options))
    values = {field.name: getattr(options, field.name) for field in fields}
    return {name: value for name, value in values.items() if isinstance(value, Path)}


class WatchedObject(ssl.SSLObject):
    """An end of a TLS connection, which knows the certificate that its peer has shown."""

    shown: bytes = b""  # the peer's message Certificate; empty: it has sent none
    is_1_3: bool = False  # whether that is one of TLS 1.3


class FileContext(ssl.SSLContext):
    """
    A context made from files.

    A handshake uses the files as they are when it begins; earlier connections keep the certificate
    that they began with. If the files can't be used, the previous ones stay in use, and `problem`
    says why.
    """

    made_of: AnyTlsOptions
    problem: TlsFileError | None
    loads: int  # the number of times that the files were read successfully
    _fill: Callable[[ssl.SSLContext, Any], None]
    _current: ssl.SSLContext | None  # None: this context
    _stamps: Sequence[object]

    @classmethod
    def of(
        cls,
        protocol: int,
        options: AnyTlsOptions,
        fill: Callable[[ssl.SSLContext, Any], None],
    ) -> Self:
        """
        A context that `fill` has filled by the options, and will fill again.

        Raises:
            TlsFileError: a file can't be read, or has invalid content.
        """
        context = cls(protocol)
        context.made_of, context.problem, context.loads = options, None, 1
        context._fill, context._stamps = fill, _stamps_of(options)
        _harden(context)
        context._current = None
        fill(context, options)
        return context

    def refresh(self) -> ssl.SSLContext:
        """Read the files again if they have changed; return the context for a handshake."""
        stamps = _stamps_of(self.made_of)
        if stamps != self._stamps:
            self._stamps = stamps
            fresh = ssl.SSLContext(self.protocol)
            _harden(fresh)
            try:
                self._fill(fresh, self.made_of)
            except TlsFileError as error:
                self.problem = error
            else:
                self._current, self.problem = fresh, None
                self.loads += 1
        return self._current or self

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """As of any context, with the files as they are now."""
        current = self.refresh()
        if current is self:
            return super().wrap_bio(*args, **options)
        return current.wrap_bio(*args, **options)


def server_context(options: TlsOptions) -> FileContext:
    """
    A server's context: TLS 1.2 or later; with `client_ca` every client must show a certificate.

    Raises:
        TlsFileError: a file can't be read, or has invalid content.
    """
    return FileContext.of(ssl.PROTOCOL_TLS_SERVER, options, _fill_server)


def client_context(options: ClientTlsOptions | None = None) -> FileContext:
    """
    A client's context: TLS 1.2 or later. The server's certificate is always checked, and its name,
    too, unless the certificate is pinned.

    Raises:
        TlsFileError: a file can't be read, or has invalid content.
    """
    options = options or ClientTlsOptions()
    fill = _fill_pinned if isinstance(options, PinnedTlsOptions) else _fill_client
    return FileContext.of(ssl.PROTOCOL_TLS_CLIENT, options, fill)


def _harden(context: ssl.SSLContext) -> None:
    # Not ssl.create_default_context, which writes the session keys to $SSLKEYLOGFILE.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # OpenSSL forgets a certificate that it doesn't trust, and its error doesn't name it. Python
    # offers the messages of a handshake under this private name only (`ssl`, since 3.8).
    context.sslobject_class = WatchedObject
    context._msg_callback = _record_certificate  # type: ignore[attr-defined]


def _record_certificate(
    connection: ssl.SSLObject, direction: str, version: int, content: int, kind: int, data: bytes
) -> None:
    if kind == _CERTIFICATE and direction == "read" and isinstance(connection, WatchedObject):
        connection.shown, connection.is_1_3 = bytes(data), version == ssl.TLSVersion.TLSv1_3


def _fill_server(context: ssl.SSLContext, options: TlsOptions) -> None:
    _load_certificate(context, options.certificate, options.key)
    if options.client_ca is not None:
        _load_authorities(context, options.client_ca, "client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    _load_revoked(context, options.crl)


def _fill_client(context: ssl.SSLContext, options: ClientTlsOptions) -> None:
    if options.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, options.ca, "ca")
    _load_revoked(context, options.crl)
    if options.certificate is not None:
        _load_certificate(context, options.certificate, options.key)


def _fill_pinned(context: ssl.SSLContext, options: PinnedTlsOptions) -> None:
    certificate = options.pinned
    _must_be_readable(certificate, "certificate")
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


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    _must_be_readable(certificate, "certificate")
    _must_be_readable(key, "key")
    try:
        check_secret_file(key or certificate)
    except ValueError as error:
        raise TlsFileError(str(error), "certificate" if key is None else "key") from error
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        files = f"{certificate}" if key is None else f"{certificate} and {key}"
        text = f"{files}: no certificate with its key in PEM form: {error}"
        raise TlsFileError(text, _field_at_fault(certificate, key)) from error


def _field_at_fault(certificate: Path, key: Path | None) -> str:
    """
    "key" if the certificate's file has certificates, since OpenSSL doesn't report which file is
    wrong.
    """
    if key is None:
        return "certificate"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except OSError:
        return "certificate"
    return "key"


def _load_authorities(context: ssl.SSLContext, path: Path, field: str) -> None:
    _must_be_readable(path, field)
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise TlsFileError(f"{path}: no certificates in PEM form: {error}", field) from error


def _load_revoked(context: ssl.SSLContext, path: Path | None) -> None:
    """
    Load the revocation lists: from then on a peer's certificate is looked up in them, and refused
    if its issuer has no list there.
    """
    if path is None:
        return
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}", "crl") from error
    # OpenSSL would trust a certificate in this file as an authority.
    if (other := foreign_block(data)) is not None:
        text = f"{path}: revocation lists (X509 CRL) expected, found {other}"
        raise TlsFileError(text, "crl")
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise TlsFileError(f"{path}: no revocation lists in PEM form: {error}", "crl") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _must_be_readable(path: Path | None, field: str) -> None:
    """Check the file first, because OpenSSL's errors name neither it nor its first bytes."""
    if path is None:
        return
    try:
        with path.open("rb") as file:
            begin = file.read(len(codecs.BOM_UTF8))
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}", field) from error
    if begin == codecs.BOM_UTF8:
        text = f"{path}: begins with a byte order mark, after which nothing is PEM: remove it"
        raise TlsFileError(text, field)


def _no_password() -> str:
    """Without this, OpenSSL would ask for a password at the terminal, and the start would hang."""
    raise ValueError("the key is encrypted; give one without a pass phrase")


def _stamps_of(options: AnyTlsOptions) -> Sequence[object]:
    """
    A value that changes with the files, also if a symbolic link on the way to one is exchanged, as
    Kubernetes does it.
    """
    return [_stamp(path) for path in files_of(options).values()]


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
