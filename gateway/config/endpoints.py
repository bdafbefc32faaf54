"""
The endpoints of a process: their protocols, their tables, and their addresses.

Nothing else of the configuration is imported here: a probe needs only this.
"""

import ipaddress
import re
from typing import Final

import attrs
from attrs import validators

from gateway.config.values import expected
from gateway.net import unix
from gateway.net.tls import TlsOptions

ONE_PORT: Final = "service-bus"  # AMQP, AMQP over WebSocket, REST; each in plain text or TLS
AMQP: Final = "amqp"  # AMQP, and AMQP over WebSocket
STORAGE_QUEUE: Final = "storage-queue"
RABBITMQ: Final = "rabbitmq"  # AMQP 0-9-1; a wire before a primary in RabbitMQ
ADMIN: Final = "admin"  # health, and figures for scalers
PROTOCOLS: Final = (ONE_PORT, AMQP, "service-bus-http", STORAGE_QUEUE, RABBITMQ, ADMIN)
USUAL_MODE: Final = "0600"
SERVE: Final = "serve"
SYPHON: Final = "syphon"
LISTEN: Final = "listen"
AGENT: Final = "agent"
# Commands that run until they are told to end.
PROCESSES: Final = (SERVE, SYPHON, LISTEN, AGENT)


@attrs.frozen(kw_only=True)
class Endpoint:
    """`[[endpoints]]`."""

    protocol: str = attrs.field(validator=validators.in_(PROTOCOLS))
    bind: str
    # The command whose process opens the endpoint; only `admin` may be of another process than the
    # gateway.
    process: str = attrs.field(default=SERVE, validator=validators.in_(PROCESSES))
    # The mode of a Unix socket's file: a user who may write to the file may do everything that the
    # endpoint offers.
    mode: str = attrs.field(default=USUAL_MODE)
    tls: TlsOptions | None = None
    # Origins of web pages that may use the endpoint although no access policy demands a key; each
    # also allows its host.
    allowed_origins: tuple[str, ...] = ()
    # Names by which clients reach the endpoint, besides those of this machine, where it accepts the
    # emulators' key.
    allowed_hosts: tuple[str, ...] = ()

    @mode.validator
    def _is_mode(self, _: object, mode: str) -> None:
        if not re.fullmatch("0?[0-7]{3}", mode):
            raise expected('a file mode such as "0600"', mode)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of_bind(bind: str) -> str:
    """The host of an address to listen on; a Unix socket is on this machine."""
    return "localhost" if unix.path_of(bind) else bind.rpartition(":")[0].strip("[]")


def moved(bind: str, port_offset: int) -> str:
    """
    The address with its port moved; port 0 stands for any free port and stays 0. A Unix socket has
    the number at the end of its path.
    """
    if unix.path_of(bind) is not None:
        return f"{bind}+{port_offset}" if port_offset else bind
    host, colon, port = bind.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) == 0:
        return bind
    return f"{host}{colon}{int(port) + port_offset}"


def requires_tls(endpoint: Endpoint) -> bool:
    """
    True if the endpoint refuses plain text.

    Unless configured otherwise, a `service-bus` endpoint on loopback accepts both; any other
    endpoint with a certificate accepts TLS only.
    """
    tls = endpoint.tls
    if tls is None or tls.client_ca is not None or tls.required is not None:
        return tls is not None and (tls.required or tls.client_ca is not None)
    return endpoint.protocol != ONE_PORT or not is_loopback(host_of_bind(endpoint.bind))


def address_of(endpoint: Endpoint, port_offset: int) -> str | None:
    """The endpoint's address for local clients; None if its port is any free one."""
    bind = moved(endpoint.bind, port_offset)
    if unix.path_of(bind) is not None:
        return bind
    host, _, port = bind.rpartition(":")
    if port == "0":
        return None
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    return f"{everywhere.get(host, host)}:{port}"
