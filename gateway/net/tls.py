"""TLS contexts from files, with the defaults that this gateway insists on."""

import ssl
from pathlib import Path

import attrs


class TlsFileError(ValueError):
    """A certificate or key file is missing or unusable; the text names the file."""


@attrs.frozen(kw_only=True)
class TlsOptions:
    """What an endpoint shows to its clients, and which client certificates it demands."""

    certificate: Path
    key: Path
    client_ca: Path | None = None  # given: a client without a certificate of it is refused


@attrs.frozen(kw_only=True)
class ClientTlsOptions:
    """Whom we trust, and who we are."""

    ca: Path | None = None  # None: the system's authorities
    certificate: Path | None = None
    key: Path | None = None  # None: the key is in the certificate's file


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """
    TLS 1.2 or later; with `client_ca` every client must show a certificate of it.

    Raises:
        TlsFileError: a file can't be read or doesn't hold what it should.
    """
    # Not ssl.create_default_context: that one writes the session keys to $SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, options.certificate, options.key)
    if options.client_ca is not None:
        _load_authorities(context, options.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: ClientTlsOptions | None = None) -> ssl.SSLContext:
    """
    TLS 1.2 or later; the server's certificate and name are always checked.

    Raises:
        TlsFileError: a file can't be read or doesn't hold what it should.
    """
    options = options or ClientTlsOptions()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, options.ca)
    if options.certificate is not None:
        _load_certificate(context, options.certificate, options.key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    for path in (certificate, key):
        _must_be_readable(path)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        files = f"{certificate}" if key is None else f"{certificate} and {key}"
        raise TlsFileError(f"{files}: no certificate with its key in PEM form: {error}") from error


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    _must_be_readable(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsFileError(f"{path}: no certificates in PEM form: {error}") from error


def _must_be_readable(path: Path | None) -> None:
    """OpenSSL's own errors don't name the file."""
    if path is None:
        return
    try:
        path.open("rb").close()
    except OSError as error:
        raise TlsFileError(f"{path}: {error.strerror}") from error


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal, and the gateway would hang at start."""
    raise ValueError("the key is encrypted; give one without a pass phrase")
