"""A gateway with a port of each kind, and clients that speak to it in raw bytes."""

import time
from typing import Final

import trio

from gateway.wire.servicebus.sas import sign_sas
from tests.e2e.processes import GatewayProcess
from tests.harness.patience import PATIENCE

PROTOCOLS: Final = ("service-bus", "service-bus-http", "storage-queue", "admin", "amqp")
NAMESPACE: Final = """
[namespaces.here]
url = "embedded:here.db"
queues = ["orders"]
"""


def every_port(more: str = "") -> str:
    """A configuration with an endpoint of each kind; `more` stands in each of them."""
    endpoints = (
        f'[[endpoints]]\nprotocol = "{protocol}"\nbind = "127.0.0.1:0"\n{more}\n'
        for protocol in PROTOCOLS
    )
    return NAMESPACE + "\n".join(endpoints)


def port_of(gateway: GatewayProcess, protocol: str) -> int:
    return gateway.ports[PROTOCOLS.index(protocol)]


def token(port: int, key_name: str = "RootManageSharedAccessKey") -> str:
    """All of them have the well-known key."""
    return sign_sas(f"http://127.0.0.1:{port}/", key_name, "SAS_KEY_VALUE", int(time.time()) + 600)


def head(method: str, target: str, *fields: tuple[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode()


async def ask(port: int, data: bytes, enough: int | None = None) -> bytes:
    """
    The head of the first answer to these bytes, or a number of its bytes; empty: the connection
    ended without an answer.
    """
    with trio.fail_after(PATIENCE):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(data)
            return await read_head(stream, enough)


async def read_head(stream: trio.SocketStream, enough: int | None = None) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received and len(received) < (enough or len(received) + 1):
        try:
            data = await stream.receive_some()
        except trio.BrokenResourceError:
            break
        if not data:
            break
        received += data
    return received


def status(answer: bytes) -> int:
    """0: there was none."""
    return int(answer.split()[1]) if answer else 0
