"""Handshakes of TLS, whose errors name the certificate that isn't trusted."""

import ssl
from contextlib import suppress
from typing import Any, Final, cast

import attrs
import trio

from gateway.net.certificates import CertificateName, first_in, listed_hosts, name_of
from gateway.net.tls import ClientTlsOptions, FileContext, TlsOptions, WatchedObject
from gateway.net.visits import record_certificate

# A client that has written its first request gets the alert instead of a reset: it has this time
# and this number of bytes to read it.
_GOODBYE_SECONDS: Final = 2.0
_GOODBYE_BYTES: Final = 1024 * 1024
_RECEIVE_SIZE: Final = 64 * 1024
_HEAD: Final = 4  # bytes before a message of the handshake: its type and length (RFC 8446, 4)
_NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
# Codes of verification in OpenSSL's x509_vfy.h.
_EXPIRED: Final = 10
_REVOKED: Final = 23
_WRONG_HOST: Final = frozenset({62, 64})  # a name, an address
_OF_LISTS: Final = frozenset({3, 11, 12, 15, 16, _REVOKED, 33, 36, 44})
# Alerts by which a server refuses the client's certificate. In TLS 1.3 they arrive after the
# handshake.
_CERTIFICATE_ALERTS: Final = (
    "CERTIFICATE_REQUIRED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_UNKNOWN_CA",
)
# After a handshake, a connection has one of these contexts: its messages aren't watched any more,
# since that takes 4 µs for each record.
_QUIET: Final = {
    True: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
    False: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
}
# The certificate of a client can be read only where the context demands one.
_QUIET[True].verify_mode = ssl.CERT_REQUIRED


class UntrustedCertificate(trio.BrokenResourceError):
    """
    A handshake failed because one side doesn't trust the other's certificate. The text names the
    certificate; `why` is missing, expired, revoked or untrusted.
    """

    def __init__(self, text: str, why: str, certificate: CertificateName | None = None) -> None:
        super().__init__(text)
        self.why = why
        self.certificate = certificate  # None: not known


@attrs.define(eq=False)
class _Handshake:
    """A context that gives access to the handshake inside `trio.SSLStream`."""

    _context: ssl.SSLContext
    outgoing: ssl.MemoryBIO = attrs.field(factory=ssl.MemoryBIO, init=False)
    _object: ssl.SSLObject | None = attrs.field(default=None, init=False)

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **options: Any
    ) -> ssl.SSLObject:
        self.outgoing = outgoing
        self._object = self._context.wrap_bio(incoming, outgoing, **options)
        return self._object

    def stop(self) -> None:
        """Stop watching the connection, whose handshake has succeeded."""
        if isinstance(self._object, WatchedObject):
            self._object.shown = b""
            self._object.context = _QUIET[self._object.server_side]

    def shown(self) -> CertificateName | None:
        """The certificate that the peer has shown; None: it has shown none, or that isn't known."""
        found = self._object
        if not isinstance(found, WatchedObject) or not found.shown:
            return None
        return name_of(first_certificate(found.shown, is_1_3=found.is_1_3))


def first_certificate(message: bytes, *, is_1_3: bool) -> bytes:
    """
    The first certificate of a message Certificate (RFC 8446, 4.4.2; RFC 5246, 7.4.2); empty if the
    message has no certificate.
    """
    rest = message[_HEAD:]
    if is_1_3:
        rest = rest[1 + rest[0] :] if rest else b""  # the context of a request
    rest = rest[3:]  # the length of the list
    return rest[3 : 3 + int.from_bytes(rest[:3], "big")]


async def connect_tls(
    stream: trio.abc.Stream, context: ssl.SSLContext, host: str, *, https_compatible: bool
) -> "trio.SSLStream[trio.abc.Stream]":
    """
    Return the connection inside TLS after the client's handshake. On an error the caller closes
    `stream`.

    Raises:
        UntrustedCertificate: one side doesn't trust the other's certificate.
        trio.BrokenResourceError: the handshake failed, or the connection was lost.
    """
    handshake = _Handshake(context)
    secured = trio.SSLStream(
        stream,
        cast(ssl.SSLContext, handshake),
        server_hostname=host,
        https_compatible=https_compatible,
    )
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        untrusted = _why_no_client(context, handshake, error.__cause__)
        if untrusted is None:
            raise
        raise untrusted from error.__cause__
    handshake.stop()
    return secured


