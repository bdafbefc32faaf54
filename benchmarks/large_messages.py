"""
Is each message answered, however large? One message of each size over each protocol, with the
limits of a new installation and with raised ones: accepted, or refused with a reason, and after how
many seconds. A message without an answer ends the run with 1.

    python -m benchmarks.large_messages [--sizes MIB ...]
"""

import argparse
import random
import sys
import tempfile
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import now, open_fleet, token
from gateway.brokers.amqp.options import ServiceBusOptions
from gateway.brokers.amqp.servicebus import open_namespace
from gateway.demo.machines import KEY, KEY_NAME, DemoMachine
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Message
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request
from gateway.wire.storage_queue.signing import signed

MIB: Final = 1024 * 1024
SIZES: Final = (1, 16, 64, 100)
PATIENCE: Final = 60.0  # seconds: the limit that SDKs have for a try
NO_ANSWER: Final = "no answer"
QUEUE: Final = "large"
# Of the emulators, which their documentation publishes.
ACCOUNT: Final = "devstoreaccount1"
ACCOUNT_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
CONFIG: Final = """
[namespaces.here]
url = "embedded:broker.db"
queues = ["large"]
{store}

[[endpoints]]
protocol = "{protocol}"
bind = "127.0.0.1:0"
"""
STORE: Final = 'max_message_size = "101MiB"\nmax_pending_bytes = "256MiB"'
LIMITS: Final = """
[limits.amqp]
max_message_size = "101MiB"
max_partial = "256MiB"
max_pending_bytes = "256MiB"

[limits]
max_body = "101MiB"
max_body_memory = "512MiB"

[limits.clients]
max_bytes = "256MiB"
"""

Send = Callable[[DemoMachine, bytes], Awaitable[str]]


def config(protocol: str, *, raised: bool) -> str:
    text = CONFIG.format(protocol=protocol, store=STORE if raised else "")
    return text + LIMITS if raised else text


async def over_amqp(machine: DemoMachine, body: bytes) -> str:
    options = ServiceBusOptions(key=KEY)
    rest = f"Endpoint=sb://127.0.0.1:{machine.port}/;SharedAccessKeyName={KEY_NAME}"
    rest += ";UseDevelopmentEmulator=true"
    try:
        async with open_namespace(rest, options, now, random.Random(1)) as broker:
            await broker.send(EntityPath(QUEUE), [Message(body=body)])
    except BrokerError as error:
        return NO_ANSWER if error.outcome is Outcome.UNKNOWN else type(error).__name__
    return "accepted"


async def over_rest(machine: DemoMachine, body: bytes) -> str:
    headers = Headers([("Authorization", token())])
    return await _asked(machine, _post(f"/{QUEUE}/messages", headers, body))


async def over_storage(machine: DemoMachine, body: bytes) -> str:
    inside = b"<QueueMessage><MessageText>" + body + b"</MessageText></QueueMessage>"
    date = format_http_date(now())
    dated = Headers([("x-ms-date", date), ("x-ms-version", "2021-12-02")])
    request = _post(f"/{ACCOUNT}/{QUEUE}/messages", dated, inside)
    return await _asked(
        machine, signed(request, account=ACCOUNT, key=b64decode(ACCOUNT_KEY), lite=True)
    )


def _post(target: str, headers: Headers, body: bytes) -> Request:
    return Request(method="POST", target=target, headers=headers, body=body)


async def _asked(machine: DemoMachine, request: Request) -> str:
    client = HttpClient("127.0.0.1", machine.port, options=HttpClientOptions())
    try:
        answer = await client.request(request)
    except BrokerError as error:
        return NO_ANSWER if error.outcome is Outcome.UNKNOWN else type(error).__name__
    finally:
        await client.aclose()
    return "accepted" if answer.status == 201 else str(answer.status)


PROTOCOLS: Final[Mapping[str, tuple[str, Send]]] = {
    "AMQP": ("service-bus", over_amqp),
    "Service Bus REST": ("service-bus", over_rest),
    "Storage Queue": ("storage-queue", over_storage),
}


async def measure(sizes: Sequence[int], folder: Path) -> Mapping[tuple[str, bool], list[str]]:
    """The answer to each message, by protocol and by whether the limits are raised."""
    found = {}
    async with open_fleet(folder) as fleet:
        for name, (protocol, send) in PROTOCOLS.items():
            for raised in (False, True):
                text = config(protocol, raised=raised)
                machine = await fleet.start(f"{name} {raised}", text, start_limit=60.0)
                told = [await _sent(send, machine, b"x" * (MIB * size)) for size in sizes]
                found[name, raised] = told
                await machine.kill()
    return found


async def _sent(send: Send, machine: DemoMachine, body: bytes) -> str:
    began, told = trio.current_time(), NO_ANSWER
    with trio.move_on_after(PATIENCE):
        told = await send(machine, body)
    return f"{told}, {trio.current_time() - began:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m benchmarks.large_messages"
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="MIB")
    sizes = parser.parse_args().sizes
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(measure, sizes, Path(folder))
    table = Table("protocol", "limits", *(f"{size} MiB" for size in sizes), box=SIMPLE_HEAD)
    for (name, raised), told in found.items():
        table.add_row(name, "raised" if raised else "usual", *told)
    Console().print(table)
    return 1 if any(each.startswith(NO_ANSWER) for told in found.values() for each in told) else 0


if __name__ == "__main__":
    sys.exit(main())
