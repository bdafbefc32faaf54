"""Streams to servers, opened within a time; what fails is told apart, and nothing was sent."""

import errno
import ssl
from typing import Final

import attrs
import trio

from gateway.domain.errors import Unavailable, Untrusted

# Alerts by which a server refuses our certificate. In TLS 1.3 they come after the handshake.
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


FAILURES: Final = (OSError, trio.BrokenResourceError, UnicodeError)
"""What opening a stream may raise; `failure_of` says what it means."""


async def dial(place: Place) -> trio.abc.Stream:
    """
    Connect, and shake hands where there is TLS. The caller's scope is the deadline.

    Raises:
        Unavailable: refused, no such host, or the handshake failed.
        Untrusted: one side doesn't trust the other's certificate.
    """
    try:
        return await open_stream(place)
    except FAILURES as error:
        raise failure_of(place, error) from error


async def open_stream(place: Place, *, https_compatible: bool = False) -> trio.abc.Stream:
    """
    As `dial`, but it raises what is in `FAILURES`.

    `https_compatible`: the end of a connection needn't be announced, as HTTP's own ends show what
    is cut.
    """
    stream = await open_tcp(place.host, place.port)
    if place.tls is None:
        return stream
    secured = trio.SSLStream(
        stream, place.tls, server_hostname=place.host, https_compatible=https_compatible
    )
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


async def open_tcp(host: str, port: int) -> trio.SocketStream:
    """
    Connect without TLS. Raises what is in `FAILURES`.

    A name is looked up in a thread; where none can be started that is an OSError too, as any other
    lack of the machine's.
    """
    try:
        return await trio.open_tcp_stream(host, port)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # Python has no class of its own for "no thread"
            raise
        raise OSError(errno.EAGAIN, f"{host} can't be looked up: {error}") from error


def failure_of(where: object, error: Exception) -> Unavailable | Untrusted:
    """What a connection that couldn't be opened means. Nothing was sent."""
    if isinstance(error, UnicodeError):  # of IDNA
        return Unavailable(f"{where}: no host can have that name: {error}")
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLCertVerificationError) or is_certificate_alert(cause):
        return Untrusted(f"{where}: {cause}")
    return Unavailable(f"{where}: {error if isinstance(cause, BaseExceptionGroup) else cause}")


def is_certificate_alert(error: BaseException | None) -> bool:
    """Whether the server says that it refuses our certificate."""
    reason = str(getattr(error, "reason", None) or "")
    return isinstance(error, ssl.SSLError) and reason.endswith(_CERTIFICATE_ALERTS)
