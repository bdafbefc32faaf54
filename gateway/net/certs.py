"""A throw-away authority and certificates for localhost, for `pairgate certs` and for tests."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FILES: Final = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
_LIFETIME = timedelta(days=365)
_CLOCK_SKEW = timedelta(minutes=5)


def write_certificates(
    folder: Path, *, now: datetime, names: Sequence[str] = ("localhost", "127.0.0.1", "::1")
) -> None:
    """
    Write `FILES` to the folder, valid for a year.

    The authority's key is thrown away, so no more certificates can be made with it. The server's
    certificate is for `names`; the client's is named `pairgate-client`.

    Raises:
        OSError: the folder can't be created or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = _Authority.new(now)
    (folder / "ca.pem").write_bytes(pem_of(authority.certificate))
    for name, common_name, subject_names, usage in (
        ("server", names[0], names, ExtendedKeyUsageOID.SERVER_AUTH),
        ("client", "pairgate-client", ["pairgate-client"], ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        builder = authority.issue(key.public_key(), common_name, subject_names, usage)
        (folder / f"{name}.pem").write_bytes(pem_of(builder))
        _write_secret(folder / f"{name}.key", key)


@attrs.frozen(kw_only=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    now: datetime

    @classmethod
    def new(cls, now: datetime) -> "_Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        name = common_name_of("Pairgate throw-away authority")
        usage = x509.KeyUsage(
            key_cert_sign=True,
            crl_sign=True,
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(name, name, key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        return cls(key=key, certificate=certificate, now=now)

    def issue(
        self,
        public_key: ec.EllipticCurvePublicKey,
        common_name: str,
        names: Sequence[str],
        usage: x509.ObjectIdentifier,
    ) -> x509.Certificate:
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            _builder(common_name_of(common_name), self.certificate.subject, public_key, self.now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([alternative_name(n) for n in names]), False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self.key, hashes.SHA256())
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
    )


def common_name_of(common_name: str) -> x509.Name:
    """A subject with this common name alone."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def alternative_name(name: str) -> x509.GeneralName:
    """An IP address, or the name of a host."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem_of(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # Created with mode 0600: an existing file might be readable by others.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
