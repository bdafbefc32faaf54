"""Streams to servers, opened within a time; what fails is told apart, and nothing was sent."""

import ssl
from typing import Final

import attrs
import trio

from gateway.domain.errors import Unavailable, Untrusted

# Alerts by which a server refuses our certificate.
_CERTIFICATE_ALERTS: Final = (
    "CERTIFICATE_REQUIRED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_UNKNOWN_CA",
)


@attrs.frozen(kw_only=True)
class Place:
    """Where a server listens. With `tls`, its certificate must be for the host."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def dial(place: Place) -> trio.abc.Stream:
    """
    Connect, and shake hands where there is TLS. The caller's scope is the deadline.

    Raises:
        Unavailable: refused, no such host, or the handshake failed.
        Untrusted: one side doesn't trust the other's certificate.
    """
    try:
        return await _open(place)
    except UnicodeError as error:  # of IDNA
        raise Unavailable(f"{place}: no host can have that name: {error}") from error
    except (OSError, trio.BrokenResourceError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, ssl.SSLCertVerificationError) or _is_certificate_alert(cause):
            raise Untrusted(f"{place}: {cause}") from error
        text = error if isinstance(cause, BaseExceptionGroup) else cause
        raise Unavailable(f"{place}: {text}") from error


async def _open(place: Place) -> trio.abc.Stream:
    stream = await trio.open_tcp_stream(place.host, place.port)
    if place.tls is None:
        return stream
    secured = trio.SSLStream(stream, place.tls, server_hostname=place.host)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


def _is_certificate_alert(error: BaseException | None) -> bool:
    reason = str(getattr(error, "reason", None) or "")
    return isinstance(error, ssl.SSLError) and reason.endswith(_CERTIFICATE_ALERTS)
