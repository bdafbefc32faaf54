"""
Opens connections to servers within a time limit, and classifies failures. After a failure, nothing
was sent.
"""

import os
import socket
import ssl
from typing import Final

import trio

from gateway.domain.errors import Unreachable, Untrusted, starting_thread
from gateway.net.direct import DirectStream
from gateway.net.server_address import ServerAddress
from gateway.net.tls_handshake import (
    UntrustedCertificate,
    connect_tls,
    is_certificate_alert,
    refusal_of,
)

FAILURES: Final = (OSError, trio.BrokenResourceError, UnicodeError)
"""The exceptions that opening a stream may raise; `failure_of` classifies them."""


async def dial(place: ServerAddress) -> trio.abc.Stream:
    """
    Connect, with a TLS handshake if the place has TLS. The caller's scope is the deadline.

    Raises:
        Unreachable: refused, no such host, or the handshake failed.
        Untrusted: one side doesn't trust the other's certificate.
    """
    try:
        return await open_stream(place)
    except FAILURES as error:
        raise failure_of(place, error) from error


async def dial_within(place: ServerAddress, seconds: float) -> trio.abc.Stream:
    """As `dial`. Raises Unreachable, too, if there is no connection within that time."""
    with trio.move_on_after(seconds):
        return await dial(place)
    raise Unreachable(f"{place}: no connection within {seconds:.3g} s")


async def open_stream(place: ServerAddress, *, https_compatible: bool = False) -> trio.abc.Stream:
    """
    As `dial`, but raises the exceptions in `FAILURES`.

    `https_compatible`: the end of the connection needn't be announced, since HTTP's own framing
    shows whether a message was cut.
    """
    if place.unix is not None:
        return DirectStream(await trio.open_unix_socket(place.unix))
    stream = DirectStream(await open_tcp(place.host, place.port))
    if place.tls is None:
        return stream
    try:
        return await connect_tls(stream, place.tls, place.host, https_compatible=https_compatible)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def open_tcp(host: str, port: int) -> trio.SocketStream:
    """Connect without TLS. Raises the exceptions in `FAILURES`."""
    with starting_thread(f"{host} can't be looked up: "):
        return await trio.open_tcp_stream(host, port)


def failure_of(where: object, error: Exception) -> Unreachable | Untrusted:
    """Classify the failure of opening a connection. Nothing was sent."""
    if isinstance(error, UnicodeError):  # from IDNA
        return Unreachable(f"{where}: invalid host name: {error}")
    if isinstance(error, UntrustedCertificate):
        return Untrusted(f"{where}: TLS: {error}")
    cause = error.__cause__ or error
    return Unreachable(f"{where}: {_reasons(cause)}")


def late_refusal(
    where: object, tls: ssl.SSLContext | None, error: BaseException | None
) -> Untrusted | None:
    """
    The error for a connection that broke before the server's answer because the server refuses the
    client's certificate, as it does after the handshake in TLS 1.3; None: there was another cause.
    """
    cause = None if error is None else error.__cause__ or error
    if cause is None or not is_certificate_alert(cause):
        return None
    return Untrusted(f"{where}: TLS: {refusal_of(tls, cause)}")


def _reasons(cause: BaseException) -> str:
    """The reasons, each once: a name may have several addresses, each with its own failure."""
    errors = cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause,)
    return ", ".join(dict.fromkeys(map(_reason, errors)))


def _reason(error: BaseException) -> str:
    match error:
        case socket.gaierror():
            return f"DNS: {error.strerror}"
        case ssl.SSLError():
            return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
        case OSError(errno=int(number), filename=None) if len(error.args) > 1 and "'" in str(error):
            return os.strerror(number)  # the text repeats the address
    return str(error) or type(error).__name__
