"""
The cost of identities and of TLS: the processor time of a gateway for a send, and for a connection.

    client ──▶ gateway, with a namespace in its memory

    plain    HTTP, and a shared access signature
    TLS      the same in TLS 1.3
    mTLS     the client shows a certificate, too
    JWT      TLS, and the token of an identity provider instead of the signature

One gateway serves all ways. They take turns, and a ratio is the median of the rounds' ratios to
plain. Sends go over eight kept-alive connections; a connection is opened for one send, and closed.
"""

import argparse
import base64
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import now, open_fleet, token
from benchmarks.machine import facts_of_processor
from benchmarks.report import report_of, show_medians
from benchmarks.stopwatch import processor_time
from gateway.demo.machines import KEY_NAME, KEY_VARIABLE
from gateway.demo.ports import free_port
from gateway.net.certs import write_certificates
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.tls import ClientTlsOptions, client_context
from gateway.wire.http.messages import Headers, Request

PLAIN, TLS, MTLS, JWT = WAYS = ("plain", "TLS", "mTLS", "JWT")
ENDPOINT: Final = {PLAIN: 0, TLS: 1, MTLS: 2, JWT: 1}  # the number of each way's endpoint
ISSUER: Final = "https://provider.example.net/"
AUDIENCE: Final = "api://pairgate"
BODY: Final = bytes(1024)
CONNECTIONS: Final = 8
ROUNDS: Final = 7
SENDS: Final = 2000
OPENED: Final = 200
WIDTH: Final = 100
CONFIG: Final = """
[namespaces.here]
url = "memory:"
queues = ["orders"]

[[endpoints]]
protocol = "service-bus-http"
bind="127.0.0.1:{ports[0]}"

[[endpoints]]
protocol = "service-bus-http"
bind="127.0.0.1:{ports[1]}"
tls = {{ {own} }}

[[endpoints]]
protocol = "service-bus-http"
bind="127.0.0.1:{ports[2]}"
tls = {{ {own}, client_ca = "{folder}/ca.pem" }}

[[issuers]]
name = "provider"
issuer = "{issuer}"
audiences = ["{audience}"]
keys_file = "{folder}/keys.json"

[[access]]
name = "{name}"
key = {{ env = "{variable}" }}
rights = ["Manage"]

[[access]]
name = "sender"
token = {{ issuer = "provider", claims = {{ roles = ["Send"] }} }}
rights = ["Send"]
"""


@attrs.frozen(kw_only=True)
class Cost:
    """The medians of all rounds for one way, and of their ratios to plain."""

    way: str
    send: float  # seconds of the gateway's processor time
    connection: float
    send_ratio: float
    connection_ratio: float


@attrs.frozen(kw_only=True)
class Report:
    costs: Sequence[Cost]
    rounds: int
    machine: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Way:
    """A client of one way."""

    port: int
    headers: Headers
    tls: ClientTlsOptions | None

    def client(self) -> HttpClient:
        context = None if self.tls is None else client_context(self.tls)
        options = HttpClientOptions(max_connections=CONNECTIONS)
        return HttpClient("localhost", self.port, tls=context, options=options)

    async def send(self, client: HttpClient) -> None:
        request = Request(method="POST", target="/orders/messages", headers=self.headers, body=BODY)
        answer = await client.request(request)
        assert answer.status == 201, answer

    async def sends(self, number: int) -> None:
        """Send a number of messages over the kept-alive connections."""
        client = self.client()

        async def some() -> None:
            for _ in range(number // CONNECTIONS):
                await self.send(client)

        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTIONS):
                nursery.start_soon(some)
        await client.aclose()

    async def connections(self, number: int) -> None:
        """Open a number of connections, each for one message."""
        for _ in range(number):
            client = self.client()
            await self.send(client)
            await client.aclose()


