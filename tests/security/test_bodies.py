"""Nobody's body is read before it is known that its sender may do anything."""

import pytest
import trio

from tests.e2e.processes import Gateways
from tests.security.gateway import NAMESPACE, ask, every_port, head, port_of, status, token

LARGE = ("Content-Length", "60000")
CHUNKED = ("Transfer-Encoding", "chunked")
EXPECT = ("Expect", "100-continue")
LOCAL = ("Host", "localhost")
KEYS = """
[[access]]
name = "owner"
key = { env = "PAIRGATE_TEST_KEY" }
rights = ["Manage"]
"""


REQUESTS = (
    ("service-bus", "POST", "/orders/messages", 401),
    ("service-bus-http", "POST", "/orders/messages", 401),
    ("service-bus-http", "PUT", "/another-queue", 401),  # Atom
    ("service-bus-http", "POST", "/orders/messages/head", 401),
    ("storage-queue", "POST", "/devstoreaccount1/orders/messages", 403),
    ("storage-queue", "PUT", "/devstoreaccount1/orders?sig=a&se=2040-01-01&sp=a", 403),
    ("storage-queue", "OPTIONS", "/devstoreaccount1/orders", 400),  # a preflight needs no key
    ("admin", "POST", "/triggers/orders", 401),
    ("admin", "POST", "/redrive", 401),
)


@pytest.mark.slow
async def test_without_a_good_token_no_body_is_waited_for(gateways: Gateways) -> None:
    gateway = await gateways.start(every_port() + KEYS)
    wrong = []

    for protocol, method, target, expected in REQUESTS:
        port = port_of(gateway, protocol)
        unknown = [] if protocol == "storage-queue" else [("Authorization", token(port, "nobody"))]
        for fields in ([LARGE], [CHUNKED], [LARGE, EXPECT], [CHUNKED, EXPECT]):
            for tokens in ([], unknown):
                answer = await ask(port, head(method, target, LOCAL, *fields, *tokens))
                if status(answer) != expected or b"Connection: close\r\n" not in answer:
                    wrong.append((target, fields, answer))

    assert wrong == []


async def test_a_good_token_is_asked_for_its_body(gateways: Gateways) -> None:
    gateway = await gateways.start(every_port() + KEYS)
    port = port_of(gateway, "service-bus-http")
    good = ("Authorization", token(port, "owner"))

    answer = await ask(port, head("POST", "/orders/messages", LOCAL, LARGE, EXPECT, good))

    assert answer == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_bodies_beyond_the_memory_for_them_are_told_to_come_again(
    gateways: Gateways,
) -> None:
    limits = '[limits]\nmax_body_memory = "64KiB"\nbody_wait = "10ms"\n'
    endpoint = '[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:0"\n'
    gateway = await gateways.start(NAMESPACE + endpoint + limits)
    good = ("Authorization", token(gateway.port))
    request = head("POST", "/orders/messages", LOCAL, LARGE, EXPECT, good)

    async with await trio.open_tcp_stream("127.0.0.1", gateway.port) as first:
        await first.send_all(request)
        assert b"100 Continue" in await first.receive_some()
        refused = await ask(gateway.port, request)

    assert status(refused) == 503
    assert refused.count(b"Retry-After: 1\r\n") == 1
    assert b"X-Pairgate-Error: busy\r\n" in refused
    assert b"X-Pairgate-Outcome: not-sent\r\n" in refused
