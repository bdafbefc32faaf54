"""The address of a namespace in RabbitMQ: a cluster's nodes, a user and a vhost in one URL."""

import math
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.domain.errors import InvalidRequest
from gateway.net.hosts import places_of
from gateway.net.server_address import ServerAddress
from gateway.net.tls import TlsFileError, client_context
from gateway.wire.http.hosts import parse_server_url
from gateway.wire.rabbitmq.content import MAX_SHORT
from gateway.wire.rabbitmq.frames import Login

_PORTS: Final = {"rabbitmq": 5672, "rabbitmqs": 5671}


def read_address(
    scheme: str, rest: str, options: RabbitmqOptions
) -> tuple[Sequence[ServerAddress], Login]:
    """
    The nodes of a namespace's URL, and the gateway's login there.

    Raises:
        InvalidRequest: a part of the URL is invalid, or a certificate can't be read.
    """
    try:
        parts = parse_server_url(f"{scheme}:{rest}")
    except InvalidRequest as error:
        raise InvalidRequest(f"URL of a namespace: {error}") from error
    vhost = unquote(parts.path[1:]) or "/"
    if parts.more or "/" in parts.path[1:]:
        raise InvalidRequest(
            f"URL of a namespace: {scheme}://user:password@host:port/vhost expected"
        )
    if parts.password and options.password:
        raise InvalidRequest("password: given in the URL, too; remove one of the two")
    if len(vhost.encode()) > MAX_SHORT:
        raise InvalidRequest(f"URL of a namespace: vhost: at most {MAX_SHORT} bytes expected")
    certified = scheme == "rabbitmqs" and options.tls.certificate is not None
    if not parts.user and not certified:
        raise InvalidRequest("URL of a namespace: a user expected, or a tls.certificate")
    if parts.user and not (parts.password or options.password):
        raise InvalidRequest('password: missing; set password = { env = "NAME" }')
    try:
        tls = client_context(options.tls) if scheme == "rabbitmqs" else None
    except TlsFileError as error:
        raise InvalidRequest(f"tls: {error}") from error
    login = Login(
        user=parts.user,
        password=parts.password or options.password,
        vhost=vhost,
        heartbeat=math.ceil(options.heartbeat),
    )
    return places_of(parts.hosts, _PORTS[scheme], tls), login