async def measure(folder: Path, *, rounds: int, sends: int, opened: int) -> Report:
    tls = folder / "tls"
    write_certificates(tls, now=now())
    jwt = make_provider(tls)
    started = trio.Event()
    async with open_fleet(folder) as fleet:
        fleet.watch = lambda _, line: started.set() if line.get("event") == "started" else None
        ports = [free_port() for _ in range(3)]
        config = CONFIG.format(
            folder=tls,
            own=f'certificate = "{tls}/server.pem", key = "{tls}/server.key"',
            issuer=ISSUER,
            audience=AUDIENCE,
            name=KEY_NAME,
            variable=KEY_VARIABLE,
            ports=ports,
        )
        gateway = await fleet.start("gateway", config)
        await started.wait()
        trusting = ClientTlsOptions(ca=tls / "ca.pem")
        certified = attrs.evolve(trusting, certificate=tls / "client.pem", key=tls / "client.key")
        options = {PLAIN: None, TLS: trusting, MTLS: certified, JWT: trusting}
        ways = {
            name: Way(
                port=ports[ENDPOINT[name]],
                headers=Headers.of({"Authorization": f"Bearer {jwt}" if name == JWT else token()}),
                tls=options[name],
            )
            for name in WAYS
        }
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
        for number in range(rounds + 1):  # the first one warms up
            order = WAYS if number % 2 else WAYS[::-1]
            for name in order:
                way = ways[name]
                send = await _spent(gateway.pid, partial(way.sends, sends), sends)
                connection = await _spent(gateway.pid, partial(way.connections, opened), opened)
                if number:
                    spent[name].append((send, connection))
    return _report(spent, rounds)


async def _spent(pid: int, work: Callable[[], Awaitable[None]], times: int) -> float:
    before = processor_time(pid)
    await work()
    return (processor_time(pid) - before) / times


def _report(spent: Mapping[str, Sequence[tuple[float, float]]], rounds: int) -> Report:
    def ratio(way: str, index: int) -> float:
        pairs = zip(spent[way], spent[PLAIN], strict=True)
        return statistics.median(own[index] / plain[index] for own, plain in pairs)

    costs = [
        Cost(
            way=way,
            send=statistics.median(send for send, _ in spent[way]),
            connection=statistics.median(connection for _, connection in spent[way]),
            send_ratio=ratio(way, 0),
            connection_ratio=ratio(way, 1),
        )
        for way in WAYS
    ]
    return Report(costs=costs, rounds=rounds, machine=dict(facts_of_processor()))


def make_provider(folder: Path) -> str:
    """Write the keys of an identity provider to `keys.json`; return a token of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    numbers = key.public_key().public_numbers()
    x, y = (_encoded(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    public = {"kty": "EC", "crv": "P-256", "kid": "1", "use": "sig", "alg": "ES256", "x": x, "y": y}
    (folder / "keys.json").write_text(json.dumps({"keys": [public]}))
    second = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "bench",
        "roles": ["Send"],
        "nbf": second,
        "iat": second,
        "exp": second + 3600,
    }
    head = _encoded(json.dumps({"alg": "ES256", "kid": "1", "typ": "JWT"}).encode())
    signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
    parts = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_encoded(b''.join(part.to_bytes(32, 'big') for part in parts))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def show(report: Report, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, title="Processor time of the gateway (user and system)")
    for name in ("way", "a send, µs", "to plain", "a connection, µs", "to plain"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for each in report.costs:
        table.add_row(
            each.way,
            f"{each.send * 1e6:.0f}",
            f"{each.send_ratio:.2f}",
            f"{each.connection * 1e6:.0f}",
            f"{each.connection_ratio:.2f}",
        )
    console.print(table)
    show_medians(report.rounds, report.machine, console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sends", type=int, default=SENDS, help="sends of each way and round")
    parser.add_argument(
        "--connections", type=int, default=OPENED, help="connections of each way and round"
    )
    given = parser.parse_args()
    work = partial(measure, rounds=given.rounds, sends=given.sends, opened=given.connections)
    report_of(work, show, as_json=given.json, width=WIDTH)


if __name__ == "__main__":
    main()
