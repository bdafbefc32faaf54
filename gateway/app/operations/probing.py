"""
Asks a process whether it takes work: for health checks, which run twice a minute in each pod.

Therefore little is imported, and the calls block: there is nothing else to do meanwhile.
"""

import json
import socket
import ssl
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import Final

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import (
    AdminChoice,
    admin_endpoints,
    no_admin,
    place_at,
    place_of,
)
from gateway.config.endpoints import Endpoint, address_of
from gateway.frontends.admin.readiness import Readiness
from gateway.net.server_address import ServerAddress

ANSWER_SECONDS: Final = 10.0  # for each step: as long as other commands wait for an answer
_LONGEST: Final = 65536  # bytes of an answer; a reason is a sentence


def ask_readiness(endpoints: Sequence[Endpoint], choice: AdminChoice) -> tuple[str, Readiness]:
    """
    Return the address of the process's admin endpoint, the first of these that listens, and
    whether the process takes work. No key is needed.

    Raises:
        Failure: no process answers (temporary), none of the endpoints is `admin`, or a certificate
            isn't trusted.
    """
    if choice.url is not None:
        place = place_at(choice.url, "--url", choice)
        try:
            connection = _connected(place)
        except OSError as error:
            raise _failure(place, error) from error
        return str(place), _answer(place, connection)
    for endpoint in admin_endpoints(endpoints, choice):
        if (address := address_of(endpoint, choice.port_offset)) is None:
            continue
        place = place_of(address, endpoint, choice)
        try:
            connection = _connected(place)
        except OSError:
            continue
        return str(place), _answer(place, connection)
    raise no_admin(endpoints, choice)


def _connected(place: ServerAddress) -> socket.socket:
    if place.unix is None:
        return socket.create_connection((place.host, place.port), ANSWER_SECONDS)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(place.unix)
    except BaseException:
        connection.close()
        raise
    return connection


class _ProbeClient(HTTPConnection):
    """A client of that place, over a connection to it, which it closes."""

    def __init__(self, place: ServerAddress, connection: socket.socket) -> None:
        super().__init__(place.host, place.port)
        self._tls = place.tls
        self.sock = connection

    def shake_hands(self) -> None:
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


def _answer(place: ServerAddress, connection: socket.socket) -> Readiness:
    client = _ProbeClient(place, connection)
    try:
        client.shake_hands()
        client.request("GET", "/readyz")
        body = client.getresponse().read(_LONGEST)
    except (OSError, HTTPException) as error:
        raise _failure(place, error) from error
    finally:
        client.close()
    try:
        return Readiness(str(json.loads(body)["reason"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        text = f"{place}: no valid answer to /readyz: this isn't an endpoint `admin`"
        raise Failure(text) from error


def _failure(place: ServerAddress, error: Exception) -> Failure:
    if isinstance(error, ssl.SSLError):
        reason = f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
        is_refused = isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in str(error)
        return Failure(f"{place}: {reason}", ExitCode.FAILED if is_refused else ExitCode.TEMPORARY)
    if isinstance(error, TimeoutError):
        reason = f"no answer within {ANSWER_SECONDS:g} s"
    else:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Failure(f"{place}: {reason}", ExitCode.TEMPORARY)
