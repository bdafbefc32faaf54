"""Attempts of one client, over AMQP, to fill the memory of a gateway or to keep its event loop."""

from itertools import count
from typing import Final

import trio

from gateway.domain.message import Message
from gateway.net.amqp.client import AmqpClient
from gateway.net.amqp.exchange import Exchange
from gateway.net.amqp.links import ReceivingLink, SendingLink
from gateway.wire.amqp.events import Declared, NewLink, Terminus, TransactionalState
from gateway.wire.amqp.management.operations import Peek
from gateway.wire.amqp.management.requests import request_of
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.servicebus.batches import BATCH, encode_batch
from gateway.wire.amqp.transactions import Declare, build_control

ALMOST_ALL: Final = 900_000  # bytes of a message, where a megabyte is the most
PIPELINED: Final = 50  # attaches before the client waits until they are written
TRANSACTIONS: Final = 100
PEEKS: Final = 8  # in flight on a connection


async def attach_without_end(client: AmqpClient, queue: str) -> None:
    """Attach links and detach them, many at a time."""
    session, here = client.acquire_session(), Terminus(address="here")
    for number in count():
        there = Terminus(address=queue)
        new = NewLink(name=f"{number}", we_send=True, source=here, target=there)
        link = client.engine.attach(session, new)
        assert link is not None, "the connection has ended"
        client.engine.detach(link)
        if number % PIPELINED == 0:
            await trio.lowlevel.checkpoint()
            await client.wait_for_room()


async def receive_without_end(client: AmqpClient, queue: str) -> None:
    """Attach links that ask for a message of an empty queue, and detach them, many at a time."""
    here, there = Terminus(address="here"), Terminus(address=queue)
    for round_ in count():
        links = []
        for number in range(PIPELINED):
            new = NewLink(name=f"{round_}-{number}", we_send=False, source=there, target=here)
            links.append(ReceivingLink(client, new))
        for link in links:
            await link.wait_attached()
            link.set_credit(1)
        for link in links:
            client.engine.detach(link.id)


async def send_large_batches(link: SendingLink) -> None:
    """Send 4,000 messages in each transfer."""
    batch = encode_batch([Message(body=b"x")] * 4000)
    while True:
        await link.send(batch, BATCH)


async def leave_unfinished(stream: trio.abc.Stream, link: SendingLink) -> None:
    """Send all frames of a message but the last, and wait."""
    payload = encode_message(Message(body=bytes(50_000)))
    for _ in range(ALMOST_ALL // len(payload)):
        await stream.send_all(_transfer(payload))
    await link.client.wait_ended()


def _transfer(payload: bytes) -> bytes:
    """A frame of the first delivery on channel 0 and handle 0 that another one follows."""
    fields = b"\x43\x43\xa0\x01t\x43\x42\x41"
    body = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 6)) + fields + payload
    return (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body


async def fill_transactions(link: SendingLink) -> None:
    """Add a large message to each of many transactions, and discharge none."""
    client, payload = link.client, encode_message(Message(body=bytes(ALMOST_ALL)))
    node = Terminus(coordinator=True, capabilities=("amqp:local-transactions",))
    new = NewLink(name="coordinator", we_send=True, source=Terminus(address="here"), target=node)
    coordinator = SendingLink(client, new)
    await coordinator.wait_attached()
    for _ in range(TRANSACTIONS):
        declared = await coordinator.send(build_control(Declare()))
        if not isinstance(declared, Declared):
            break
        await (await link.post(payload, state=TransactionalState(txn_id=declared.txn_id))).outcome()
    await client.wait_ended()


async def peek_without_end(client: AmqpClient, queue: str) -> None:
    """Ask for as many messages as there are, several times at once."""
    exchange = Exchange(client, f"{queue}/$management", "peeker")
    await exchange.wait_attached()
    request = request_of(Peek(from_sequence=1, limit=100), request_id="", reply_to="")

    async def peek() -> None:
        while True:
            await exchange.ask(request)

    async with trio.open_nursery() as nursery:
        for _ in range(PEEKS):
            nursery.start_soon(peek)
