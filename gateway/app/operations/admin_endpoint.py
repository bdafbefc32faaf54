"""The admin endpoint that a command calls: the local gateway's, or another by its URL."""

import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.targets import address_of, answers, context_of, policy_with
from gateway.config.options import ADMIN, SERVE, Config
from gateway.config.places import is_loopback
from gateway.domain.access import Right
from gateway.domain.errors import NotAuthorized
from gateway.net import unix
from gateway.net.dialing import ServerAddress
from gateway.net.http.client import HttpClient
from gateway.net.tls import ClientTlsOptions, TlsFileError, client_context
from gateway.wire.openid.jwt import SCHEME as BEARER

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
    read_access: Callable[[], Config] | None = None


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


@attrs.frozen(kw_only=True)
class AdminEndpoint:
    """An admin endpoint and its credentials."""

    place: ServerAddress
    config: Config = attrs.field(repr=False)
    credentials: str | None = attrs.field(default=None, repr=False)
    token: AdminTokenSource | None = None
    read_access: Callable[[], Config] | None = None  # as of `AdminChoice`

    def __str__(self) -> str:
        return str(self.place)

    def client(self) -> HttpClient:
        """A client of the endpoint, not connected yet."""
        place = self.place
        return HttpClient(place.host, place.port, tls=place.tls, unix=place.unix)

    def authorization(self, right: Right) -> str | None:
        """
        The Authorization header: of the chosen token or credentials, else for a key with that
        right; None if the endpoint needs none.

        Raises:
            Failure: no policy of the configuration has the right.
            NotAuthorized: the token can't be read.
        """
        if self.place.unix is not None:
            return None
        if self.token is not None:
            return f"{BEARER} {self.token.read()}"
        if self.credentials is not None:
            return _basic(self.credentials)
        if not self.config.access:
            return None
        config = self.config if self.read_access is None else self.read_access()
        policy = policy_with(config, str(self), right)
        return _basic(f"{policy.name}:{policy.keys[0]}")


def check_authorization(endpoint: AdminEndpoint, right: Right) -> None:
    """
    Check that there is a credential for that right.

    Raises:
        Failure: there is none.
    """
    try:
        endpoint.authorization(right)
    except NotAuthorized as error:
        raise Failure(str(error), ExitCode.WRONG) from error


def _basic(credentials: str) -> str:
    return f"Basic {b64encode(credentials.encode()).decode()}"


def admin_at(config: Config, url: str, named: str, choice: AdminChoice) -> AdminEndpoint:
    """
    The endpoint at that URL.

    Raises:
        Failure: the URL is invalid, or a token would go over plain HTTP, and the text begins with
            `named`; or a TLS file can't be used.
    """
    if (path := unix.path_of(url)) is not None:
        return _admin_on(path, config)
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
    return _chosen(ServerAddress(host=parts.hostname, port=port, tls=tls), config, choice)


def _chosen(place: ServerAddress, config: Config, choice: AdminChoice) -> AdminEndpoint:
    return AdminEndpoint(
        place=place,
        config=config,
        credentials=choice.credentials,
        token=choice.token,
        read_access=choice.read_access,
    )


def _admin_on(path: Path, config: Config) -> AdminEndpoint:
    place = ServerAddress(host="localhost", port=ADMIN_PORT, unix=str(path))
    return AdminEndpoint(place=place, config=config)


async def find_admin(config: Config, choice: AdminChoice) -> AdminEndpoint | None:
    """
    The endpoint at the URL, else the first listening one of the configuration; None if none
    listens.

    Raises:
        Failure: as `admin_at`.
    """
    if choice.url is not None:
        return admin_at(config, choice.url, "--url", choice)
    for endpoint in config.endpoints_of(choice.process).values():
        address = address_of(endpoint, choice.port_offset)
        if endpoint.protocol == ADMIN and address is not None and await answers(address):
            if (path := unix.path_of(address)) is not None:
                return _admin_on(path, config)
            host, _, port = address.rpartition(":")
            tls = context_of(endpoint, choice.tls)
            return _chosen(
                ServerAddress(host=host.strip("[]"), port=int(port), tls=tls), config, choice
            )
    return None


async def admin_here(config: Config, choice: AdminChoice) -> AdminEndpoint:
    """
    As `find_admin`, but never None.

    Raises:
        Failure: no endpoint listens (temporary), or the configuration has none.
    """
    found = await find_admin(config, choice)
    if found is not None:
        return found
    addresses = [
        address_of(endpoint, choice.port_offset) or endpoint.bind
        for endpoint in config.endpoints_of(choice.process).values()
        if endpoint.protocol == ADMIN
    ]
    named = "gateway" if choice.process == SERVE else f"`pairgate {choice.process}`"
    if not addresses:
        of_process = "" if choice.process == SERVE else f'\nprocess = "{choice.process}"'
        raise Failure(
            f"this configuration has no `admin` endpoint, so its {named} can't be queried."
            f" Add these lines and restart the {named}, or name another one with"
            f' --url:\n\n[[endpoints]]\nprotocol = "admin"{of_process}\n'
            f'bind = "127.0.0.1:{ADMIN_PORT}"',
            ExitCode.WRONG,
        )
    places = ", ".join(addresses)
    text = f"no {named} answers at the `admin` endpoint of this configuration ({places})"
    raise Failure(text, ExitCode.TEMPORARY)
