"""
Logins: by PLAIN or AMQPLAIN with the name and a key of a policy, or with a token of an
issuer as password, or by the certificate that TLS has verified (EXTERNAL). RabbitMQ's own `guest`
has the rights of the emulators' well-known key where an endpoint accepts that.
"""

from typing import Any, Final

from pamqp import commands

from gateway.domain.access import TokenClaim
from gateway.domain.errors import NotAuthorized
from gateway.frontends.auth import EMULATOR_POLICY, Authorizer
from gateway.frontends.rabbitmq.login import MAX_CHANNELS, ClientLogin
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused
from gateway.wire.openid.jwt import looks_like_jwt
from gateway.wire.rabbitmq.errors import NOT_ALLOWED

# Clients read product and version before they ask for more: that of a RabbitMQ whose methods are
# those that are served.
_VERSION: Final = "3.10.0"
_CAPABILITIES: Final = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "direct_reply_to",
    "exchange_exchange_bindings",
    "per_consumer_qos",
    "publisher_confirms",
)
_PASSWORDS: Final = "PLAIN AMQPLAIN"
_EXTERNAL: Final = "EXTERNAL"
_MAX_FRAME: Final = 131_072  # bytes: RabbitMQ's default
_MIN_FRAME: Final = 4096  # bytes that each side must take (AMQP 0-9-1, 4.2.3)
_HEARTBEAT: Final = 60  # seconds, too
_GUEST: Final = "guest"

_SERVER: Final[dict[str, Any]] = {
    "capabilities": dict.fromkeys(_CAPABILITIES, True),
    "product": "RabbitMQ",
    "version": _VERSION,
    "platform": "Pairgate",
    "cluster_name": "pairgate",
}
TUNE: Final = commands.Connection.Tune(MAX_CHANNELS, _MAX_FRAME, _HEARTBEAT)


def greeting(authorizer: Authorizer) -> commands.Connection.Start:
    """The begin of a login; a client without a certificate isn't offered EXTERNAL."""
    has_certificate = authorizer.claim_of_certificate() is not None
    mechanisms = f"{_PASSWORDS} {_EXTERNAL}" if has_certificate else _PASSWORDS
    return commands.Connection.Start(
        server_properties=_SERVER, mechanisms=mechanisms, locales="en_US"
    )


def check_tuned(answer: commands.Connection.TuneOk) -> None:
    """Raises: ClientRefused: the client takes no frames of the least size."""
    size = answer.frame_max or _MIN_FRAME  # 0: no limit
    if size < _MIN_FRAME:
        limit = f"lower than the minimum allowed value ({_MIN_FRAME})"
        raise ClientRefused(NOT_ALLOWED, f"negotiated frame_max = {size} is {limit}")


def admit(login: ClientLogin, authorizer: Authorizer) -> TokenClaim:
    """
    The claim of a client, with which its rights are checked.

    Raises:
        NotAuthorized: no policy is for these credentials.
        Busy: the client has as many connections as it may.
    """
    secret = login.secret
    if secret is None:
        claim = authorizer.claim_of_certificate() if login.mechanism == _EXTERNAL else None
        if claim is None:
            raise NotAuthorized(f"no policy is for a login by {login.mechanism}")
        return claim
    if authorizer.is_open and login.user == secret == _GUEST:
        return authorizer.claim_by_key(EMULATOR_POLICY.name, EMULATOR_POLICY.keys[0])
    if authorizer.takes_bearer_tokens and looks_like_jwt(secret):
        return authorizer.claim(secret)
    return authorizer.claim_by_key(login.user, secret)
