"""Certificates and revocation lists in files, and their names for people."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITIES: Final = frozenset({"ca", "client_ca"})  # settings that name authorities
REVOKED: Final = "crl"  # the setting that names revocation lists
LONGEST_NAME: Final = 120  # characters: a name that is longer fills a line of the log
_MOST_NAMES: Final = 4  # names of a certificate: enough to recognize it
_LABEL: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_LIST: Final = b"X509 CRL"


@attrs.frozen(kw_only=True)
class CertificateName:
    """The parts of a certificate by which people find it; of a revocation list, its issuer."""

    subject: str
    serial: str  # hexadecimal; of a revocation list its number, or empty
    starts: datetime
    expires: datetime
    hosts: tuple[str, ...] = ()  # the names that the certificate is for

    def __str__(self) -> str:
        return f"{self.short}, valid until {self.expires:%Y-%m-%dT%H:%M:%SZ}"

    @property
    def short(self) -> str:
        """Subject and serial."""
        return f"{self.subject}, serial {self.serial}" if self.serial else self.subject


def name_in(file: Path, setting: str) -> CertificateName | None:
    """
    The certificate in the file whose expiry matters: the first to expire of a chain, the last of
    authorities, the first to be out of date of revocation lists. None: the file has no
    certificate, or can't be read.
    """
    try:
        names = list(_names(file.read_bytes(), setting))
    except _unreadable():
        return None
    if not names:
        return None
    which = max if setting in AUTHORITIES else min
    return which(names, key=lambda each: each.expires)


def first_in(file: Path) -> CertificateName | None:
    """
    The first certificate of the file, which a handshake shows; None: the file has no certificate.
    """
    try:
        return next(_names(file.read_bytes(), "certificate"), None)
    except _unreadable():
        return None


def name_of(der: bytes) -> CertificateName | None:
    """The name of a certificate that a peer has shown; None: it isn't one."""
    # Imported here: most processes have no certificates.
    from cryptography import x509

    try:
        return _name(x509.load_der_x509_certificate(der))
    except _unreadable():
        return None


def _unreadable() -> tuple[type[Exception], ...]:
    """
    The errors of a file, certificate or extension that is missing or can't be read. A peer may show
    any bytes, and OpenSSL reads some certificates that `cryptography` doesn't.
    """
    from cryptography import x509

    return (
        OSError,
        TypeError,  # of a name whose value has an unusual type
        ValueError,
        x509.DuplicateExtension,
        x509.ExtensionNotFound,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    )


@attrs.frozen(kw_only=True)
class ClientCertificate:
    """The names of a client's certificate, as access policies name them."""

    subject: str
    names: frozenset[str]
    expires: datetime


def client_certificate(der: bytes) -> ClientCertificate | None:
    """Parse a certificate that a handshake has verified; None: it can't be read."""
    from cryptography import x509

    try:
        return _of_client(x509.load_der_x509_certificate(der))
    except _unreadable():
        return None


def _of_client(certificate: "x509.Certificate") -> ClientCertificate:
    from cryptography import x509

    subject = certificate.subject.rfc4514_string()
    names = {subject} if subject else set[str]()
    for attribute in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME):
        # Written as a name of its own, so that a comma in the value is escaped.
        names.add(x509.Name([attribute]).rfc4514_string())
    return ClientCertificate(
        subject=_bounded(subject),
        names=frozenset({*names, *_alternatives(certificate)}),
        expires=certificate.not_valid_after_utc,
    )


def _alternatives(certificate: "x509.Certificate") -> Iterator[str]:
    from cryptography import x509

    names = _alternative_names(certificate)
    yield from (f"DNS:{name.lower()}" for name in names.get_values_for_type(x509.DNSName))
    yield from (f"URI:{name}" for name in names.get_values_for_type(x509.UniformResourceIdentifier))
    yield from (f"EMAIL:{name}" for name in names.get_values_for_type(x509.RFC822Name))
    yield from (f"IP:{name}" for name in names.get_values_for_type(x509.IPAddress))


def _alternative_names(certificate: "x509.Certificate") -> "x509.SubjectAlternativeName":
    """The alternative names; empty if the certificate has none, or if they can't be read."""
    from cryptography import x509

    kind = x509.SubjectAlternativeName
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except _unreadable():
        return kind([])


def foreign_block(data: bytes) -> str | None:
    """The label of the first PEM block that isn't a revocation list; None: all blocks are."""
    found = (label for label in _LABEL.findall(data) if label != _LIST)
    other: bytes | None = next(found, None)
    return None if other is None else other.decode("ascii")


def _names(data: bytes, setting: str) -> Iterator[CertificateName]:
    from cryptography import x509

    if setting != REVOKED:
        yield from map(_name, x509.load_pem_x509_certificates(data))
        return
    for block in re.findall(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", data, re.DOTALL):
        revoked = x509.load_pem_x509_crl(block)
        starts = revoked.last_update_utc
        yield CertificateName(
            subject=_bounded(revoked.issuer.rfc4514_string()),
            serial=_number(revoked),
            starts=starts,
            expires=revoked.next_update_utc or datetime.max.replace(tzinfo=starts.tzinfo),
        )


def _number(revoked: "x509.CertificateRevocationList") -> str:
    from cryptography import x509

    try:
        value = revoked.extensions.get_extension_for_class(x509.CRLNumber).value
    except (x509.ExtensionNotFound, ValueError):
        return ""
    return f"{value.crl_number:x}"


def _name(certificate: "x509.Certificate") -> CertificateName:
    hosts = tuple(_hosts(certificate))
    return CertificateName(
        subject=_bounded(certificate.subject.rfc4514_string() or f"names {_listed(hosts)}"),
        serial=f"{certificate.serial_number:x}",
        starts=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
        hosts=hosts,
    )


def _hosts(certificate: "x509.Certificate") -> Iterator[str]:
    from cryptography import x509

    names = _alternative_names(certificate)
    yield from names.get_values_for_type(x509.DNSName)
    yield from map(str, names.get_values_for_type(x509.IPAddress))


def listed_hosts(certificate: CertificateName) -> str:
    """The first names that the certificate is for."""
    return _listed(certificate.hosts)


def _listed(hosts: Sequence[str]) -> str:
    more = ", ..." if len(hosts) > _MOST_NAMES else ""
    return _bounded(", ".join(hosts[:_MOST_NAMES]) + more) or "none"


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}..."
