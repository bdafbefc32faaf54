"""Proton's own client on a connection of ours. Only `make test` installs Proton."""

import proton
import trio
from proton.handlers import MessagingHandler
from proton.reactor import Container

from gateway.wire.amqp.events import (
    ConnectionClosed,
    DispositionReceived,
    LinkAttached,
    TransferReceived,
)
from tests.harness.patience import PATIENCE
from tests.net.amqp.peers import Peer, server_on


class SendAndReceive(MessagingHandler):
    """Sends messages to a queue and receives as many from it, then closes."""

    def __init__(self, url, bodies):
        super().__init__(prefetch=10)
        self.url, self.bodies = url, bodies
        self.received, self.accepted = [], 0

    def on_start(self, event):
        connection = event.container.connect(self.url, reconnect=False, allowed_mechs="ANONYMOUS")
        self.sender = event.container.create_sender(connection, "q")
        event.container.create_receiver(connection, "q")

    def on_sendable(self, event):
        while event.sender.credit and self.bodies:
            event.sender.send(proton.Message(body=self.bodies.pop(0)))

    def on_accepted(self, event):
        self.accepted += 1
        self.close_when_done(event)

    def on_message(self, event):
        self.received.append(event.message.body)
        self.close_when_done(event)

    def close_when_done(self, event):
        if self.accepted == len(self.received) == 5:
            event.connection.close()


class Echo(Peer):
    """A server that sends all incoming messages to its only receiver."""

    def handle(self, event):
        super().handle(event)
        if isinstance(event, LinkAttached) and event.we_send:
            self.out = event.link
        if isinstance(event, TransferReceived):
            self.connection.engine.send(self.out, event.tag, event.payload)
        if isinstance(event, DispositionReceived):
            self.connection.engine.settle(event.delivery, event.state)


async def test_protons_own_client_sends_and_receives(nursery):
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    peers = []

    async def serve(stream):
        peers.append(Echo(server_on(stream), serves=True))
        await peers[-1].run()

    await nursery.start(trio.serve_listeners, serve, [listener])
    bodies = ["", "a", "b" * 70_000, "c" * 300_000, "d"]
    port = listener.socket.getsockname()[1]
    handler = SendAndReceive(f"amqp://127.0.0.1:{port}", list(bodies))

    with trio.fail_after(PATIENCE):
        await trio.to_thread.run_sync(Container(handler).run)

    assert sorted(handler.received) == sorted(bodies)
    assert peers[0].told[0].mechanism == "ANONYMOUS"
    assert peers[0].told[-1] == ConnectionClosed(error=None)