async def accept_tls(
    stream: trio.abc.Stream, context: ssl.SSLContext, seconds: float
) -> "trio.SSLStream[trio.abc.Stream]":
    """
    Return the connection inside TLS after the server's handshake, which may last `seconds`.

    A client whose handshake fails, for example without the required certificate, gets TLS's alert
    with the reason (RFC 8446, 6.2), which `trio.SSLStream` doesn't send. On an error the caller
    closes `stream`.

    Raises:
        trio.TooSlowError: the handshake took too long.
        UntrustedCertificate: the client has no certificate, or an untrusted one.
        trio.BrokenResourceError: the handshake failed, or the connection was lost.
    """
    handshake = _Handshake(context)
    secured = trio.SSLStream(
        stream, cast(ssl.SSLContext, handshake), server_side=True, https_compatible=True
    )
    failure: trio.BrokenResourceError | None = None
    with trio.fail_after(seconds):
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            failure = error
    if failure is None:
        if context.verify_mode is ssl.CERT_REQUIRED:
            record_certificate(secured.getpeercert(binary_form=True) or b"")
        handshake.stop()
        return secured
    cause = failure.__cause__
    untrusted = _why_no_server(context, handshake, cause)
    if alert := handshake.outgoing.read():
        await say_goodbye(stream, alert)
    if untrusted is None:
        raise failure
    raise untrusted from cause


def _why_no_client(
    context: ssl.SSLContext, handshake: _Handshake, cause: BaseException | None
) -> UntrustedCertificate | None:
    """The reason why a client's handshake failed; None: the cause isn't a certificate."""
    options = context.made_of if isinstance(context, FileContext) else None
    if not isinstance(options, ClientTlsOptions | None):
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        lists = None if options is None else options.crl
        trusted = None if options is None else options.ca
        text = _untrusted("the server's certificate", handshake.shown(), cause)
        if cause.verify_code in _OF_LISTS:
            text += f" (crl: {lists})"
        elif cause.verify_code not in {*_WRONG_HOST, _EXPIRED}:
            text += f" (ca: {trusted or 'those of the system'})"
        return UntrustedCertificate(text, _kind_of(cause), handshake.shown())
    if isinstance(cause, ssl.SSLError) and is_certificate_alert(cause):
        return UntrustedCertificate(refusal_of(context, cause), "untrusted")
    return None


def refusal_of(context: ssl.SSLContext | None, alert: BaseException) -> str:
    """The text for an alert by which a server refuses the certificate of this client."""
    said = str(getattr(alert, "reason", None) or alert).replace("_", " ").lower()
    options = context.made_of if isinstance(context, FileContext) else None
    file = options.certificate if isinstance(options, ClientTlsOptions) else None
    if file is None:
        return f"the server requires a client certificate, and none is configured: {said}"
    return f"the server refuses the client certificate ({first_in(file)}, file {file}): {said}"


def is_certificate_alert(error: BaseException | None) -> bool:
    """True if the server refuses the client's certificate."""
    reason = str(getattr(error, "reason", None) or "")
    return isinstance(error, ssl.SSLError) and reason.endswith(_CERTIFICATE_ALERTS)


def _why_no_server(
    context: ssl.SSLContext, handshake: _Handshake, cause: BaseException | None
) -> UntrustedCertificate | None:
    """
    The reason why a server's handshake failed; None: the cause isn't the client's certificate.
    """
    options = context.made_of if isinstance(context, FileContext) else None
    authority = options.client_ca if isinstance(options, TlsOptions) else None
    if getattr(cause, "reason", None) == _NO_CERTIFICATE:
        text = f"the client has shown no certificate; one of {authority} is required"
        return UntrustedCertificate(text, "missing")
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return None
    shown = handshake.shown()
    text = _untrusted("the client's certificate", shown, cause)
    if cause.verify_code in _OF_LISTS and isinstance(options, TlsOptions):
        text += f" (crl: {options.crl})"
    elif cause.verify_code != _EXPIRED:
        text += f" (client_ca: {authority})"
    return UntrustedCertificate(text, _kind_of(cause), shown)


def _untrusted(
    what: str, shown: CertificateName | None, cause: ssl.SSLCertVerificationError
) -> str:
    named = f" ({shown})" if shown is not None else ""
    reason = cause.verify_message.removesuffix(".")
    if cause.verify_code in _WRONG_HOST and shown is not None:
        reason = f"{reason}; it is for {listed_hosts(shown)}"
    return f"{what}{named} isn't trusted: {reason}"


def _kind_of(cause: ssl.SSLCertVerificationError) -> str:
    return {_EXPIRED: "expired", _REVOKED: "revoked"}.get(cause.verify_code, "untrusted")


async def say_goodbye(stream: trio.abc.Stream, last: bytes) -> None:
    """
    Send these last bytes, and give the client up to two seconds to read them: closing while the
    client still sends would reset the connection before. A connection that breaks is no error.
    """
    with trio.move_on_after(_GOODBYE_SECONDS), suppress(trio.BrokenResourceError):
        await stream.send_all(last)
        if isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
        left = _GOODBYE_BYTES
        while left > 0 and (data := await stream.receive_some(_RECEIVE_SIZE)):
            left -= len(data)
