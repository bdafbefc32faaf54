"""The smallest client of Service Bus REST that a test needs; blocking, for `trio.to_thread`."""

import http.client
import time
from functools import partial

import trio

from gateway.wire.servicebus.sas import sign_sas
from tests.harness.patience import PATIENCE

KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


async def request(
    address: str, method: str, path: str, body: bytes = b"", *, patience: float = PATIENCE
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (names in lower case) and body of one request with the well-known key."""
    return await trio.to_thread.run_sync(
        partial(_request, address, method, path, body, patience), abandon_on_cancel=True
    )


async def send(
    address: str, entity: str, body: bytes, *, patience: float = PATIENCE
) -> tuple[int, str]:
    """Send one message; return the status, and the namespace that accepted it."""
    status, headers, _ = await request(
        address, "POST", f"/{entity}/messages", body, patience=patience
    )
    return status, headers.get("x-pairgate-accepted-by", "")


async def send_with(address: str, entity: str, name: str, key: str, body: bytes = b"") -> int:
    """Send one message with the key of that policy; return the status."""
    send_it = partial(_request, address, "POST", f"/{entity}/messages", body, PATIENCE, (name, key))
    status, _, _ = await trio.to_thread.run_sync(send_it, abandon_on_cancel=True)
    return status


async def take(address: str, entity: str, *, wait: float = PATIENCE) -> bytes | None:
    """Receive and delete one message; None: there was none for `wait` seconds."""
    path = f"/{entity}/messages/head?timeout={wait:g}"
    status, _, body = await request(address, "DELETE", path, patience=wait + PATIENCE)
    return body if status == 200 else None


def _request(
    address: str,
    method: str,
    path: str,
    body: bytes,
    patience: float,
    policy: tuple[str, str] = (KEY_NAME, KEY),
) -> tuple[int, dict[str, str], bytes]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=patience)
    try:
        token = sign_sas(f"http://{address}/", *policy, int(time.time()) + 600)
        connection.request(method, path, body, {"Authorization": token})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()
