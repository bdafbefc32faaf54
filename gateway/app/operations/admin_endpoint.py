"""The admin endpoint that a command calls: the local gateway's, or another by its URL."""

from base64 import b64encode
from collections.abc import Callable

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import (
    AdminChoice,
    AdminTokenSource,
    admin_endpoints,
    no_admin,
    place_at,
    place_of,
)
from gateway.app.operations.targets import answers, policy_with
from gateway.config.endpoints import address_of
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import NotAuthorized
from gateway.net.http.client import HttpClient
from gateway.net.server_address import ServerAddress
from gateway.wire.openid.jwt import SCHEME as BEARER


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
        Failure: as `place_at`.
    """
    return _chosen(place_at(url, named, choice), config, choice)


def _chosen(place: ServerAddress, config: Config, choice: AdminChoice) -> AdminEndpoint:
    return AdminEndpoint(
        place=place,
        config=config,
        credentials=choice.credentials,
        token=choice.token,
        read_access=choice.read_access,
    )


async def find_admin(config: Config, choice: AdminChoice) -> AdminEndpoint | None:
    """
    The endpoint at the URL, else the first listening one of the configuration; None if none
    listens.

    Raises:
        Failure: as `admin_at`.
    """
    if choice.url is not None:
        return admin_at(config, choice.url, "--url", choice)
    for endpoint in admin_endpoints(config.endpoints, choice):
        address = address_of(endpoint, choice.port_offset)
        if address is not None and await answers(address):
            return _chosen(place_of(address, endpoint, choice), config, choice)
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
    raise no_admin(config.endpoints, choice)
