"""A certificate authority for tests, which issues and revokes as it is told."""

import datetime as dates
from collections.abc import Sequence
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.net.certs import alternative_name, common_name_of, pem_of

DAY = dates.timedelta(days=1)
# Of a kind (x400Address) that OpenSSL reads, and `cryptography` doesn't.
UNREADABLE_NAMES = x509.UnrecognizedExtension(
    x509.ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3002a300")
)


def now() -> dates.datetime:
    return dates.datetime.now(dates.UTC)


@attrs.frozen
class Issued:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path
    serial: int

    @property
    def hexadecimal(self) -> str:
        return f"{self.serial:x}"


@attrs.define(eq=False)
class Authority:
    """`file` is its certificate. Each authority has another key."""

    folder: Path
    name: str = "tests"
    key: ec.EllipticCurvePrivateKey = attrs.field(
        factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    certificate: x509.Certificate = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        basic = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self.name, self.key.public_key(), 3650 * DAY)
        self.certificate = builder.add_extension(basic, critical=True).sign(
            self.key, hashes.SHA256()
        )
        replace(self.file, pem_of(self.certificate))

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}-ca.pem"

    @property
    def revoked(self) -> Path:
        return self.folder / f"{self.name}-crl.pem"

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        life: dates.timedelta = 365 * DAY,
        begins: dates.datetime | None = None,
        file: str = "",
        alternatives: x509.ExtensionType | None = None,
    ) -> Issued:
        """A certificate for that name, in `FILE.pem` and `FILE.key`."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = alternatives or x509.SubjectAlternativeName(list(map(alternative_name, hosts)))
        builder = self._builder(name, key.public_key(), life, begins)
        certificate = builder.add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        path = self.folder / (file or name)
        made = Issued(path.with_suffix(".pem"), path.with_suffix(".key"), certificate.serial_number)
        replace(made.certificate, pem_of(certificate))
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        replace(made.key, private)
        return made

    def revoke(self, *issued: Issued, life: dates.timedelta = 30 * DAY) -> Path:
        """Write the list of these to the file `revoked`."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now() - DAY)
            .next_update(now() - DAY + life)
        )
        for each in issued:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.serial)
                .revocation_date(now() - DAY)
                .build()
            )
        listed = builder.sign(self.key, hashes.SHA256())
        replace(self.revoked, listed.public_bytes(serialization.Encoding.PEM))
        return self.revoked

    def _builder(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        life: dates.timedelta,
        begins: dates.datetime | None = None,
    ) -> x509.CertificateBuilder:
        starts = begins or now() - DAY
        return (
            x509.CertificateBuilder()
            .subject_name(common_name_of(name))
            .issuer_name(common_name_of(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(starts)
            .not_valid_after(starts + life)
        )


def replace(path: Path, data: bytes) -> None:
    """
    Write the file so that it differs from the previous one by more than its date: two files that
    are written one after the other may have the same.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(data)
    fresh.chmod(0o600)  # keys are refused that others can read
    fresh.replace(path)
