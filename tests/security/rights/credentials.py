"""The credentials of the rights table: their rights, and the way in which a client shows them."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.domain import access
from gateway.domain.access import AccessPolicy, TokenRule
from gateway.net.visits import Visits, record_certificate
from gateway.wire.servicebus.sas import sign_sas
from tests.frontends.bearer import World as Provider
from tests.frontends.rest_client import wall_clock
from tests.harness.openid import SigningKey
from tests.security.rights.model import Grant, Permit, Right

OWN: Final = frozenset({"orders", "news", "sessions", "new"})
_KEY: Final = "the key of the policy "


def _policy(name: str, right: Right, entities: frozenset[str] | None) -> AccessPolicy:
    return AccessPolicy(
        name=name,
        keys=(_KEY + name,),
        token=TokenRule(issuer="tests", claims={"roles": (name,)}),
        certificates=(f"CN={name}",),
        rights=frozenset({access.Right(right.value)}),
        entities=("*",) if entities is None else tuple(sorted(entities)),
    )


# The paths that signatures of each policy are restricted to.
_SCOPES: Final = {
    "all-Send": ("orders", "invoices"),
    "all-Listen": ("ORDERS", "orders/$deadletterqueue"),
    "all-Manage": (
        "orders",
        "ord",
        "news/subscriptions/x",
        "orders/$management",
        "orders/messages",
        "$Resources",
    ),
    "own-Manage": ("orders", "invoices"),
}
_PERMITS: Final = {
    f"{whose}-{right.value}": Permit(grants=(Grant(frozenset({right}), entities),))
    for whose, entities in (("all", None), ("own", OWN))
    for right in Right
}
POLICIES: Final = tuple(
    _policy(name, next(iter(permit.grants[0].rights)), permit.grants[0].entities)
    for name, permit in _PERMITS.items()
)


TO_ANYBODY: Final = Grant(frozenset({Right.SEND}), OWN)
ANYBODY: Final = AccessPolicy(
    name="anybody",
    anonymous=True,
    rights=frozenset({access.Right.SEND}),
    entities=tuple(sorted(OWN)),
)


@attrs.frozen(kw_only=True)
class Credential:
    """A client's credential. Exactly one of the ways to show it is set, or none."""

    name: str
    permit: Permit = attrs.field(factory=Permit)
    header: str | None = None  # an Authorization header: a signature, or a bearer token
    key: tuple[str, str] | None = None  # a policy's name and key themselves
    certificate: bytes = b""

    def shown(self) -> ExitStack:
        """A connection over which the client has shown its certificate, if it has one."""
        stack = ExitStack()
        stack.enter_context(Visits(60.0).begin("this machine", "127.0.0.1:1"))
        record_certificate(self.certificate)
        return stack


def _sas(resource: str, name: str, *, key: str | None = None, seconds: int = 3600) -> str:
    expires = int(wall_clock().timestamp()) + seconds
    return sign_sas(f"sb://localhost/{resource}", name, key or _KEY + name, expires)


def signatures() -> Iterator[Credential]:
    """Shared access signatures."""
    for name, permit in _PERMITS.items():
        yield Credential(name=f"signature {name}", permit=permit, header=_sas("", name))
    for name, scopes in _SCOPES.items():
        for scope in scopes:
            yield Credential(
                name=f"signature {name} for {scope}",
                permit=attrs.evolve(_PERMITS[name], scope=scope),
                header=_sas(scope, name),
            )
    other = _sas("", "all-Manage")
    for name, header in {
        "expired": _sas("", "all-Manage", seconds=-3600),
        "of a wrong key": _sas("", "all-Manage", key="a guess"),
        "of another policy's key": _sas("", "all-Manage", key=_KEY + "own-Send"),
        "of no policy": _sas("", "nobody"),
        "with another policy's name": other.replace("all-Manage", "own-Manage"),
        "with a wider resource": _sas("orders", "all-Manage").replace("%2Forders", "%2F"),
        "with a later end": other.replace("se=1", "se=2"),
        "cut": other[:-8],
        "empty": "SharedAccessSignature ",
    }.items():
        yield Credential(name=f"signature {name}", header=header)


def bearer(provider: Provider, *roles: str, **claims: Any) -> str:
    """An Authorization header with a token for these roles."""
    now = int(wall_clock().timestamp())
    given = provider.provider.claims(now, **{"roles": list(roles)} | claims)
    return f"Bearer {provider.provider.keys[0].sign(given)}"


def tokens(provider: Provider) -> Iterator[Credential]:
    """Bearer tokens of an identity provider."""
    now, token = int(wall_clock().timestamp()), partial(bearer, provider)
    for name, permit in _PERMITS.items():
        yield Credential(name=f"token {name}", permit=permit, header=token(name))
    both = _PERMITS["own-Send"].grants + _PERMITS["all-Listen"].grants
    yield Credential(
        name="token of two roles",
        permit=Permit(grants=both),
        header=token("own-Send", "all-Listen"),
    )
    stranger = SigningKey.make("guess")
    claims = provider.provider.claims(now, roles=["all-Manage"])
    known = attrs.evolve(stranger, key_id=provider.provider.keys[0].key_id)
    for name, header in {
        "without a role": token(),
        "of another role": token("all-manage"),
        "expired": token("all-Manage", exp=now - 3600),
        "not valid yet": token("all-Manage", nbf=now + 3600),
        "without an end": token("all-Manage", exp=None),
        "for another service": token("all-Manage", aud="https://storage.azure.com"),
        "of another issuer": token("all-Manage", iss="https://evil.example"),
        "of a wrong key": f"Bearer {stranger.sign(claims)}",
        "of a wrong key with a known id": f"Bearer {known.sign(claims)}",
        "cut": token("all-Manage")[:-8],
    }.items():
        yield Credential(name=f"token {name}", header=header)


def certificates() -> Iterator[Credential]:
    """Client certificates that a handshake has verified."""
    for name, permit in _PERMITS.items():
        yield Credential(name=f"certificate {name}", permit=permit, certificate=_certificate(name))
    yield Credential(name="certificate of nobody", certificate=_certificate("nobody"))
    expired = _certificate("all-Manage", days=-1)
    yield Credential(name="certificate that has expired", certificate=expired)


def keys() -> Iterator[Credential]:
    """A policy's name with its key: PLAIN over AMQP, Basic at the admin endpoint."""
    for name, permit in _PERMITS.items():
        yield Credential(name=f"key {name}", permit=permit, key=(name, _KEY + name))
    yield Credential(name="key that is wrong", key=("all-Manage", "a guess"))
    yield Credential(name="key of another policy", key=("all-Manage", _KEY + "own-Send"))
    yield Credential(name="key of nobody", key=("nobody", _KEY + "nobody"))


NOTHING: Final = Credential(name="nothing")


def _certificate(name: str, days: float = 1.0) -> bytes:
    """Signed by itself: the handshake that would have verified it isn't part of the table."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=days))
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
