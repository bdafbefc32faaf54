"""
The choice of the admin endpoint that a command calls, and its place.

A probe imports this, and no part of the gateway.
"""

import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.config.endpoints import ADMIN, SERVE, Endpoint, address_of, is_loopback, requires_tls
from gateway.domain.errors import NotAuthorized
from gateway.net import unix
from gateway.net.server_address import ServerAddress
from gateway.net.tls import ClientTlsOptions, PinnedTlsOptions, TlsFileError, client_context

if TYPE_CHECKING:
    from gateway.config.options import Config

ADMIN_PORT: Final = 9640  # if the URL has none
_LONGEST: Final = 16 * 1024  # characters of a token; a request's head has no more
_TOKEN: Final = re.compile(rf"[\x21-\x7e]{{1,{_LONGEST}}}", re.ASCII)


def tls_files(*, ca: Path | None, certificate: Path | None, key: Path | None) -> ClientTlsOptions:
    """TLS files of a client: the trusted authority, and its own certificate."""
    return ClientTlsOptions(ca=ca, certificate=certificate, key=key)


@attrs.frozen(kw_only=True)
class AdminChoice:
    """
    Options of the command line that select the endpoint; the rest comes from the configuration.
    """

    port_offset: int = 0
    process: str = SERVE  # the process whose endpoint of the configuration is used
    url: str | None = None  # None: an endpoint of the configuration
    tls: ClientTlsOptions = attrs.field(factory=ClientTlsOptions)
    credentials: str | None = attrs.field(default=None, repr=False)  # NAME:KEY
    token: "AdminTokenSource | None" = None  # instead of credentials
    # Reads the configuration with the keys of its access policies, once one of them is used; None:
    # the configuration has them.
    read_access: "Callable[[], Config] | None" = None


@attrs.frozen(kw_only=True)
class AdminTokenSource:
    """
    A bearer token, or the file that has it. The file is read again for each request, because
    a program beside this one may renew the token.
    """

    text: str = attrs.field(default="", repr=False)
    file: Path | None = None

    def read(self) -> str:
        """
        The token now.

        Raises:
            NotAuthorized: the file can't be read, or there is no token.
        """
        named = "the bearer token" if self.file is None else str(self.file)
        try:
            text = self.text if self.file is None else _start_of(self.file)
        except OSError as error:
            raise NotAuthorized(f"{named}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise NotAuthorized(f"{named}: isn't UTF-8 text") from error
        token = text.strip()
        if not _TOKEN.fullmatch(token):
            raise NotAuthorized(f"{named}: one token of up to {_LONGEST} characters expected")
        return token


def _start_of(file: Path) -> str:
    with file.open(encoding="utf-8-sig") as opened:
        return opened.read(_LONGEST + 1)


def admin_endpoints(endpoints: Sequence[Endpoint], choice: AdminChoice) -> Sequence[Endpoint]:
    """The endpoints `admin` among them, of the chosen process."""
    process = _process_of(endpoints, choice)
    return [each for each in endpoints if each.protocol == ADMIN and each.process == process]


def _process_of(endpoints: Sequence[Endpoint], choice: AdminChoice) -> str:
    """The chosen process; that of a configuration for one other alone, as a syphon's, if not."""
    found = {each.process for each in endpoints}
    return found.pop() if choice.process == SERVE and len(found) == 1 else choice.process


def place_at(url: str, named: str, choice: AdminChoice) -> ServerAddress:
    """
    The place of the endpoint at that URL.

    Raises:
        Failure: the URL is invalid, or a token would go over plain HTTP, and the text begins with
            `named`; or a TLS file can't be used.
    """
    if (path := unix.path_of(url)) is not None:
        return _place_on(path)
    try:
        parts = urlsplit(url)
        port = parts.port or ADMIN_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}:
        raise Failure(f"{named}: http(s)://HOST[:PORT] or unix:PATH expected", ExitCode.WRONG)
    try:
        tls = client_context(choice.tls) if parts.scheme == "https" else None
    except TlsFileError as error:
        raise Failure(f"--{error.field}: {error}", ExitCode.WRONG) from error
    if choice.token is not None and tls is None and not is_loopback(parts.hostname):
        raise Failure(f"{named}: a bearer token goes over https only", ExitCode.WRONG)
    return ServerAddress(host=parts.hostname, port=port, tls=tls)


def place_of(address: str, endpoint: Endpoint, choice: AdminChoice) -> ServerAddress:
    """
    The place of an endpoint of the configuration, at that address of this machine.

    Raises:
        Failure: a TLS file can't be used.
    """
    if (path := unix.path_of(address)) is not None:
        return _place_on(path)
    host, _, port = address.rpartition(":")
    tls = context_of(endpoint, choice.tls)
    return ServerAddress(host=host.strip("[]"), port=int(port), tls=tls)


def _place_on(path: Path) -> ServerAddress:
    return ServerAddress(host="localhost", port=ADMIN_PORT, unix=str(path))


def no_admin(endpoints: Sequence[Endpoint], choice: AdminChoice) -> Failure:
    """The failure if none of them listens: temporary, unless the configuration has none."""
    addresses = [
        address_of(endpoint, choice.port_offset) or endpoint.bind
        for endpoint in admin_endpoints(endpoints, choice)
    ]
    process = _process_of(endpoints, choice)
    named = "gateway" if process == SERVE else f"`pairgate {process}`"
    if not addresses:
        of_process = "" if process == SERVE else f'\nprocess = "{process}"'
        return Failure(
            f"this configuration has no `admin` endpoint, so its {named} can't be queried."
            f" Add these lines and restart the {named}, or name another one with"
            f' --url:\n\n[[endpoints]]\nprotocol = "admin"{of_process}\n'
            f'bind = "127.0.0.1:{ADMIN_PORT}"',
            ExitCode.WRONG,
        )
    places = ", ".join(addresses)
    text = f"no {named} answers at the `admin` endpoint of this configuration ({places})"
    return Failure(text, ExitCode.TEMPORARY)


def trust_of(endpoint: Endpoint, options: ClientTlsOptions) -> ClientTlsOptions | None:
    """
    TLS options for a local client of a configured endpoint; None if the endpoint has no TLS.
    Without an authority only the endpoint's own certificate is trusted.
    """
    if endpoint.tls is None or not requires_tls(endpoint):
        return None
    if options.ca is not None:
        return options
    return PinnedTlsOptions(
        certificate=options.certificate, key=options.key, pinned=endpoint.tls.certificate
    )


def context_of(endpoint: Endpoint, options: ClientTlsOptions) -> ssl.SSLContext | None:
    """
    As `trust_of`.

    Raises:
        Failure: a file can't be used.
    """
    trust = trust_of(endpoint, options)
    try:
        return None if trust is None else client_context(trust)
    except TlsFileError as error:
        raise Failure(f"{error}; name the authority with --ca", ExitCode.WRONG) from error
